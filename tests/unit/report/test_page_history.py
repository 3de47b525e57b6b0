"""The history on the page: where it is searched, what it shows, and the text if there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from factory_rows import BEGIN, Database, steady

from hwmatrix.errors import StoreError
from hwmatrix.report.page_history import MOST_TRENDS, page_history
from hwmatrix.report.write import write_reports

if TYPE_CHECKING:
    from pathlib import Path


def history(path: Path, *, runs: int = 2, models: int = 1, faster: float = 0.9) -> Path:
    """Runs in which every model gets faster, the last model most."""
    with Database(path) as database:
        for run in range(runs):
            name = f"run-{run}"
            database.run(name, created_at=BEGIN.replace(day=2 + run))
            database.shard(f"s-{run}", "cpu", run_id=name)
            for model in range(models):
                p50 = 10.0 * (faster ** (run * (model + 1)))
                database.cell(database.plan(f"m{model}", "cpu", run_id=name), f"s-{run}", wall=steady(p50, count=9))
    return path


def test_without_a_history_the_page_says_how_to_get_one(tmp_path: Path) -> None:
    found = page_history(None, tmp_path)
    assert found.charts == ()
    assert "hwmatrix history --add" in found.told


def test_the_history_beside_the_folder_is_used(tmp_path: Path) -> None:
    history(tmp_path / "history.duckdb")
    found = page_history(None, tmp_path)
    assert [chart.name for chart in found.charts] == ["status_trend", "trend"]
    assert [run.run_id for run in found.runs] == ["run-0", "run-1"]
    assert found.told == ""


def test_one_run_is_no_trend(tmp_path: Path) -> None:
    found = page_history(history(tmp_path / "h.duckdb", runs=1), tmp_path)
    assert found.charts == ()
    assert len(found.runs) == 1
    assert found.told.startswith("The history has 1 run:")


def test_only_the_cells_that_changed_most_are_drawn(tmp_path: Path) -> None:
    found = page_history(history(tmp_path / "h.duckdb", models=MOST_TRENDS + 5, faster=0.99), tmp_path)
    (trend,) = [chart for chart in found.charts if chart.name == "trend"]
    drawn = {row["cell"].split()[0] for row in trend.spec["datasets"]["rows"]}
    assert drawn == {f"m{model}" for model in range(5, MOST_TRENDS + 5)}
    assert found.told == "Latency is drawn for the 60 cells that changed most; 5 others changed less."


def test_a_requested_history_that_is_broken_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "h.duckdb").write_text("no database", encoding="utf-8")
    with pytest.raises(StoreError, match=r"h\.duckdb"):
        page_history(tmp_path / "h.duckdb", tmp_path)
    with pytest.raises(StoreError, match="there is no such file"):
        page_history(tmp_path / "none.duckdb", tmp_path)


def test_a_broken_default_history_is_reported_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "history.duckdb").write_text("no database", encoding="utf-8")
    write_reports(history(tmp_path / "m.duckdb", runs=1), tmp_path / "latest")
    text = (tmp_path / "latest" / "index.html").read_text(encoding="utf-8")
    assert "The history beside these reports cannot be shown" in text
