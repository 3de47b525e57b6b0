"""The confidence in each cell, by its timing and newer images of its target, in summary.md, why and show."""

from __future__ import annotations

import datetime as dt
import signal
from pathlib import Path
from typing import Any

import pytest
from factory_rows import BEGIN, RUN, Database, steady, unmeasured

from hwmatrix.cli import main
from hwmatrix.report.markdown import matrix_md, summary_md
from hwmatrix.report.rows import read

RECORDED = Path(__file__).parents[2] / "recorded"
OLD, NEW = "sha256:" + "0" * 64, "sha256:" + "1" * 64
CONVERGED, DISTURBED, FEW, MOVED = (
    "its timing did not converge",
    "it was disturbed while it was timed",
    "it has fewer than 30 samples",
    "its target has a newer image",
)


def doubts(path: Path) -> dict[str, list[str]]:
    """The models by reason for low confidence."""
    found: dict[str, list[str]] = {}
    for row in read(path).analysis.doubts:
        found.setdefault(row["doubt"], []).append(row["model"])
    return found


def section(text: str) -> str:
    return text.split("## Confidence\n", 1)[1]


@pytest.fixture
def shaky(tmp_path: Path) -> Path:
    """A database with a cell for each problem of timing, and some without problems."""
    with Database(tmp_path / "matrix.duckdb") as database:
        database.run()
        database.shard("s", "cpu")
        database.shard("q", "qnn")

        def cell(model: str, **how: Any) -> None:
            database.cell(database.plan(model, "cpu"), "s", **({"wall": steady(2.0), "converged": True} | how))

        cell("sure")
        cell("thirty", wall=steady(2.0, count=30))
        cell("few", wall=steady(2.0, count=29), converged=False)
        cell("wide", converged=False)
        cell("busy", busy=0.5)
        cell("never-timed", wall=(), converged=None)
        database.cell(database.plan("broken", "cpu"), "s", **unmeasured("crash"))
        emulated = database.plan("emulated", "qnn", execution="emulated")
        database.cell(emulated, "q", wall=steady(2.0, count=5), converged=False)
    return tmp_path / "matrix.duckdb"


def test_low_confidence_because_of_timing(shaky: Path) -> None:
    assert doubts(shaky) == {CONVERGED: ["few", "wide"], DISTURBED: ["busy"], FEW: ["few"]}
    told = section(summary_md(read(shaky)))
    assert "8 cells were executed, 5 of them timed." in told
    assert "`few` on cpu (container), `wide` on cpu (container)" in told
    assert "[summary.md](summary.md#confidence)" in matrix_md(read(shaky))


def test_a_newer_image(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("first", "cpu", image_digest=OLD)
        database.shard("second", "cpu", image_digest=NEW, started_at=BEGIN + dt.timedelta(hours=1))
        database.shard("venv", "cpu", isolation="venv", image_digest="other", started_at=BEGIN + dt.timedelta(hours=2))
        database.shard("ov", "openvino", image_digest=OLD)
        for model, shard in (("old", "first"), ("new", "second")):
            database.cell(database.plan(model, "cpu"), shard, wall=steady(2.0))
        database.cell(database.plan("elsewhere", "openvino"), "ov", wall=steady(2.0))
    assert doubts(path) == {MOVED: ["old"]}
    (row,) = read(path).analysis.doubts
    assert row["detail"] == f"executed in {OLD}, the newest is {NEW}"


def test_a_newer_run_of_the_database_counts(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        for run, digest, later in ((RUN, OLD, 0), ("run-2", NEW, 1)):
            begin = BEGIN + dt.timedelta(hours=later)
            database.run(run, created_at=begin)
            database.shard(f"s-{run}", "cpu", run, image_digest=digest, started_at=begin)
            database.cell(database.plan("bert", "cpu", run), f"s-{run}", wall=steady(2.0))
    assert doubts(path) == {}
    assert [row["doubt"] for row in read(path, RUN).analysis.doubts] == [MOVED]


def test_full_confidence(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s", "cpu")
        for model, minute in (("newer", 9), ("older", 2)):
            begun = BEGIN + dt.timedelta(minutes=minute)
            database.cell(database.plan(model, "cpu"), "s", wall=steady(2.0), converged=True, started_at=begun)
    rows = read(tmp_path / "m.duckdb")
    told = section(summary_md(rows))
    assert "The evidence is from 2026-01-02 03:06 to 2026-01-02 03:13 UTC; the oldest is `older` on cpu (container)." in told
    assert "Every timed cell converged, undisturbed" in told
    assert "#confidence" not in matrix_md(rows)


def test_nothing_was_executed(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s", "cpu")
        database.plan("bert", "cpu")
        database.cell(database.plan("vit", "cpu"), "s", **unmeasured("unavailable"))
    rows = read(tmp_path / "m.duckdb")
    assert (rows.analysis.span, rows.analysis.doubts) == ((), ())
    assert section(summary_md(rows)).strip() == "No cell was executed."


def test_published_results_of_an_older_schema() -> None:
    found = doubts(RECORDED / "performance.duckdb")
    assert {doubt: len(models) for doubt, models in found.items()} == {CONVERGED: 17, FEW: 17}
    assert "qnn" not in section(summary_md(read(RECORDED / "default.duckdb")))


def test_why_and_show_report_it(shaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main.main(["why", "few", "cpu", "--database", str(shaky)]) == 0
        told = capsys.readouterr().out
        assert f"  doubt:      {FEW}: 29 samples" in told
        assert f"  doubt:      {CONVERGED}: time was up" in told
        assert "  evidence:   executed 2026-01-02 03:04 UTC in container, image c0ffeec0ffee" in told
        assert main.main(["why", "sure", "cpu", "--database", str(shaky)]) == 0
        assert "doubt" not in capsys.readouterr().out
        assert main.main(["show", "--database", str(shaky)]) == 0
        told = capsys.readouterr().out
        assert f"2 cells in doubt: {CONVERGED} (hwmatrix why MODEL TARGET)" in told
        assert main.main(["show", "--models", "sure", "--database", str(shaky)]) == 0
        assert "in doubt" not in capsys.readouterr().out
    finally:
        signal.signal(signal.SIGTERM, before)
