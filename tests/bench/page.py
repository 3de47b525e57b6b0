"""Measures the page of 650 models on 8 targets in a real headless Chromium, and writes the section `page` of docs/benchmarks.md.

The matrix consists of repeated real rows (tests/browser/repeated_rows.py), so it measures only the page, not models. Run it with
``nox -s bench_page``; the load average is recorded with the numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "browser"), str(ROOT / "tests" / "unit")]

from chromium import Browser  # noqa: E402 - it lies beside, in no package
from repeated_rows import MODELS, TARGETS, repeated_rows  # noqa: E402 - as above
from sections import put  # noqa: E402 - as above
from starting import start  # noqa: E402 - as above

from hwmatrix.hardware.cpu import cpuinfo  # noqa: E402 - after the path
from hwmatrix.report.drawing import chart_library  # noqa: E402 - as above
from hwmatrix.report.plots import plots  # noqa: E402 - as above
from hwmatrix.report.write import rendered, write_reports  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable

    from chromium import Page

TYPED: Final = "bert"
CHOSEN: Final = (0, 2, 3)
"""The filters, by position in the bar: family, target, status."""
SCROLLS: Final = 60
RENDERED: Final = 6
"""How often the texts are rendered."""
_SCROLL: Final = """
(async () => {
    const grid = document.getElementById("matrix"), frames = [];
    let last = performance.now();
    for (let step = 0; step < %d; step += 1) {
        grid.scrollTop += 470;
        await new Promise(requestAnimationFrame);
        frames.push(performance.now() - last);
        last = performance.now();
    }
    return frames;
})()
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Visit:
    """One load of the page. Milliseconds since the navigation started; for keys and frames, the milliseconds that each took."""

    grid: float
    interactive: float
    handled: tuple[float, ...]
    painted: tuple[float, ...]
    chosen: tuple[float, ...]
    frames: tuple[float, ...]
    complaints: tuple[str, ...]
    foreign: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendering:
    """The seconds to render the reports: the drawing library (once per process), the texts (the first time, then repeated), the plots."""

    library: float
    first: float
    texts: tuple[float, ...]
    pictures: float


def rendered_in(database: Path, folder: Path) -> Rendering:
    """Write the reports into a folder, and return how long their parts take."""
    library = _seconds(lambda: chart_library(None))
    first, *texts = (_seconds(lambda: rendered(database, folder)) for _ in range(RENDERED))
    _, drawn = rendered(database, folder)
    pictures = _seconds(lambda: plots(drawn))
    write_reports(database, folder)
    return Rendering(library=library, first=first, texts=tuple(sorted(texts)), pictures=pictures)


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> int:
    """Measure and write the section. Return 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks.md")
    parser.add_argument("--visits", type=int, default=7)
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="hwmatrix-page-") as scratch:
        folder, own = Path(scratch) / "pages", Path(scratch) / "own"
        folder.mkdir(mode=0o755)
        own.mkdir()
        Path(scratch).chmod(0o755)
        rendering = rendered_in(repeated_rows(own / "repeated.duckdb"), folder / "latest")
        size = (folder / "latest" / "index.html").stat().st_size
        begun = start(folder, own / "profile")
        with Browser(begun.command, stderr=own / "stderr") as browser:
            product = browser.product
            visits = [visit(browser, begun.address("latest/index.html")) for _ in range(arguments.visits)]
    section, met = section_of(size, visits, f"{product} ({begun.told})", before, rendering)
    put(arguments.output, "page", section)
    sys.stdout.write(section)
    return 0 if met else 1


def _times(found: list[float], goal: int) -> tuple[str, str, bool]:
    """The median and the slowest of sorted times, the goal of the median, and whether it is met."""
    median = statistics.median(found)
    return f"{median:.0f} ms (slowest {found[-1]:.0f})", f"under {goal:,} ms", median < goal


def visit(browser: Browser, url: str) -> Visit:
    """Open the matrix, type into its search box as soon as it exists, then scroll through it."""
    page = browser.open()
    page.size(1280)
    page.go(f"{url}#view=matrix")
    page.wait("window.hwmatrixPage?.times.grid")
    page.evaluate("document.getElementById('search').focus()")
    handled, painted = zip(*(_key(page, letter) for letter in TYPED), strict=True)
    times = page.evaluate("window.hwmatrixPage.times")
    page.evaluate("Links.go({q: ''})")
    chosen = tuple(_choice(page, at) for at in (*CHOSEN, *CHOSEN))
    frames = tuple(page.evaluate(_SCROLL % SCROLLS))
    found = Visit(
        grid=times["grid"],
        interactive=times["first_filtered"],
        handled=handled,
        painted=painted,
        chosen=chosen,
        frames=frames,
        complaints=tuple(page.complaints()),
        foreign=tuple(request for request in page.requests() if not request.startswith(url)),
    )
    page.close()
    return found


def _key(page: Page, letter: str) -> tuple[float, float]:
    page.press(letter)
    page.wait("window.hwmatrixPage.times.painted_ms !== null")
    times = page.evaluate("window.hwmatrixPage.times")
    return times["filtered_ms"], times["painted_ms"]


def _choice(page: Page, at: int) -> float:
    """Toggle the first choice of a filter."""
    page.evaluate(f"document.querySelectorAll('#choices details')[{at}].open = true")
    page.wait("document.querySelector('#choices details[open] input') !== null")
    page.evaluate("document.querySelector('#choices details[open] input').click()")
    page.wait("window.hwmatrixPage.times.painted_ms !== null")
    page.evaluate("document.querySelector('#choices details[open]').open = false")
    return float(page.evaluate("window.hwmatrixPage.times.painted_ms"))


def section_of(size: int, visits: list[Visit], browser: str, before: float, rendering: Rendering) -> tuple[str, bool]:
    """The section, and whether all goals were met."""
    interactive = sorted(each.interactive for each in visits)
    painted = sorted(time for each in visits for time in each.painted)
    chosen = sorted(time for each in visits for time in each.chosen)
    frames = sorted(time for each in visits for time in each.frames)
    complaints = {complaint for each in visits for complaint in each.complaints}
    foreign = {request for each in visits for request in each.foreign}
    texts = statistics.median(rendering.texts)
    lines = [
        ("All reports as texts", f"{texts:.2f} s (slowest {rendering.texts[-1]:.2f})", "under 2 s", texts < 2),
        ("Size of index.html", f"{size / 1e6:.1f} MB", "under 8 MB", size < 8e6),
        ("Interactive", *_times(interactive, 1500)),
        ("Filtering, a key", *_times(painted, 100)),
        ("Filtering, a choice", *_times(chosen, 100)),
        ("A frame while scrolling", f"{statistics.median(frames):.0f} ms (slowest {frames[-1]:.0f})", "", True),
        ("Console errors and warnings", str(len(complaints)), "0", not complaints),
        ("Requests to other addresses", str(len(foreign)), "0", not foreign),
    ]
    rows = "\n".join(f"| {name} | {value} | {goal} | {'yes' if met else '**no**'} |" for name, value, goal, met in lines)
    grid = statistics.median(each.grid for each in visits)
    handled = statistics.median(time for each in visits for time in each.handled)
    machine = cpuinfo().get("model name", platform.machine())
    section = f"""## The page of {MODELS} models on {len(TARGETS)} targets

Written by `nox -s bench_page`. The matrix consists of rows of a published run, repeated under other names: it says nothing about models.
Times are medians of {len(visits)} loads in {browser}.

| What | Measured | Goal | Met |
| --- | --- | --- | --- |
{rows}

{dt.datetime.now(dt.UTC):%Y-%m-%d}, {machine}, {os.cpu_count()} cores, load {before:.1f} before and {os.getloadavg()[0]:.1f} after.

- **All reports as texts**: from the database to index.html, Markdown and JSON, without writing them. The first time in a process it takes
  {rendering.first:.2f} s, because templates are read. Plots are not included: {rendering.library:.2f} s once per process to assemble the
  drawing library, {rendering.pictures:.2f} s to draw.
- **Interactive**: from the start of the navigation until the grid exists ({grid:.0f} ms) and has handled a key typed into its search box.
- **Filtering**: from the event until the rows are painted; until they are in the document, {handled:.0f} ms for a key. A choice is a
  family, a target or a status, checked or unchecked.
- **A frame while scrolling**: {SCROLLS} steps of about ten rows each.
"""
    return section, all(met for *_, met in lines)


if __name__ == "__main__":
    sys.exit(main())
