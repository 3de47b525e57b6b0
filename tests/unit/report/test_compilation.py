"""How models were compiled, in every report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from factory_rows import Database, steady

from hwmatrix.cli.main import main
from hwmatrix.report.compilation import compilations, sentence
from hwmatrix.report.json_report import matrix_json
from hwmatrix.report.markdown import matrix_md
from hwmatrix.report.rows import read

if TYPE_CHECKING:
    from pathlib import Path

PLACE = "transformers/models/reformer/modeling_reformer.py:190 in forward: "
ITEM = f"{PLACE}Unsupported Tensor.item() call with capture_scalar_outputs=False"
PRINT = f"{PLACE}Failed to trace builtin operator"
WHOLE = {"graphs": 1, "graph_breaks": 0, "break_reasons": [], "recompilations": 0, "compile_ms": 9000.0, "cached_compile_ms": 700.0}
BROKEN = {"graphs": 3, "graph_breaks": 2, "break_reasons": [ITEM, PRINT], "recompilations": 1, "compile_ms": 21000.0}
ONCE = {"graphs": 2, "graph_breaks": 1, "break_reasons": [ITEM], "recompilations": 0, "compile_ms": 15000.0}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Four models on inductor, one of which ended before it was compiled, and one on cpu, where nothing is compiled."""
    path = tmp_path / "matrix.duckdb"
    with Database(path) as filled:
        filled.run()
        for target in ("cpu", "inductor"):
            filled.shard(f"s-{target}", target)
        filled.cell(filled.plan("bert", "cpu"), "s-cpu", wall=steady(2.0))
        for model, measured in {"bert": WHOLE, "reformer": BROKEN, "funnel": ONCE}.items():
            filled.cell(filled.plan(model, "inductor"), "s-inductor", wall=steady(1.0), **measured)
        failed = {"status": "error", "stage": "prepare", "error_type": "torch_compile_failed", "severity": "error", "message": "no"}
        filled.cell(filled.plan("gpt2", "inductor"), "s-inductor", **failed)
    return path


def test_they_are_counted_by_target_with_the_most_frequent_break_first(database: Path) -> None:
    (found,) = compilations(read(database).cells)
    assert (found.column.target, found.cells, found.whole, found.broken, found.recompiled) == ("inductor", 3, 1, 2, 1)
    assert (found.compile_ms, found.cached_compile_ms) == (15000.0, 700.0)
    assert [(each.reason, each.models) for each in found.breaks] == [(ITEM, ("reformer", "funnel")), (PRINT, ("reformer",))]


def test_the_matrix_has_a_table_and_the_breaks(database: Path) -> None:
    told = matrix_md(read(database)).partition("### Compilation\n")[2].partition("\n## ")[0]
    assert "| inductor (container) | float32 | 3 | 1 | 2 | 1 | 15.0 | 0.700 |" in told
    assert f"| `{ITEM}` | `reformer`, `funnel` |" in told
    assert "| cpu" not in told


def test_a_matrix_without_compiled_models_has_no_such_table(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as filled:
        filled.run()
        filled.shard("s-cpu", "cpu")
        filled.cell(filled.plan("bert", "cpu"), "s-cpu", wall=steady(2.0))
    assert "### Compilation" not in matrix_md(read(tmp_path / "m.duckdb"))


def test_the_json_has_every_value(database: Path) -> None:
    cells = {(cell["model"], cell["target"]): cell["compilation"] for cell in json.loads(matrix_json(read(database)))["cells"]}
    assert cells["reformer", "inductor"] == BROKEN | {"whole": False, "cached_compile_ms": None}
    assert cells["bert", "inductor"] == WHOLE | {"whole": True}
    assert cells["bert", "cpu"] is None
    assert cells["gpt2", "inductor"] is None


def test_why_says_how_it_was_compiled(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "reformer", "inductor", "--database", str(database)]) == 0
    told = capsys.readouterr().out
    assert "compiled:   3 graphs, 2 graph breaks, 21.0 s, 1 graph compiled again in later runs" in told
    assert f"| {ITEM}" in told
    assert main(["why", "bert", "inductor", "--database", str(database)]) == 0
    assert "compiled:   as one graph, 9.00 s, 0.700 s from its cache" in capsys.readouterr().out


def test_a_cell_without_timing_has_no_time_to_compile(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as filled:
        filled.run()
        filled.shard("s-inductor", "inductor")
        filled.cell(filled.plan("bert", "inductor"), "s-inductor", **WHOLE | {"compile_ms": None, "cached_compile_ms": None})
    report = read(tmp_path / "m.duckdb")
    assert "| inductor (container) | float32 | 1 | 1 | 0 | 0 | \u2013 | \u2013 |" in matrix_md(report)
    assert sentence(report.cells[0]) == "as one graph"
