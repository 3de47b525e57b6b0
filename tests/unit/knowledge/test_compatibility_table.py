"""Families and architectures against hardware: measured or expected levels, never mixed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from factory_rows import Database, steady, unmeasured

from hwmatrix.errors import StoreError
from hwmatrix.knowledge.compatibility_table import TableCell, compatibility_table
from hwmatrix.records import Backend, Basis, Execution, Family, Level

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.knowledge.compatibility_table import TableRow


def cell(rows: tuple[TableRow, ...], family: Family, architecture: str | None, hardware: Backend) -> TableCell:
    row = next(row for row in rows if (row.family, row.architecture) == (family, architecture))
    return next(cell for cell in row.cells if cell.hardware is hardware)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "matrix.duckdb"
    with Database(path) as filled:
        filled.run()
        for shard, target in (("c", "cpu"), ("o", "openvino"), ("q", "qnn")):
            filled.shard(shard, target)
        filled.cell(filled.plan("bert", "cpu"), "c", wall=steady(3.0))
        filled.cell(filled.plan("bert", "openvino"), "o", wall=steady(1.0))
        filled.cell(filled.plan("roberta", "openvino"), "o", **unmeasured("crash"))
        filled.cell(filled.plan("bert", "qnn", execution="emulated"), "q", wall=steady(9.0))
        filled.plan("bert", "cuda", unavailable="no GPU")
    return path


def test_a_row_for_each_family_and_each_recorded_architecture(database: Path) -> None:
    rows = compatibility_table(database)
    assert [(row.family, row.architecture) for row in rows[:3]] == [(Family.EMBEDDING, name) for name in (None, "bert", "roberta")]
    assert [row.family for row in rows[3:]] == list(Family)[1:]
    assert all([cell.hardware for cell in row.cells] == list(Backend) for row in rows)


def test_measured_levels_are_counted_and_shown_with_the_expectation(database: Path) -> None:
    rows = compatibility_table(database)
    family = cell(rows, Family.EMBEDDING, None, Backend.OPENVINO)
    assert (family.basis, family.levels, family.compatible) == (Basis.MEASURED, {Level.HIGH: 1, Level.NONE: 1}, None)
    assert str(family) == "measured: 1 High, 1 none"
    assert family.expected == (
        "Medium (Hardware Integration Summary)",
        "High (Hardware and Model Integration Enhancement Summary)",
        "REAL (Hardware-Model Integration Guide)",
    )
    assert str(cell(rows, Family.EMBEDDING, "bert", Backend.OPENVINO)) == "measured: 1 High"
    assert str(cell(rows, Family.EMBEDDING, "roberta", Backend.OPENVINO)) == "measured: 1 none"


def test_emulation_is_labeled(database: Path) -> None:
    emulated = cell(compatibility_table(database), Family.EMBEDDING, "bert", Backend.QNN)
    assert (emulated.execution, emulated.level) == (Execution.EMULATED, Level.MEDIUM)
    assert str(emulated) == "measured: 1 Medium (emulated)"


def test_cells_without_executions_show_the_expectation(database: Path) -> None:
    rows = compatibility_table(database)
    cuda = cell(rows, Family.EMBEDDING, None, Backend.CUDA)
    assert (cuda.basis, cuda.level, cuda.levels, cuda.execution) == (Basis.PRIOR, Level.HIGH, {}, None)
    assert str(cuda) == "expected: High or REAL"
    unknown = cell(rows, Family.VIDEO, None, Backend.QNN)
    assert (unknown.basis, str(unknown)) == (Basis.NONE, "")


def test_without_a_database_the_priors_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # away from the reports of a run in this checkout
    rows = compatibility_table(None)
    assert [row.architecture for row in rows] == [None] * len(Family)
    assert str(cell(rows, Family.MULTIMODAL, None, Backend.MPS)) == "expected: Low, marked as not supported or none or SIMULATION"
    assert str(cell(rows, Family.AUDIO, None, Backend.CPU)) == "expected: baseline"


def test_a_row_can_be_written_as_json(database: Path) -> None:
    row = compatibility_table(database)[0].as_dict()
    assert json.loads(json.dumps(row)) == row
    assert (row["family"], row["architecture"]) == ("embedding", None)
    assert row["hardware"]["openvino"]["levels"] == {"High": 1, "none": 1}
    assert row["hardware"]["cuda"]["basis"] == "prior"


def test_a_database_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        compatibility_table(tmp_path / "none.duckdb")
