"""The data of the page: its packing and its content, without times that are not speeds."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import Database, example, steady, unmeasured

from hwmatrix.report import packing
from hwmatrix.report.causes import causes
from hwmatrix.report.failures import failures
from hwmatrix.report.missing import missing
from hwmatrix.report.packing import fitting
from hwmatrix.report.page_data import key_of, page_data
from hwmatrix.report.page_rows import read_page_rows
from hwmatrix.report.rows import read

if TYPE_CHECKING:
    from pathlib import Path


def unpacked(packed: dict[str, Any], count: int) -> list[Any]:
    if "same" in packed:
        return [packed["same"]] * count
    if "pieces" in packed:
        texts = [packed["between"].join(packed["pieces"][piece] for piece in text) for text in packed["texts"]]
        return [None if code < 0 else texts[code] for code in packed["codes"]]
    if "words" in packed:
        return [None if code < 0 else packed["words"][code] for code in packed["codes"]]
    return list(packed["values"])


def cells(database: Path) -> list[dict[str, Any]]:
    """Every cell in the page's data."""
    rows = read(database)
    table = page_data(rows, read_page_rows(database, rows.run.run_id))["cells"]
    columns = {name: unpacked(packed, len(rows.cells)) for name, packed in table.items()}
    return [{name: column[number] for name, column in columns.items()} for number in range(len(rows.cells))]


@pytest.mark.parametrize("values", [[], [None], ["a", "b", "a", None, "b"], ["", "a", "\n", "a\n"]])
def test_a_column_of_pieces_is_unpacked_unchanged(values: list[Any]) -> None:
    packed = json.loads(packing.script_json(packing.pieces(values, "\n")))
    assert unpacked(packed, len(values)) == values


def test_very_many_texts_share_their_pieces_and_few_do_not() -> None:
    lines = [f"  File {number}, in frame, with a long line of code that many tracebacks have" for number in range(40)]
    tracebacks = ["\n".join(["Traceback (most recent call last):", *lines, f"Error {number}"]) for number in range(100)]
    packed = packing.table({"traceback": tracebacks, "other": tracebacks}, pieced={"traceback": "\n"})
    assert unpacked(packed["traceback"], 100) == unpacked(packed["other"], 100) == tracebacks
    assert 10 * len(packing.script_json(packed["traceback"])) < len(packing.script_json(packed["other"]))
    assert packing.table({"traceback": tracebacks[:5]}, pieced={"traceback": "\n"})["traceback"] == {"values": tracebacks[:5]}


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        [1, 1, 1],
        [True, 1, 1.0],
        ["a", "a", "a"],
        ["a", "b", "a", None, "b", "a"],
        ["a", "b", "c"],
        [None, "a", None],
        [[1, 2], [1, 2], [3]],
        [0, None, 0.5],
    ],
)
def test_a_column_is_unpacked_unchanged(values: list[Any]) -> None:
    packed = json.loads(packing.script_json(packing.column(values)))
    assert unpacked(packed, len(values)) == values
    assert [type(value) for value in unpacked(packed, len(values))] == [type(value) for value in json.loads(json.dumps(values))]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (0.0, 0),
        (3.14159265, 3.1416),
        (120.0, 120),
        (123456.7, 123460.0),
        (1e-7 / 3, 3.3333e-8),
        (math.inf, None),
        (math.nan, None),
    ],
)
def test_numbers_keep_five_digits(value: float | None, shown: float | None) -> None:
    assert packing.rounded(value) == shown


def test_many_different_texts_get_a_share_each() -> None:
    texts = [f"{number} " + "x" * 10_000 for number in range(100)]
    assert {len(text or "") for text in fitting(texts[:2], 20_000, 1_000_000)} == {10_002}
    shares = fitting([*texts, None, ""], 20_000, 100_000)
    assert shares[-2:] == [None, None]
    assert max(len(text or "") for text in shares) < 1_100
    assert fitting([texts[0]] * 100, 20_000, 100_000) == [texts[0]] * 100  # equal texts are stored once


def test_data_cannot_end_its_element_or_contain_invisible_characters() -> None:
    document = {"</script>": ["<!--", "\u2028", "a\u202eb", "\x1b[31m", "\ud800", "tab\tline\n"]}
    text = packing.script_json(document)
    assert not set("<>&\u2028\u2029\u202e\x1b") & set(text)
    text.encode("utf-8")
    assert json.loads(text) == {"</script>": ["<!--", "\ufffd", "a\ufffdb", "\ufffd[31m", "\ufffd", "tab\tline\n"]}


def test_a_script_that_would_end_its_element_is_escaped() -> None:
    assert packing.script_text("a = '</script>' + '</SCRIPT' + '<!--';\r\n") == "a = '\\x3c/script>' + '\\x3c/SCRIPT' + '\\x3c!--';\n"


def test_a_passing_cell_has_its_measurements(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        cell = database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(2.0, count=101, spread=0.5))
        for stage, ms in (("load", 12.0), ("prepare", 1.0), ("run", 5.0), ("compare", 2.0), ("measure", 260.0)):
            database.insert("stages", {"cell_id": cell, "stage": stage, "wall_ms": ms})
    (found,) = cells(tmp_path / "m.duckdb")
    assert (found["status"], found["level"], found["label"], found["rank"]) == ("pass", "High", "High", 0)
    assert found["steps"] == [None, 12, 1, 5, None, None, 2, 260]
    assert found["stage"] == "measure"
    assert found["ended"] is None
    assert len(found["quantiles"]) == 21
    assert found["quantiles"] == sorted(found["quantiles"])
    assert (found["quantiles"][0], found["quantiles"][10], found["quantiles"][20]) == (found["min_ms"], found["p50_ms"], found["max_ms"])
    assert found["outputs"] == "logits [1, 16, 512] float32"
    assert found["versions"] == "torch 2.13.0, transformers 5.23.0"
    assert found["speed_up"] is None  # cpu compared with itself


def test_an_emulated_cell_has_no_run_time(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-qnn", "qnn")
        cell = database.cell(database.plan("bert", "qnn", execution="emulated"), "s-qnn", wall=steady(2.0))
        for stage, ms in (("load", 12.0), ("run", 5.0), ("measure", 260.0)):
            database.insert("stages", {"cell_id": cell, "stage": stage, "wall_ms": ms})
    (found,) = cells(tmp_path / "m.duckdb")
    assert found["label"] == "Medium · emulated"
    for name in ("p50_ms", "p90_ms", "mean_ms", "min_ms", "ci_low_ms", "first_ms", "samples", "speed_up", "quantiles", "contended"):
        assert found[name] is None, name
    assert found["steps"] == [None, 12, None, None, None, None, None, None]


def test_software_is_labeled(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s", "webgpu")
        database.cell(database.plan("bert", "webgpu", execution="software"), "s", wall=steady(2.0))
    (found,) = cells(tmp_path / "m.duckdb")
    assert (found["label"], found["execution"], found["speed_up"]) == ("Medium · software", "software", None)


def test_failed_cells_have_their_stage_and_the_closest_working_configuration(tmp_path: Path) -> None:
    found = {(cell["model"], cell["target"]): cell for cell in cells(example(tmp_path / "m.duckdb"))}
    crashed = found["model-crash", "openvino"]
    assert (crashed["ended"], crashed["error_type"], crashed["severity"]) == ("run", "segmentation_fault", "critical")
    assert crashed["advice"]
    every = list(found.values())
    assert [(every[place]["model"], every[place]["target"], differs) for place, differs in crashed["near"]] == [
        ("model-crash", "cpu", "on cpu")
    ]
    assert found["bert", "cpu"]["near"] is None
    assert found["bert", "gpu"]["message"] == "OpenVINO lists no device GPU here"


def test_a_shard_with_failed_canaries_shows_no_measurements(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu", canary_ok=False)
        cell = database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(2.0))
        database.insert("stages", {"cell_id": cell, "stage": "run", "wall_ms": 5.0})
    (found,) = cells(tmp_path / "m.duckdb")
    assert found["status"] == "infra_error"
    assert (found["quantiles"], found["steps"], found["p50_ms"], found["peak_mb"], found["traceback"]) == (None,) * 5


def test_reasons_for_low_confidence_are_in_their_cell(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(2.0, count=10))
        database.cell(database.plan("vit", "cpu"), "s-cpu", wall=steady(2.0))
    found = cells(tmp_path / "m.duckdb")
    assert found[0]["doubts"] == "it has fewer than 30 samples: 10 samples"
    assert found[1]["doubts"] is None


def test_a_key_that_cannot_be_in_a_link_is_replaced_by_a_digest(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        for key in ("plain/key", "x" * 1000, "a\u202eb"):
            database.plan("bert", "cpu", cell_key=key)
    keys = [key_of(cell) for cell in read(tmp_path / "m.duckdb").cells]
    assert keys[0] == "plain/key"
    assert len(set(keys)) == 3
    assert all(len(key) == 24 and key.isalnum() for key in keys[1:])


def test_columns_and_rows_match_the_matrix(tmp_path: Path) -> None:
    rows = read(example(tmp_path / "m.duckdb"))
    document = page_data(rows, read_page_rows(tmp_path / "m.duckdb", rows.run.run_id))
    assert [(column["id"], column["tried"]) for column in document["columns"]] == [
        ("cpu.container", True),
        ("openvino.container", True),
        ("gpu.container", False),
    ]
    places = document["rows"]["cells"]
    models = unpacked(document["rows"]["model"], len(places))
    for model, line in zip(models, places, strict=True):
        assert {rows.cells[place].model for place in line if place >= 0} == {model}
    assert document["meanings"]["mismatch"] == "ran, and its numbers are wrong"
    assert document["words"]["oom"] == "out of memory"


def test_errors_are_grouped_by_cause_then_by_message(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        for number in range(3):
            message = "first" if number == 0 else "second"
            database.cell(database.plan(f"m{number}", "cpu"), "s-cpu", **(unmeasured("oom") | {"message": message}))
        database.cell(database.plan("vit", "cpu"), "s-cpu", **unmeasured("crash"))
    found = causes(failures(read(tmp_path / "m.duckdb")))
    assert [(cause.errors.type, len(cause.errors.members)) for cause in found] == [("segmentation_fault", 1), ("memory_pressure", 3)]
    assert [(each.message, each.cells) for each in found[1].occurrences] == [("second", ("m1/cpu", "m2/cpu")), ("first", ("m0/cpu",))]
    assert found[1].errors.recommendations


def test_a_complete_run_lacks_nothing(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(2.0))
    assert missing(read(tmp_path / "m.duckdb")) == ()


def test_everything_that_is_missing_is_named(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.cell(database.plan("bert", "cpu"), "s-cpu", peak_mb=None, delta_mb=None)
        database.plan("bert", "openvino")
        database.insert("rejected", {"run_id": None, "file": "a", "reason": "b", "rejected_at": "2026-01-01"})
    found = missing(read(tmp_path / "m.duckdb"))
    begins = ["No samples", "No memory", "No shard of openvino was merged", "The merge rejected 1 shard"]
    assert len(found) == len(begins)
    for sentence, begin in zip(found, begins, strict=True):
        assert sentence.startswith(begin)
