"""Errors of a run by cause: the type with recommendations, then the location, then the cells."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING

from hwmatrix.faults.catalogue import entry_for
from hwmatrix.records import Severity
from hwmatrix.report.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Occurrence:
    """One message in one stage on one target. ``cells`` are keys of cells; an error outside of any has none."""

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Errors of one type with the same advice, and what the catalogue says of the type."""

    type: str
    severity: Severity
    summary: str
    recommendations: tuple[str, ...]
    failures: tuple[Failure, ...]


def grouped(found: Iterable[Failure]) -> tuple[Group, ...]:
    """Group errors by type and what the catalogue advises, keeping their order."""
    groups: defaultdict[tuple[Severity, str, tuple[str, ...]], list[Failure]] = defaultdict(list)
    for failure in found:
        groups[failure.entry.severity, failure.entry.error_type, failure.entry.recommendations].append(failure)
    return tuple(
        Group(
            type=kind,
            severity=severity,
            summary=entry_for(kind, group[0].cell.backend if group[0].cell else "any").summary,
            recommendations=advice,
            failures=tuple(group),
        )
        for (severity, kind, advice), group in groups.items()
    )


def causes(found: Iterable[Failure]) -> tuple[Cause, ...]:
    """The causes of errors, in their order; in a cause the message that most cells share comes first."""
    return tuple(
        Cause(
            type=group.type,
            severity=group.severity,
            summary=group.summary,
            recommendations=group.recommendations,
            count=len(group.failures),
            occurrences=_occurrences(group.failures),
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
