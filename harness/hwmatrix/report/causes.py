"""Errors of a run by cause: the type with recommendations, then the location, then the cells."""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING

from hwmatrix.faults.grouping import AdviceGroup, alike, by_advice
from hwmatrix.report.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable

_entry_of = operator.attrgetter("entry")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Occurrence:
    """One message in one stage on one target. ``cells`` are keys of cells; an error outside all cells has none."""

    target: str | None
    component: str
    message: str
    cells: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cause:
    """All errors of one type with the same advice, and where they occurred: the message of most cells first."""

    errors: AdviceGroup[Failure]
    occurrences: tuple[Occurrence, ...]


def grouped(found: Iterable[Failure]) -> tuple[AdviceGroup[Failure], ...]:
    """The errors of a run, grouped by advice."""
    return by_advice(found, _entry_of, lambda failure: failure.cell.backend if failure.cell else "any")


def causes(found: Iterable[Failure]) -> tuple[Cause, ...]:
    """The causes of these errors, in the order of the errors."""
    return tuple(Cause(errors=group, occurrences=_occurrences(group.members)) for group in grouped(found))


def _occurrences(found: Iterable[Failure]) -> tuple[Occurrence, ...]:
    made = [
        Occurrence(
            target=group.members[0].entry.hardware_type,
            component=group.members[0].entry.component,
            message=group.members[0].entry.message,
            cells=tuple(failure.cell.cell_key for failure in group.members if failure.cell is not None),
        )
        for group in alike(found, _entry_of, by_traceback=False)
    ]
    return tuple(sorted(made, key=lambda each: -len(each.cells)))
