"""Errors of a run by cause: the type with recommendations, then the location, then the cells."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hwmatrix.faults.grouping import AdviceGroup, by_advice
from hwmatrix.records import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwmatrix.report.failures import Failure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Occurrence:
    """One message in one stage on one target. ``cells`` are keys of cells; an error outside all cells has none."""

    target: str | None
    component: str
    message: str
    cells: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cause:
    """All errors of one type with the same advice."""

    type: str
    severity: Severity
    summary: str
    recommendations: tuple[str, ...]
    count: int
    occurrences: tuple[Occurrence, ...]


def grouped(found: Iterable[Failure]) -> tuple[AdviceGroup[Failure], ...]:
    """The errors of a run, grouped by advice."""
    return by_advice(found, lambda failure: failure.entry, lambda failure: failure.cell.backend if failure.cell else "any")


def causes(found: Iterable[Failure]) -> tuple[Cause, ...]:
    """The causes of errors, in their order; within a cause, the message of most cells comes first."""
    return tuple(
        Cause(
            type=group.type,
            severity=group.severity,
            summary=group.summary,
            recommendations=group.recommendations,
            count=len(group.members),
            occurrences=_occurrences(group.members),
        )
        for group in grouped(found)
    )


def _occurrences(group: Iterable[Failure]) -> tuple[Occurrence, ...]:
    same: dict[tuple[str | None, str, str], list[str]] = {}
    for failure in group:
        entry = failure.entry
        cells = same.setdefault((entry.hardware_type, entry.component, entry.message), [])
        if failure.cell is not None:
            cells.append(failure.cell.cell_key)
    made = [
        Occurrence(target=target, component=component, message=message, cells=tuple(cells))
        for (target, component, message), cells in same.items()
    ]
    return tuple(sorted(made, key=lambda each: -len(each.cells)))
