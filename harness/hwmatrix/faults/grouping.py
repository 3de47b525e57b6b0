"""Groups errors that have the same advice. Every report uses this grouping."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from hwmatrix.faults.catalogue import entry_for
from hwmatrix.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Member = TypeVar("Member")


class Advised(Protocol):
    """The fields of an error that decide its group: its type, severity and advice."""

    @property
    def error_type(self) -> str:
        """The catalogue's type."""

    @property
    def severity(self) -> Severity:
        """How severe it is."""

    @property
    def recommendations(self) -> tuple[str, ...]:
        """What to do about it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdviceGroup(Generic[Member]):
    """Errors of one type with the same severity and advice, and the catalogue's description of the type."""

    type: str
    severity: Severity
    summary: str
    recommendations: tuple[str, ...]
    members: tuple[Member, ...]


def by_advice(
    found: Iterable[Member], error_of: Callable[[Member], Advised], hardware_of: Callable[[Member], str]
) -> tuple[AdviceGroup[Member], ...]:
    """Group errors by type, severity and advice, keeping their order. The summary is the one for the hardware of the first member."""
    groups: dict[tuple[Severity, str, tuple[str, ...]], list[Member]] = {}
    for member in found:
        error = error_of(member)
        groups.setdefault((error.severity, error.error_type, error.recommendations), []).append(member)
    return tuple(
        AdviceGroup(
            type=kind,
            severity=severity,
            summary=entry_for(kind, hardware_of(members[0])).summary,
            recommendations=advice,
            members=tuple(members),
        )
        for (severity, kind, advice), members in groups.items()
    )
