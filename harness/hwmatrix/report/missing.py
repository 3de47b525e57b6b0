"""What a run does not contain, in sentences: the page of an incomplete run says so instead of showing empty tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwmatrix.basics.text import plural
from hwmatrix.records import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hwmatrix.report.rows import CellRow, ReportRows


def missing(rows: ReportRows) -> tuple[str, ...]:
    """A sentence for each missing part, the most important first; none for a complete run."""
    return (*_not_executed(rows.cells), *_not_measured(rows.cells), *_not_merged(rows))


def _not_executed(cells: Sequence[CellRow]) -> Iterator[str]:
    if not cells:
        yield "The run planned no cells, so there is no matrix."
    elif not _executed(cells):
        yield "No cell was executed: there are no verdicts, no latencies and no memory. Every cell says why."
    elif not _passed(cells):
        yield "No cell passed: there is no latency and no memory to compare."


def _not_measured(cells: Sequence[CellRow]) -> Iterator[str]:
    passed = _passed(cells)
    if passed and not any(cell.samples for cell in passed):
        yield "No samples were recorded: there are no latencies and no speedups over cpu."
    if passed and not any(cell.peak_mb is not None or cell.delta_mb is not None for cell in passed):
        yield "No memory was recorded."


def _not_merged(rows: ReportRows) -> Iterator[str]:
    without = sorted({target.name for target in rows.targets if target.shard_id is None and target.unavailable is None})
    if without:
        yield f"No shard of {', '.join(without)} was merged: its cells are “not run”."
    if rows.rejected:
        yield f"The merge rejected {plural(len(rows.rejected), 'shard')}: see the errors."


def _executed(cells: Sequence[CellRow]) -> list[CellRow]:
    return [cell for cell in cells if cell.cell_id is not None and cell.status is not Status.UNAVAILABLE]


def _passed(cells: Sequence[CellRow]) -> list[CellRow]:
    return [cell for cell in cells if cell.status is Status.PASS]
