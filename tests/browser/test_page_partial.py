"""Runs that hold next to nothing give a page that works and says what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from factory_rows import RUN, Database, unmeasured

from hwmatrix.report.page import VIEWS
from hwmatrix.report.write import write_reports

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chromium import Page

pytestmark = pytest.mark.containers


def nothing_planned(_: Database) -> None:
    """A run of which only the name is known."""


def only_unavailable(database: Database) -> None:
    for model in ("bert", "vit"):
        database.plan(model, "cuda", unavailable="no NVIDIA driver")


def nothing_executed(database: Database) -> None:
    database.plan("bert", "cpu")


def without_samples(database: Database) -> None:
    database.shard("s-cpu", "cpu")
    database.cell(database.plan("bert", "cpu"), "s-cpu", peak_mb=None, delta_mb=None)


def only_failures(database: Database) -> None:
    database.shard("s-cpu", "cpu")
    for status in ("crash", "oom"):
        database.cell(database.plan(f"model-{status}", "cpu"), "s-cpu", **unmeasured(status))


CASES = {
    nothing_planned: "The run planned no cells",
    only_unavailable: "No cell was executed",
    nothing_executed: "No shard of cpu was merged",
    without_samples: "No samples were recorded",
    only_failures: "No cell passed",
}


@pytest.mark.parametrize("fill", CASES, ids=lambda fill: fill.__name__)
def test_it_says_what_is_missing_and_every_view_opens(
    page: Page, folder: Path, address: Callable[[Path], str], fill: Callable[[Database], None]
) -> None:
    place = folder / fill.__name__
    place.mkdir()
    with Database(place / "m.duckdb") as database:
        database.run()
        fill(database)
    write_reports(place / "m.duckdb", place / "latest", run_id=RUN)
    url = address(place / "latest" / "index.html")
    page.go(url)
    assert CASES[fill] in page.evaluate("document.querySelector('#view-overview .notice').innerText")
    for view in VIEWS:
        page.go(f"{url}#view={view}")
        page.wait(f"!document.getElementById('view-{view}').hidden")
        page.settle()
        assert len(page.evaluate(f"document.getElementById('view-{view}').innerText")) > len(view) + 20
    assert page.complaints() == []
