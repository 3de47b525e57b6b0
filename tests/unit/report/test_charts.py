"""Charts: the rows that they include, and that they can be drawn."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import BEGIN, Database, example, steady, unmeasured

from hwmatrix.records import Isolation
from hwmatrix.report import charts as drawing
from hwmatrix.report import grid
from hwmatrix.report.charts import charts, history_charts
from hwmatrix.report.history import read_runs, read_trends
from hwmatrix.report.plots import Chart, plots, svg
from hwmatrix.report.rows import read
from hwmatrix.report.write import write_reports

if TYPE_CHECKING:
    from pathlib import Path


SVG = "{http://www.w3.org/2000/svg}"


def by_name(path: Path) -> dict[str, Chart]:
    return {chart.name: chart for chart in charts(read(path))}


def rows(chart: Chart) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chart.spec["datasets"]["rows"]
    return found


def test_the_matrix_chart_also_shows_statuses_as_words(tmp_path: Path) -> None:
    found = rows(by_name(example(tmp_path / "m.duckdb"))["matrix"])
    told = {
        (row["model"].split()[0], row["column"]): (row["state"], row["short"]) for row in found
    }  # two sizes, so models are labeled with their settings
    assert told["bert", "openvino"] == ("right", "High")
    assert told["bert", "gpu"] == ("no verdict", "unavailable")
    assert told["model-crash", "openvino"] == ("fails", "crash")


def test_charts_include_only_hardware_measurements(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        for target in ("cpu", "qnn", "webgpu"):
            database.shard(target, target)
        database.cell(database.plan("bert", "cpu"), "cpu", wall=steady(4.0))
        database.cell(database.plan("bert", "qnn", execution="emulated"), "qnn", wall=steady(900.0))
        database.cell(database.plan("bert", "webgpu", execution="software"), "webgpu", wall=steady(90.0))
    found = by_name(path)
    assert set(found) == {"matrix", "families", "latency", "memory"}
    assert [row["column"] for row in rows(found["latency"])] == ["cpu"]
    assert [row["column"] for row in rows(found["memory"])] == ["cpu"]


def test_cells_are_distinguished_by_settings_and_precisions(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s", "cuda")
        for number, (dtype, batch) in enumerate((("float32", 1), ("float16", 1), ("float32", 8))):
            planned = database.plan("bert", "cuda", dtype=dtype, batch=batch, cell_key=str(number))
            database.cell(planned, "s", wall=steady(1.0 + batch), device_peak_mb=100.0 * batch)
    found = by_name(path)
    assert {(row["model"], row["column"]) for row in rows(found["latency"])} == {
        ("bert (batch 1)", "cuda float32"),
        ("bert (batch 1)", "cuda float16"),
        ("bert (batch 8)", "cuda float32"),
    }
    assert {(row["setting"], row["value"]) for row in rows(found["scaling"])} == {("batch", 1), ("batch", 8)}
    assert {row["kind"] for row in rows(found["memory"])} == {"device peak"}
    assert svg(found["scaling"])


def test_cells_of_one_name_have_the_same_settings(tmp_path: Path) -> None:
    """A full model that was timed on cuda alone must not share a row with a tiny one that was timed on cpu alone."""
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        for target, size in (("cpu", "tiny"), ("cuda", "full")):
            database.shard(target, target)
            database.cell(database.plan("bert", target, size=size), target, wall=steady(1.0))
    assert [(row["model"], row["column"]) for row in rows(by_name(path)["latency"])] == [("bert (tiny)", "cpu"), ("bert (full)", "cuda")]


def test_a_target_in_two_isolations_is_drawn_once_or_named_by_them(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.plan("bert", "rocm", unavailable="no AMD driver")
        for number, (target, isolation) in enumerate((("cuda", "none"), ("cpu", "none"), ("cpu", "venv"))):
            database.shard(f"s{number}", target, isolation=isolation)
            planned = database.plan("bert", target, cell_key=f"{number}")
            database.cell(planned, f"s{number}", wall=steady(1.0))
    rocm, *ran = read(path).cells
    absent = dataclasses.replace(rocm, target="cuda", column_isolation=Isolation.CONTAINER)
    shown = drawing._matrix(grid.build([absent, *ran]))
    assert shown is not None
    assert {(row["column"], row["state"]) for row in rows(shown)} == {("cuda", "right"), ("cpu (none)", "right"), ("cpu (venv)", "right")}
    assert "on 2 targets in 3 columns" in shown.alt


def test_very_many_models_are_shown_by_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "LARGEST_LIST", 2)
    monkeypatch.setattr(drawing, "LARGEST_MATRIX", 2)
    found = by_name(example(tmp_path / "m.duckdb"))
    assert "matrix" not in found
    assert found["latency"].title == "Latency on hardware, one forward pass"
    assert {"family", "column", "value"} == set(rows(found["latency"])[0])
    ET.fromstring(svg(found["latency"]))  # noqa: S314 - written here


def test_a_run_without_measurements_has_only_the_matrix(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.plan("bert", "cuda", unavailable="no driver")
    assert set(by_name(path)) == {"matrix"}


def test_every_chart_has_a_description(tmp_path: Path) -> None:
    shown = charts(read(example(tmp_path / "m.duckdb")))
    assert {chart.name for chart in shown} == {"matrix", "families", "latency", "memory", "tradeoffs"}
    drawn = plots(shown)
    assert list(drawn) == [f"{chart.name}.svg" for chart in shown]
    for chart in shown:
        text = drawn[f"{chart.name}.svg"]
        title, description, *_ = ET.fromstring(text)  # noqa: S314 - written here
        assert (title.tag, title.text) == (f"{SVG}title", chart.title)
        assert (description.tag, description.text) == (f"{SVG}desc", chart.alt)
        assert "http" not in text.replace("http://www.w3.org/", "")
    assert all(chart.alt for chart in shown)
    assert len({chart.alt for chart in shown}) == len(shown)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"quotes" & ampersands', "\x1b[31mred", "x" * 500])
def test_hostile_names_are_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s", "cpu")
        database.cell(database.plan(name, "cpu"), "s", wall=steady(1.0))
    drawn = plots(charts(read(path)))
    assert "matrix.svg" in drawn
    for text in drawn.values():
        assert not any(element.tag.endswith("script") for element in ET.fromstring(text).iter())  # noqa: S314 - written here


def test_a_target_looks_the_same_in_every_chart_of_a_run(tmp_path: Path) -> None:
    """The chart of speedups has no cpu, but openvino keeps its color and shape."""
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        for target, p50 in (("cpu", 4.0), ("openvino", 2.0)):
            database.shard(target, target)
            database.cell(database.plan("bert", target, size="full"), target, wall=steady(p50))
    found = by_name(tmp_path / "m.duckdb")
    points = {
        "latency": found["latency"].spec["layer"][1]["encoding"],
        "speedup": found["speedup"].spec["layer"][1]["encoding"],
        "memory": found["memory"].spec["encoding"],
    }
    for channel in ("color", "shape"):
        looks = {}
        for name, encoding in points.items():
            scale = encoding[channel]["scale"]
            looks[name] = dict(zip(scale["domain"], scale["range"], strict=True))
        assert set(looks["speedup"]) == {"openvino"}
        assert looks["latency"].keys() >= {"cpu", "openvino"}
        assert looks["speedup"]["openvino"] == looks["latency"]["openvino"] == looks["memory"]["openvino"]
        assert looks["latency"]["cpu"] != looks["latency"]["openvino"]


def test_many_columns_look_different_and_stand_together_by_target(tmp_path: Path) -> None:
    """There are eight colors and eight shapes; the ninth column has the first color with another shape."""
    path = tmp_path / "m.duckdb"
    precisions = ("float32", "float16", "bfloat16", "int8", "int8_dynamic", "int4", "a8w8")
    with Database(path) as database:
        database.run()
        for target in ("cpu", "openvino", "onnxruntime"):
            database.shard(f"s-{target}", target)
            for dtype in reversed(precisions):
                planned = database.plan("bert", target, dtype=dtype, cell_key=f"{target}/{dtype}")
                database.cell(planned, f"s-{target}", wall=steady(2.0), delta_mb=60.0)
    encoding = by_name(path)["memory"].spec["encoding"]
    columns = encoding["shape"]["scale"]["domain"]
    looks = set(zip(encoding["color"]["scale"]["range"], encoding["shape"]["scale"]["range"], strict=True))
    assert len(looks) == len(columns) == 3 * len(precisions)
    assert [column.split()[0] for column in columns] == ["cpu"] * 7 + ["openvino"] * 7 + ["onnxruntime"] * 7
    assert [column.split()[1] for column in columns[::7]] == ["float32"] * 3


def test_a_history_of_two_runs(tmp_path: Path) -> None:
    path = tmp_path / "h.duckdb"
    with Database(path) as database:
        for day, (run_id, p50_ms) in enumerate((("a", 2.0), ("b", 3.0), ("c", None)), start=1):
            database.run(run_id, created_at=BEGIN.replace(day=day))
            database.shard(run_id, "cpu", run_id)
            changes = {} if p50_ms else unmeasured("crash")
            database.cell(database.plan("bert", "cpu", run_id), run_id, wall=steady(p50_ms) if p50_ms else (), **changes)
    found = {chart.name: chart for chart in history_charts(read_runs(path), read_trends(path))}
    assert [row["ratio"] for row in rows(found["trend"])] == [pytest.approx(1.0), pytest.approx(1.5)]
    assert [row["cells"] for row in rows(found["status_trend"]) if row["state"] == "fail"] == [0, 0, 1]
    assert history_charts(read_runs(path)[:1], ()) == ()
    assert len(plots(found.values())) == 2


def test_plots_of_an_earlier_run_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_reports(example(tmp_path / "m.duckdb"), out)
    (out / "plots" / "scaling.svg").write_text("of another run", encoding="utf-8")
    (out / "plots" / "mine.txt").write_text("not ours", encoding="utf-8")
    write_reports(tmp_path / "m.duckdb", out)
    assert not (out / "plots" / "scaling.svg").exists()
    assert (out / "plots" / "mine.txt").exists()
    assert "](plots/latency.svg)" in (out / "summary.md").read_text(encoding="utf-8")


def test_a_chart_of_too_many_values_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = example(tmp_path / "m.duckdb")
    whole = {chart.name: len(chart.spec["datasets"]["rows"]) for chart in charts(read(path))}
    most = max(whole.values()) - 1
    monkeypatch.setattr(drawing, "MOST_VALUES", most)
    few = {name for name, count in whole.items() if count <= most}
    assert {chart.name for chart in charts(read(path))} == few
    assert [name in caplog.text for name in whole if name not in few] == [True] * (len(whole) - len(few))
    assert f"at most {most} can be drawn" in caplog.text


@pytest.mark.parametrize(("columns", "parts"), [(15, [15]), (16, [8, 8]), (29, [15, 14])])
def test_a_wide_matrix_continues_below(tmp_path: Path, columns: int, parts: list[int]) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("cpu", "cpu")
        database.cell(database.plan("bert", "cpu"), "cpu", wall=steady(1.0))
    (one,) = read(path).cells
    cells = [dataclasses.replace(one, target=f"target{number:02}") for number in range(columns)]
    chart = drawing._matrix(grid.build(cells))
    assert chart is not None
    found = rows(chart)
    assert [sum(row["part"] == part for row in found) for part in range(len(parts))] == parts
    assert [row["column"] for row in found] == sorted(row["column"] for row in found)
    assert ("facet" in chart.spec) == (len(parts) > 1)
    assert svg(chart).count("target") >= columns
