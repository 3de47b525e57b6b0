"""How models were compiled, by target: as a whole or in pieces, how long that takes, and why the compiler stopped."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

from hwmatrix.basics.text import plural
from hwmatrix.report import grid, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwmatrix.report.rows import CellRow


@dataclasses.dataclass(frozen=True, kw_only=True)
class Break:
    """A place in a model's code at which the compiler gives up, with the reason, and the models that come there."""

    reason: str
    models: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compilations:
    """The compiled cells of a target: how many are one graph without a break, and how many compiled again in later runs.

    Times are medians in milliseconds, with an empty cache and with the one that the first compilation left.
    """

    column: grid.Column
    cells: int
    whole: int
    broken: int
    recompiled: int
    compile_ms: float | None
    cached_compile_ms: float | None
    breaks: tuple[Break, ...]


def compilations(cells: Iterable[CellRow]) -> tuple[Compilations, ...]:
    """One entry for each target and precision with compiled cells, in the order of the matrix; the breaks of most models first."""
    by_column: dict[grid.Column, list[CellRow]] = defaultdict(list)
    for cell in cells:
        if cell.graphs is not None:
            by_column[grid.Column(target=cell.target, isolation=cell.column_isolation, dtype=cell.dtype.value)].append(cell)
    return tuple(_of(column, found) for column, found in by_column.items())


def _of(column: grid.Column, cells: list[CellRow]) -> Compilations:
    models: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        for reason in cell.break_reasons or ():
            models[reason].append(cell.model)
    breaks = (Break(reason=reason, models=tuple(dict.fromkeys(found))) for reason, found in models.items())
    return Compilations(
        column=column,
        cells=len(cells),
        whole=sum(is_whole(cell) for cell in cells),
        broken=sum(bool(cell.graph_breaks) for cell in cells),
        recompiled=sum(bool(cell.recompilations) for cell in cells),
        compile_ms=_median(cell.compile_ms for cell in cells),
        cached_compile_ms=_median(cell.cached_compile_ms for cell in cells),
        breaks=tuple(sorted(breaks, key=lambda each: (-len(each.models), each.reason))),
    )


def is_whole(cell: CellRow) -> bool:
    """Whether a compiled model is a single graph, as ``fullgraph=True`` demands."""
    return cell.graphs == 1 and not cell.graph_breaks


def sentence(cell: CellRow) -> str | None:
    """How a cell's model was compiled; None if it was not."""
    if cell.graphs is None:
        return None
    breaks = cell.graph_breaks or 0
    how = "as one graph" if is_whole(cell) else f"{plural(cell.graphs, 'graph')}, {plural(breaks, 'graph break')}"
    parts = [how]
    if cell.compile_ms is not None:
        parts.append(f"{numbers.number(cell.compile_ms / 1000)} s")
    if cell.cached_compile_ms is not None:
        parts.append(f"{numbers.number(cell.cached_compile_ms / 1000)} s from its cache")
    if cell.recompilations:
        parts.append(f"{plural(cell.recompilations, 'graph')} compiled again in later runs")
    return ", ".join(parts)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
