"""What a cell's model goes through: the closed list, and the levels that follow."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from factory_rows import Database

import hwmatrix
from hwmatrix.errors import UnsupportedError
from hwmatrix.records import Preparation, Prepared
from hwmatrix.records.backends import descriptors
from hwmatrix.records.vocabulary import exported_by

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(hwmatrix.__file__).parent
DONE = Prepared(method="an export", preparation=(Preparation.TORCH_EXPORT,))


def uses() -> Iterator[Preparation]:
    """The steps that models and targets name."""
    for file in (*PACKAGE.glob("targets/**/*.py"), *PACKAGE.glob("models/**/*.py"), PACKAGE / "records" / "results.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Preparation":
                yield Preparation[node.attr]


def test_every_step_is_taken_somewhere() -> None:
    taken = {exported_by(way) for backend in descriptors() for way in backend.exports}
    assert {*uses(), *taken} == {*Preparation}


@pytest.mark.parametrize("step", Preparation)
def test_what_passes_only_as_changed_is_low(tmp_path: Path, step: Preparation) -> None:
    path = tmp_path / "matrix.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s", "cpu")
        database.cell(database.plan("bert", "cpu"), "s", preparation=[Preparation.FIXED_SHAPES, step])
    with duckdb.connect(str(path), read_only=True) as connection:
        ((level,),) = connection.execute("SELECT level FROM matrix").fetchall()
    assert (level == "Low") == step.changes_model


def test_changes_are_named_and_none_is_an_error() -> None:
    found = DONE.rewritten({"conv3d", "Squeeze"}, Preparation.RAISED_MASKS)
    assert found.replaced == ("Squeeze", "conv3d")
    assert found.preparation == (Preparation.TORCH_EXPORT, Preparation.REPLACED_OPERATORS, Preparation.RAISED_MASKS)
    assert DONE.rewritten((), Preparation.RENAMED_CONSTANTS).preparation == (Preparation.TORCH_EXPORT, Preparation.RENAMED_CONSTANTS)
    with pytest.raises(UnsupportedError) as caught:
        DONE.rewritten(())
    assert caught.value.error_type == "nothing_to_rewrite"
