"""Failures that one change would fix, grouped by missing or wrong operator, by construct in model code, or by message.

A group belongs to one target in one isolation. Failures that say nothing about hardware (models that could not be made, infrastructure)
form groups of their own, which are never counted against hardware.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hwmatrix.faults.catalogue import entry_for
from hwmatrix.faults.wording import normalized, site_of
from hwmatrix.records import Isolation, Severity, Stage, Status
from hwmatrix.report import origins
from hwmatrix.report.comparing import FAILING
from hwmatrix.report.contract import ErrorEntry, GroupEntry, GroupExample
from hwmatrix.report.failures import Failure, failures
from hwmatrix.report.grid import Column

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hwmatrix.faults.wording import Site
    from hwmatrix.report.rows import CellRow, ReportRows

_SPECIAL: Final = frozenset({"torch", "the", "model", "error"})
"""Names of models that are also words of messages."""


class Scope(enum.StrEnum):
    """What a failure is about. Only ``target`` is counted against hardware."""

    TARGET = "target"
    FACTORY = "factory"
    INFRASTRUCTURE = "infrastructure"


class GroupKind(enum.StrEnum):
    """What the failures of a group have in common, the most specific first."""

    OPERATOR = "operator"
    CONSTRUCT = "construct"
    ORIGIN = "origin"
    ERROR = "error"


_Placed = tuple[Failure, "Site | None"]
_SCOPES: Final = {Status.FACTORY_ERROR: Scope.FACTORY, Status.INFRA_ERROR: Scope.INFRASTRUCTURE} | dict.fromkeys(FAILING, Scope.TARGET)


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Blocker:
    """What the failures of a group have in common, so that one change would fix them.

    ``what`` is the operator, the place in models' code with its source line (``models/*/modeling_*.py::forward: if mask.all():``), the
    kind of origin, or the normalized message. ``message`` is the normalized message; ``place`` is where it was raised, if known.
    """

    kind: GroupKind
    what: str
    message: str
    place: str
    stage: str
    error_type: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Failures with one blocker. ``target`` and ``isolation`` are None for models that could not be made, and so were executed nowhere.

    ``failures`` are in the order of matrix.yaml; ``smallest`` is the one whose model has the fewest parameters (unknown: last), and
    ``at`` is the line where its error was raised, if known. ``sites`` are the lines of all errors.
    """

    scope: Scope
    target: str | None
    isolation: Isolation | None
    blocker: Blocker
    severity: Severity
    summary: str
    recommendations: tuple[str, ...]
    failures: tuple[Failure, ...]
    smallest: Failure
    at: str | None
    sites: tuple[str, ...]

    @property
    def cells(self) -> tuple[CellRow, ...]:
        """The cells of the group."""
        return tuple(failure.cell for failure in self.failures if failure.cell is not None)

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that it blocks, each once."""
        return tuple(dict.fromkeys(cell.architecture for cell in self.cells))

    @property
    def models(self) -> tuple[str, ...]:
        """The models that it blocks, each once."""
        return tuple(dict.fromkeys(cell.model for cell in self.cells))

    @property
    def example(self) -> CellRow:
        """The cell of the smallest failure."""
        cell = self.smallest.cell
        assert cell is not None  # noqa: S101 - failures outside cells are in no group
        return cell


@functools.lru_cache(maxsize=1)
def groups_of(rows: ReportRows) -> tuple[FailureGroup, ...]:
    """The groups of all failures of a run, cached for several reports."""
    return failure_groups(failures(rows), tuple(dict.fromkeys((cell.target, cell.column_isolation) for cell in rows.cells)))


def failure_groups(found: Iterable[Failure], places: Sequence[tuple[str, Isolation]] = ()) -> tuple[FailureGroup, ...]:
    """Every group of a run: for each target those that block the most architectures first, then those not about hardware.

    A cell that lacks several operators is in the group of each. ``places`` gives the order of targets.
    """
    grouped: defaultdict[tuple[Scope, str | None, Isolation | None, Blocker], list[_Placed]] = defaultdict(list)
    order: dict[tuple[str | None, Isolation | None], int] = {place: number for number, place in enumerate(places)}
    for failure in found:
        cell = failure.cell
        scope = _SCOPES.get(cell.status) if cell is not None else None
        if cell is None or scope is None:
            continue
        place = (None, None) if scope is Scope.FACTORY else (cell.target, cell.column_isolation)
        order.setdefault(place, len(order))
        site = _site(failure)
        for blocker in _blockers(failure, cell, site):
            grouped[scope, *place, blocker].append((failure, site))
    scopes = list(Scope)
    made = [_group(scope, target, isolation, blocker, members) for (scope, target, isolation, blocker), members in grouped.items()]
    return tuple(
        sorted(
            made,
            key=lambda each: (
                scopes.index(each.scope),
                order[each.target, each.isolation],
                -len(each.architectures),
                -len(each.models),
                each.blocker,
            ),
        )
    )


def blocked_of(groups: Iterable[FailureGroup]) -> dict[Column, tuple[FailureGroup, ...]]:
    """The groups that count against hardware, by target."""
    found: defaultdict[Column, list[FailureGroup]] = defaultdict(list)
    for group in groups:
        if group.scope is Scope.TARGET and group.target is not None and group.isolation is not None:
            found[Column(target=group.target, isolation=group.isolation)].append(group)
    return {column: tuple(members) for column, members in found.items()}


def _group(scope: Scope, target: str | None, isolation: Isolation | None, blocker: Blocker, members: list[_Placed]) -> FailureGroup:
    ordered = sorted((failure for failure, _ in members), key=_plan_order)
    smallest = min(ordered, key=_size_order)
    site = next(site for failure, site in members if failure is smallest)
    sites = sorted({site.exact for _, site in members if site is not None})
    backend = ordered[0].cell.backend if ordered[0].cell is not None else "any"
    return FailureGroup(
        scope=scope,
        target=target,
        isolation=isolation,
        blocker=blocker,
        severity=ordered[0].entry.severity,
        summary=entry_for(blocker.error_type, backend).summary,
        recommendations=ordered[0].entry.recommendations,
        failures=tuple(ordered),
        smallest=smallest,
        at=site.exact if site is not None else None,
        sites=tuple(sites),
    )


def _site(failure: Failure) -> Site | None:
    """Where it was raised. An exporter in another process names the model's code only in its message."""
    found = site_of(failure.entry.traceback)
    if found is not None and found.transformers:
        return found
    in_message = site_of(failure.entry.message)
    return in_message if in_message is not None and in_message.transformers else found


def _plan_order(failure: Failure) -> tuple[int, str]:
    return (failure.cell.position, failure.cell.cell_key) if failure.cell is not None else (0, "")


def _size_order(failure: Failure) -> tuple[bool, int]:
    """Fewest parameters first, then as planned; models with an unknown number of parameters come last."""
    known = failure.cell.parameters if failure.cell is not None else None
    return known is None, known or 0


def _blockers(failure: Failure, cell: CellRow, site: Site | None) -> list[Blocker]:
    entry = failure.entry
    names = {cell.model, cell.architecture} - _SPECIAL
    message = normalized(entry.message, names)
    common = {"stage": cell.stage.value if cell.stage is not None else "", "error_type": entry.error_type}
    if cell.needs and cell.status in FAILING:
        return [Blocker(kind=GroupKind.OPERATOR, what=need, message="", place="", **common) for need in dict.fromkeys(cell.needs)]
    origin = origins.common(cell)
    if origin is not None:
        return [Blocker(kind=GroupKind.ORIGIN, what=origin, message="", place="", **common)]
    if site is not None and site.transformers:
        return [Blocker(kind=GroupKind.CONSTRUCT, what=site.construct, message=message, place=site.construct, **common)]
    place = str(site) if site is not None else ""
    return [Blocker(kind=GroupKind.ERROR, what=message or entry.error_type, message=message, place=place, **common)]


def group_entries(groups: Iterable[FailureGroup]) -> tuple[GroupEntry, ...]:
    """Groups as their published type."""
    return tuple(
        GroupEntry(
            scope=group.scope.value,
            target=group.target,
            isolation=group.isolation,
            kind=group.blocker.kind.value,
            blocked_by=group.blocker.what,
            message=group.blocker.message or None,
            stage=Stage(group.blocker.stage) if group.blocker.stage else None,
            error_type=group.blocker.error_type,
            severity=group.severity,
            summary=group.summary,
            recommendations=group.recommendations,
            cells=len(group.failures),
            models=group.models,
            architectures=group.architectures,
            sites=group.sites,
            example=_example(group.example, group.smallest.entry),
        )
        for group in groups
    )


def _example(cell: CellRow, entry: ErrorEntry) -> GroupExample:
    return GroupExample(
        model=cell.model,
        architecture=cell.architecture,
        target=cell.target,
        size=cell.size,
        dtype=cell.dtype,
        parameters=cell.parameters,
        message=entry.message,
        traceback=entry.traceback,
        command=cell.command,
    )
