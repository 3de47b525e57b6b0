"""Which cells no other beats in latency, memory and loss: only measured ones, on hardware, with the same settings on one machine."""

# ruff: noqa: RUF001 - the sign for a missing value is meant
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from factory_rows import Database, steady, unmeasured

from hwmatrix.report.charts import charts
from hwmatrix.report.markdown import summary_md
from hwmatrix.report.page_data import page_data
from hwmatrix.report.page_rows import read_page_rows
from hwmatrix.report.rows import read
from hwmatrix.report.tradeoffs import left_out, short_name, tradeoffs_of

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.report.rows import ReportRows
    from hwmatrix.report.tradeoffs import Tradeoff


def run_of(path: Path, *cells: dict[str, Any]) -> ReportRows:
    """A run with these cells: ``target``, ``dtype``, ``ms``, ``mb``, ``error``, and further ``planned`` and ``measured`` facts."""
    with Database(path) as database:
        database.run()
        for host, target in dict.fromkeys((cell.get("host", "f00d"), cell["target"]) for cell in cells):
            database.shard(f"s-{target}-{host}", target, host=host)
        for cell in cells:
            planned = database.plan(
                cell.get("model", "bert"),
                cell["target"],
                **{"size": "full", "dtype": cell.get("dtype", "float32"), "cell_key": repr(cell)} | cell.get("planned", {}),
            )
            wall = steady(cell["ms"]) if cell.get("ms") is not None else ()
            mb = cell.get("mb", 500.0)
            memory = {"peak_mb": mb and mb + 1000, "run_peak_mb": mb}
            facts = {**memory, "relative_error": cell.get("error", 1e-7)} | cell.get("measured", {})
            database.cell(planned, f"s-{cell['target']}-{cell.get('host', 'f00d')}", wall=wall, **facts)
    return read(path)


def told(tradeoff: Tradeoff) -> dict[str, list[str]]:
    """The compared cells in their order, each with those that beat it."""
    return {short_name(each.cell): [short_name(cell) for cell in each.beaten_by] for each in tradeoff.candidates}


def test_a_cell_is_beaten_by_one_that_is_better_in_one_and_no_worse_in_the_others(tmp_path: Path) -> None:
    rows = run_of(
        tmp_path / "a.duckdb",
        {"target": "cpu", "ms": 10.0, "mb": 500.0},
        {"target": "cpu", "dtype": "bfloat16", "ms": 5.0, "mb": 400.0, "error": 0.01},
        {"target": "openvino", "ms": 4.0, "mb": 900.0},
        {"target": "openvino", "dtype": "bfloat16", "ms": 6.0, "mb": 450.0, "error": 0.02},
        {"target": "onnxruntime", "ms": 10.0, "mb": 450.0},
    )
    (found,) = tradeoffs_of(rows)
    assert told(found) == {
        "openvino float32": [],  # the fastest
        "cpu bfloat16": [],  # faster than those that take no more
        "onnxruntime float32": [],  # the least memory without a loss
        "openvino bfloat16": ["cpu bfloat16"],
        "cpu float32": ["onnxruntime float32"],  # as fast, with less memory
    }
    assert [short_name(cell) for cell in found.beats(found.unbeaten[1])] == ["openvino bfloat16"]


def test_the_order_of_sums_is_no_loss_but_a_precision_is_one_also_if_the_runtime_chose_it(tmp_path: Path) -> None:
    rows = run_of(
        tmp_path / "a.duckdb",
        {"target": "cpu", "ms": 10.0, "error": 0.0},
        {"target": "openvino", "ms": 5.0, "error": 2e-5},
        {"target": "openvino", "dtype": "default", "ms": 1.0, "error": 0.004, "measured": {"precision": "bfloat16"}},
        {
            "target": "openvino",
            "dtype": "a16w8",
            "ms": 2.0,
            "error": 0.003,
            "measured": {"precision": "float32"},
        },  # only weights are rounded
    )
    (found,) = tradeoffs_of(rows)
    assert told(found) == {
        "openvino default (bfloat16)": [],
        "openvino a16w8": [],
        "openvino float32": [],
        "cpu float32": ["openvino float32"],
    }
    assert [each.loss for each in found.candidates] == [0.004, 0.003, 0, 0]


def test_latencies_whose_intervals_overlap_are_equal(tmp_path: Path) -> None:
    rows = run_of(tmp_path / "a.duckdb", {"target": "cpu", "ms": 10.0, "mb": 500.0}, {"target": "openvino", "ms": 10.001, "mb": 400.0})
    (found,) = tradeoffs_of(rows)
    assert told(found) == {"openvino float32": [], "cpu float32": ["openvino float32"]}


def test_only_cells_with_the_same_settings_on_one_machine_are_compared(tmp_path: Path) -> None:
    rows = run_of(
        tmp_path / "a.duckdb",
        {"target": "cpu", "ms": 10.0},
        {"target": "openvino", "ms": 1.0, "planned": {"batch": 2}},
        {"target": "openvino", "ms": 1.0, "planned": {"threads": 2}},
        {"target": "openvino", "ms": 1.0, "planned": {"sequence_length": 64}},
        {"target": "openvino", "ms": 1.0, "planned": {"new_tokens": 8}},
        {"target": "openvino", "ms": 1.0, "planned": {"size": "tiny"}},
        {"target": "onnxruntime", "ms": 1.0, "host": "beef"},
    )
    assert tradeoffs_of(rows) == ()
    assert "so nothing can be compared" in summary_md(rows)


def test_neither_emulation_nor_software_nor_a_missing_measurement_is_compared(tmp_path: Path) -> None:
    rows = run_of(
        tmp_path / "a.duckdb",
        {"target": "cpu", "ms": 10.0},
        {"target": "openvino", "ms": 9.0},
        {"target": "qnn", "dtype": "a8w8", "ms": 0.1, "mb": 1.0, "error": 0.02, "planned": {"execution": "emulated"}},
        {"target": "webgpu", "ms": 0.1, "mb": 1.0, "planned": {"execution": "software"}},
        {"target": "untimed", "mb": 1.0},
        {"target": "unweighed", "ms": 0.1, "mb": None, "error": None, "dtype": "bfloat16"},
        {"target": "broken", "ms": 0.1, "measured": unmeasured("mismatch")},
    )
    (found,) = tradeoffs_of(rows)
    assert [short_name(each.cell) for each in found.candidates] == ["openvino float32", "cpu float32"]
    assert {short_name(cell): reason for cell, reason in found.left_out} == {
        "qnn a8w8": "emulated",
        "webgpu float32": "software",
        "untimed float32": "no latency",
        "unweighed bfloat16": "no memory and no loss",
    }
    assert left_out([found, found])["no latency"] == {"untimed float32": 2}


def test_the_memory_of_a_device_is_not_compared_with_that_of_a_process(tmp_path: Path) -> None:
    rows = run_of(
        tmp_path / "a.duckdb",
        {"target": "cpu", "ms": 10.0, "mb": 500.0},
        {"target": "cuda", "ms": 1.0, "mb": 2000.0, "measured": {"device_peak_mb": 300.0}},
        {"target": "cuda", "dtype": "float16", "ms": 1.0, "mb": 2000.0, "error": 0.001, "measured": {"device_peak_mb": 300.0}},
    )
    (found,) = tradeoffs_of(rows)
    assert told(found) == {"cuda float32": [], "cpu float32": [], "cuda float16": ["cuda float32"]}
    assert found.memory_word == "peak MiB of process or device"
    assert "| 300 (device) |" in summary_md(rows)


def test_with_a_cell_that_lacks_the_peak_of_inference_the_peaks_with_conversion_are_compared(tmp_path: Path) -> None:
    older = {"target": "openvino", "ms": 10.0, "measured": {"peak_mb": 700.0, "run_peak_mb": None}}
    rows = run_of(tmp_path / "a.duckdb", {"target": "cpu", "ms": 10.0, "mb": 500.0}, older)
    (found,) = tradeoffs_of(rows)
    assert [(short_name(each.cell), each.memory_mb) for each in found.unbeaten] == [("openvino float32", 700.0)]
    assert found.memory_word == "peak MiB with conversion"
    assert "| 700 (with conversion) |" in summary_md(rows)


def test_titles_name_the_settings_and_the_machine_only_where_they_differ(tmp_path: Path) -> None:
    both = [{"target": target, "ms": 1.0} for target in ("cpu", "openvino")]
    rows = run_of(tmp_path / "a.duckdb", *both, *({**cell, "planned": {"batch": 8}, "host": "beef0123"} for cell in both))
    assert [each.title for each in tradeoffs_of(rows)] == ["bert (batch 1, machine f00d)", "bert (batch 8, machine beef01)"]
    assert [each.title for each in tradeoffs_of(run_of(tmp_path / "b.duckdb", *both))] == ["bert"]


def test_the_summary_has_a_row_for_each_cell_that_no_other_beats(tmp_path: Path) -> None:
    rows = run_of(
        tmp_path / "a.duckdb",
        {"target": "cpu", "ms": 10.0, "mb": 500.0},
        {"target": "cpu", "dtype": "a8w8", "ms": 5.0, "mb": 400.0, "error": 0.0312, "measured": {"quality": 0.984}},
        {"target": "openvino", "ms": 20.0, "mb": 900.0},
        {"target": "qnn", "dtype": "a8w8", "ms": 1.0, "planned": {"execution": "emulated"}},
    )
    text = summary_md(rows, {chart.name: chart for chart in charts(rows)})
    assert "| `bert` | cpu (container) | a8w8 | 5.00 | 400 | 3.1e-02 | 98 % | – |" in text
    assert "|  | cpu (container) | float32 | 10.0 | 500 | 0 | – | openvino float32 |" in text
    assert "Cells that passed, but were not compared (emulated): 1 of qnn a8w8." in text
    assert "(plots/tradeoffs.svg)" in text


def test_the_picture_shows_full_size_models_if_there_are_any(tmp_path: Path) -> None:
    both = [{"target": target, "ms": ms} for target, ms in (("cpu", 2.0), ("openvino", 1.0))]
    tiny = [{**cell, "planned": {"size": "tiny"}} for cell in both]
    (chart,) = (each for each in charts(run_of(tmp_path / "a.duckdb", *both, *tiny)) if each.name == "tradeoffs")
    values = chart.spec["datasets"]["rows"]
    assert {row["panel"] for row in values} == {"p50 ms: bert (full)", "peak MiB of inference: bert (full)"}
    assert {(row["target"], row["unbeaten"], row["beaten by"]) for row in values} == {
        ("openvino", True, ""),
        ("cpu", False, "openvino float32"),
    }
    (only,) = (each for each in charts(run_of(tmp_path / "b.duckdb", *tiny)) if each.name == "tradeoffs")
    assert {row["panel"] for row in only.spec["datasets"]["rows"]} == {"p50 ms: bert", "peak MiB of inference: bert"}


def test_the_page_gets_the_indices_of_its_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    rows = run_of(
        path,
        {"model": "vit", "target": "cpu", "ms": 1.0},
        {"target": "cpu", "ms": 10.0, "mb": 500.0},
        {"target": "openvino", "ms": 5.0, "mb": 400.0},
        {"target": "webgpu", "ms": 0.1, "planned": {"execution": "software"}},
    )
    assert page_data(rows, read_page_rows(path, None))["tradeoffs"] == [
        {
            "title": "bert",
            "memory_word": "peak MiB of inference",
            "cells": [2, 1],
            "memory": [400, 500],
            "loss": [0, 0],
            "beaten_by": [[], [2]],
            "left_out": [[3, "software"]],
        }
    ]
