"""Throughput beside latency by batch, length and threads: cells that differ in one setting alone, on one machine, on hardware."""

# ruff: noqa: RUF001 - the sign of a ratio is meant
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import Database, steady

from hwmatrix.report.charts import charts
from hwmatrix.report.markdown import matrix_md
from hwmatrix.report.plots import svg
from hwmatrix.report.rows import read
from hwmatrix.report.scaling import lines_of

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.report.rows import ReportRows


def run_of(path: Path, *cells: dict[str, Any]) -> ReportRows:
    """A run with these cells: planned facts, ``ms``, ``host`` and ``inputs``."""
    with Database(path) as database:
        database.run()
        for host in dict.fromkeys(cell.get("host", "f00d") for cell in cells):
            database.shard(f"s-{host}", "cpu", host=host)
        for number, cell in enumerate(cells):
            facts = {name: value for name, value in cell.items() if name not in {"ms", "host", "inputs", "model"}}
            planned = database.plan(cell.get("model", "bert"), "cpu", cell_key=f"{number}", **facts)
            database.cell(planned, f"s-{cell.get('host', 'f00d')}", wall=steady(cell["ms"]), inputs=cell.get("inputs", ["text"]))
    return read(path)


def test_inputs_and_tokens_per_second_by_batch(tmp_path: Path) -> None:
    rows = run_of(tmp_path / "a.duckdb", {"batch": 8, "ms": 4.0}, {"batch": 1, "ms": 2.0}, {"batch": 32, "ms": 16.0})
    (line,) = lines_of(rows.cells)
    assert (line.setting, [line.value(cell) for cell in line.cells]) == ("batch", [1, 8, 32])
    assert [cell.inputs_s for cell in line.cells] == pytest.approx([500, 2000, 2000])
    assert [cell.tokens_s for cell in line.cells] == pytest.approx([8000, 32_000, 32_000])
    assert [line.gain(cell) for cell in line.cells] == pytest.approx([1, 4, 4])


def test_each_setting_has_lines_of_its_own(tmp_path: Path) -> None:
    rows = run_of(
        tmp_path / "a.duckdb",
        *({"batch": batch, "sequence_length": length, "ms": 1.0 * batch * length} for batch in (1, 2) for length in (16, 32)),
        {"batch": 1, "sequence_length": 16, "threads": 2, "ms": 9.0},
    )
    found = [(line.setting, [(cell.batch, cell.sequence_length, cell.threads) for cell in line.cells]) for line in lines_of(rows.cells)]
    assert found == [
        ("batch", [(1, 16, 1), (2, 16, 1)]),
        ("batch", [(1, 32, 1), (2, 32, 1)]),
        ("sequence_length", [(1, 16, 1), (1, 32, 1)]),
        ("sequence_length", [(2, 16, 1), (2, 32, 1)]),
        ("threads", [(1, 16, 1), (1, 16, 2)]),
    ]


def test_machines_sizes_and_software_are_not_mixed_into_a_line(tmp_path: Path) -> None:
    rows = run_of(
        tmp_path / "a.duckdb",
        {"batch": 1, "ms": 1.0},
        {"batch": 8, "ms": 1.0, "host": "beef"},
        {"batch": 8, "ms": 1.0, "size": "full"},
        {"batch": 8, "ms": 1.0, "execution": "software"},
        {"batch": 8, "ms": 1.0, "new_tokens": 4},
    )
    assert lines_of(rows.cells) == ()
    assert "By batch, length and threads" not in matrix_md(rows)


def test_new_tokens_count_if_it_generates_and_models_without_text_have_no_tokens(tmp_path: Path) -> None:
    rows = run_of(
        tmp_path / "a.duckdb",
        *({"model": "gpt2", "batch": batch, "new_tokens": 8, "ms": 10.0} for batch in (1, 2)),
        *({"model": "vit", "batch": batch, "ms": 10.0, "inputs": ["image"]} for batch in (1, 2)),
    )
    assert [[cell.tokens_s for cell in line.cells] for line in lines_of(rows.cells)] == [pytest.approx([800, 1600]), [None, None]]


def test_matrix_md_and_the_chart_show_throughput(tmp_path: Path) -> None:
    rows = run_of(tmp_path / "a.duckdb", {"batch": 1, "ms": 2.0}, {"batch": 8, "ms": 4.0})
    text = matrix_md(rows)
    assert "| `bert` | cpu float32 (container) | tiny, 16 tokens, 1 thread | batch | 1 | 2.00 | 500 | 8,000 |  |" in text
    assert "|  |  |  |  | 8 | 4.00 | 2,000 | 32,000 | 4.0× |" in text
    (chart,) = (each for each in charts(rows) if each.name == "scaling")
    values = chart.spec["datasets"]["rows"]
    assert {(row["of"], row["value"]): round(row["amount"]) for row in values} == {
        ("p50 ms", 1): 2,
        ("p50 ms", 8): 4,
        ("inputs/s", 1): 500,
        ("inputs/s", 8): 2000,
        ("tokens/s", 1): 8000,
        ("tokens/s", 8): 32_000,
    }
    assert svg(chart)
