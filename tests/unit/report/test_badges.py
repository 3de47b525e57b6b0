"""Badges count working cells, and are safe with hostile names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from factory_rows import Database, example, steady, unmeasured

from hwmatrix.report.badges import Badge, badges, endpoint_json, files
from hwmatrix.report.rows import read

if TYPE_CHECKING:
    from pathlib import Path


def by_name(path: Path) -> dict[str, Badge]:
    return {badge.name: badge for badge in badges(read(path))}


def test_badges_of_models_count_targets_and_vice_versa(tmp_path: Path) -> None:
    found = by_name(example(tmp_path / "m.duckdb"))
    assert (found["model-bert"].message, found["model-bert"].color) == ("2 of 2 targets", "brightgreen")  # gpu is unavailable
    assert (found["model-model-crash"].message, found["model-model-crash"].color) == ("1 of 2 targets", "yellow")
    assert (found["target-gpu"].message, found["target-gpu"].color) == ("not tested", "lightgrey")
    assert (found["model-late"].message, found["model-mixtral"].message) == ("not tested", "not tested")
    assert found["target-cpu"].message == "13 of 13 models"
    assert found["family-vision"].message == "1 of 1 model"


def test_a_model_is_counted_in_the_first_precision_of_its_target(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s", "qnn")
        database.cell(database.plan("vit", "qnn", dtype="float16", cell_key="a"), "s", wall=steady(1.0))
        database.cell(database.plan("vit", "qnn", dtype="a8w8", cell_key="b"), "s", **unmeasured("mismatch"))
        database.cell(database.plan("bert", "qnn", dtype="float16", cell_key="c"), "s", **unmeasured("crash"))
    found = by_name(path)
    assert (found["model-vit"].message, found["model-vit"].color) == ("1 of 1 target", "brightgreen")
    assert (found["model-bert"].message, found["model-bert"].color) == ("0 of 1 target", "red")


@pytest.mark.parametrize("name", ['"><script>alert(1)</script>', "a&b <c>", "\x1b[31mred", "名前", "", "../../etc/passwd", "x" * 500])
def test_hostile_names(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s", "cpu")
        database.cell(database.plan(name, "cpu"), "s", wall=steady(1.0))
    written = files(read(path))
    assert len(written) == 3
    for file, text in written.items():
        assert "/" not in file
        assert not file.startswith(".")
        assert json.loads(text)["schemaVersion"] == 1


def test_names_with_the_same_file_name_get_separate_files(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s", "cpu")
        for name in ("a/b", "a-b", "A b"):
            database.cell(database.plan(name, "cpu"), "s", wall=steady(1.0))
    assert {name for name in by_name(path) if name.startswith("model-")} == {"model-a-b", "model-a-b-2", "model-a-b-3"}


def test_a_name_with_a_number_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s", "cpu")
        for name in ("a b", "a-b", "a-b-2", "x" * 500, "x" * 501):
            database.cell(database.plan(name, "cpu"), "s", wall=steady(1.0))
    names = [name for name in by_name(path) if name.startswith("model-")]
    assert names == ["model-a-b", "model-a-b-2", "model-a-b-2-2", f"model-{'x' * 100}", f"model-{'x' * 100}-2"]
    assert all(len(name) < 200 for name in files(read(path)))


def test_the_format_of_an_endpoint_badge() -> None:
    badge = Badge(name="model-bert", label="bert", message="2 of 3 targets", color="yellow")
    assert json.loads(endpoint_json(badge)) == {"schemaVersion": 1, "label": "bert", "message": "2 of 3 targets", "color": "yellow"}
