"""Groups errors that have the same advice, and within a group those that are alike. Every report uses this grouping."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from hwmatrix.faults.catalogue import entry_for
from hwmatrix.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Member = TypeVar("Member")


class Reported(Protocol):
    """The fields of an error that decide its group."""

    @property
    def error_type(self) -> str:
        """The catalogue's type."""

    @property
    def severity(self) -> Severity:
        """How severe it is."""

    @property
    def recommendations(self) -> tuple[str, ...]:
        """What to do about it."""

    @property
    def hardware_type(self) -> str | None:
        """On which hardware it occurred; None: on no specific one."""

    @property
    def component(self) -> str:
        """Where in hwmatrix it occurred."""

    @property
    def message(self) -> str:
        """The whole message."""

    @property
    def traceback(self) -> str | None:
        """Where it was raised, if known."""

    @property
    def model_name(self) -> str | None:
        """The model, if one was involved."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alike(Generic[Member]):
    """Errors with the same message on the same hardware in the same component. ``models`` are those that had it, each once."""

    members: tuple[Member, ...]
    models: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdviceGroup(Generic[Member]):
    """Errors of one type with the same severity and advice, and the catalogue's description of the type.

    ``alike`` are the same errors, those with the same message and traceback together.
    """

    type: str
    severity: Severity
    summary: str
    recommendations: tuple[str, ...]
    members: tuple[Member, ...]
    alike: tuple[Alike[Member], ...]


def by_advice(
    found: Iterable[Member], error_of: Callable[[Member], Reported], hardware_of: Callable[[Member], str]
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
            alike=alike(members, error_of),
        )
        for (severity, kind, advice), members in groups.items()
    )


def alike(found: Iterable[Member], error_of: Callable[[Member], Reported], *, by_traceback: bool = True) -> tuple[Alike[Member], ...]:
    """Group errors with the same message, hardware and component, keeping their order; ``by_traceback``: and the same traceback."""
    groups: dict[tuple[str | None, ...], list[Member]] = {}
    for member in found:
        error = error_of(member)
        key = (error.hardware_type, error.component, error.message, error.traceback if by_traceback else None)
        groups.setdefault(key, []).append(member)
    return tuple(
        Alike(
            members=tuple(members), models=tuple(dict.fromkeys(name for each in members if (name := error_of(each).model_name) is not None))
        )
        for members in groups.values()
    )
