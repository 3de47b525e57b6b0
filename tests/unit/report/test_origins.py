"""Where wrong results begin, in every report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import Database

from hwmatrix.cli.main import main
from hwmatrix.report import origins
from hwmatrix.report.groups import GroupKind, groups_of
from hwmatrix.report.json_report import matrix_json
from hwmatrix.report.markdown import errors_md
from hwmatrix.report.page_data import text
from hwmatrix.report.rows import read

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.report.rows import CellRow

STEP = {
    "origin": "step",
    "diverges_at": "node_topk_3",
    "diverges_operator": "TopK",
    "diverges_error": 0.5,
    "diverges_given": 1.25e-3,
    "diverges_against": "the same graph elsewhere",
}
WRONG = {"status": "mismatch", "stage": "compare", "error_type": "mismatch", "severity": "error", "relative_error": 0.25}
TOLD: dict[str, tuple[dict[str, Any], str | None]] = {
    "step": (STEP, "node_topk_3 (TopK) differs by 0.5, with inputs that differ by 0.00125, compared with the same graph elsewhere"),
    "not_finite": (
        STEP | {"diverges_error": None, "diverges_given": None, "diverges_detail": "NaN in 3 of 4 values"},
        "node_topk_3 (TopK) differs, compared with the same graph elsewhere; NaN in 3 of 4 values",
    ),
    "gradual": (
        STEP | {"origin": "gradual", "diverges_error": 0.03, "diverges_given": 0.01, "diverges_against": "X"},
        "no single step, the error grows gradually: node_topk_3 (TopK) differs by 0.03, with inputs that differ by 0.01, compared with X",
    ),
    "graph": (
        {"origin": "graph", "diverges_error": 0.5, "diverges_against": "ORT", "diverges_detail": "logits differs there too"},
        "before the target, in the exported or converted graph, compared with ORT; logits differs there too",
    ),
    "fused": (
        {"origin": "fused", "diverges_against": "ORT", "diverges_detail": "logits differs by only 1e-07"},
        "where the runtime fuses several steps, compared with ORT; logits differs by only 1e-07",
    ),
    "unknown": ({"origin": "unknown", "diverges_detail": "SIGSEGV"}, "not found; SIGSEGV"),
    "not_looked_for": ({}, None),
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Database(tmp_path_factory.mktemp("origins") / "matrix.duckdb") as made:
        made.run()
        made.shard("s", "qnn")
        for name, (found, _) in TOLD.items():
            message = f"relative L2 error 0.25 of {name} exceeds 0.02"
            made.cell(made.plan(name, "qnn"), "s", message=message, **(WRONG | found))
        second = STEP | {"diverges_at": "node_topk_9", "diverges_error": 0.7}
        made.cell(made.plan("another", "qnn"), "s", message="relative L2 error 0.7 of a exceeds 0.02", **(WRONG | second))
    return made.path


def cell(database: Path, model: str) -> CellRow:
    return next(cell for cell in read(database).cells if cell.model == model)


@pytest.mark.parametrize("model", TOLD)
def test_each_origin_has_a_sentence(database: Path, model: str) -> None:
    assert origins.sentence(cell(database, model)) == TOLD[model][1]


def test_matrix_json_has_the_divergence_or_null_if_there_was_no_search(database: Path) -> None:
    found = {entry["model"]: entry["divergence"] for entry in json.loads(matrix_json(read(database)))["cells"]}
    assert found["step"] == {
        "origin": "step",
        "at": "node_topk_3",
        "operator": "TopK",
        "relative_error": 0.5,
        "inputs_error": 1.25e-3,
        "against": "the same graph elsewhere",
        "detail": None,
    }
    assert found["not_looked_for"] is None


def test_failures_with_the_same_origin_are_one_group(database: Path) -> None:
    found = {group.blocker.what: group for group in groups_of(read(database))}
    assert found["TopK, the first wrong step"].models == ("step", "not_finite", "another")
    assert {name for name, group in found.items() if group.blocker.kind is GroupKind.ORIGIN} == {
        "TopK, the first wrong step",
        "errors that grow gradually",
        "a wrong export or conversion",
        "errors caused by fusing several steps",
    }
    assert found["relative L2 error <n> of <name> exceeds <n>"].models == ("unknown", "not_looked_for")


def test_errors_md_has_it_for_each_error(database: Path) -> None:
    told = errors_md(read(database))
    assert "Where the error begins: node_topk_3 (TopK) differs by 0.5, with inputs" in told.replace("\\_", "_")
    assert told.count("Where the error begins: ") == sum(sentence is not None for _, sentence in TOLD.values()) + 1


def test_why_has_it(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "step", "qnn", "--database", str(database)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "begins: node_topk_3 (TopK) differs by 0.5, with inputs that differ by 0.00125, compared with the same graph" in told


def test_the_page_shows_it_as_text(database: Path) -> None:
    assert text(origins.sentence(cell(database, "fused"))) == TOLD["fused"][1]
