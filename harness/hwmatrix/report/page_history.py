"""The history on the page: charts over runs, or the reason why there are none."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import StoreError
from hwmatrix.records import Execution, Status
from hwmatrix.report.charts import history_charts
from hwmatrix.report.history import RunSummary, read_runs, read_trends
from hwmatrix.report.plots import Chart

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.report.history import Trend

FILE: Final = "history.duckdb"
"""The history beside a folder of reports."""
MOST_TRENDS: Final = 60
"""The most cells whose latency is drawn over time: those that changed most."""
_HOW: Final = "Add runs with hwmatrix history --add FOLDER; hwmatrix report then shows them."


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageHistory:
    """Runs, oldest first, and charts over them. ``told`` says what is missing, or which cells are drawn."""

    runs: tuple[RunSummary, ...] = ()
    charts: tuple[Chart, ...] = ()
    told: str = f"No history was given. {_HOW}"


def page_history(given: Path | None, beside: Path | None) -> PageHistory:
    """Read the given history, or else the one in the folder ``beside``, if there is one.

    If the latter, which nobody requested, cannot be read, the page says so.

    Raises:
        StoreError: the given history cannot be read.
    """
    if given is not None:
        return _read(given)
    if beside is None or not (beside / FILE).is_file():
        return PageHistory()
    try:
        return _read(beside / FILE)
    except StoreError as error:
        return PageHistory(told=f"The history beside these reports cannot be shown: {error}")


def _read(database: Path) -> PageHistory:
    runs = read_runs(database)
    if len(runs) < 2:  # noqa: PLR2004 - one run is no trend
        return PageHistory(runs=runs, told=f"The history has {len(runs) or 'no'} run{'s' * (not runs)}: a trend needs two. {_HOW}")
    trends = read_trends(database)
    moved = sorted(((distance, number) for number, trend in enumerate(trends) if (distance := _latency_change(trend)) > 0), reverse=True)
    kept = {number for _, number in moved[:MOST_TRENDS]}
    left_out = len(moved) - len(kept)
    told = f"Latency is drawn for the {MOST_TRENDS} cells that changed most; {left_out:,} others changed less." if left_out else ""
    return PageHistory(runs=runs, charts=history_charts(runs, [trend for number, trend in enumerate(trends) if number in kept]), told=told)


def _latency_change(trend: Trend) -> float:
    """How much a cell's last median differs from its first on the same machine, in either direction. 0: not measured twice."""
    timed = [
        moment for moment in trend.moments if moment.p50_ms and moment.status is Status.PASS and moment.execution is Execution.HARDWARE
    ]
    times = [moment.p50_ms for moment in timed if moment.p50_ms and moment.host == timed[-1].host]
    return abs(math.log(times[-1] / times[0])) if len(times) > 1 else 0.0
