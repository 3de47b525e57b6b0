"""Compares two runs: what broke, what works now, what became slower or faster, and what changed in the images."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from hwmatrix.errors import StoreError
from hwmatrix.records import Isolation, Status
from hwmatrix.report.comparing import Change, ComparedCell, Kind, compare, why_not_timed
from hwmatrix.report.rows import RunRow, build, scope
from hwmatrix.store.reading import database_at, reading, records

if TYPE_CHECKING:
    import duckdb


@dataclasses.dataclass(frozen=True, kw_only=True)
class Installed:
    """What a target had in a run: its image, its machine, its packages by name."""

    target: str
    isolation: Isolation
    image: str | None
    image_digest: str | None
    host: str
    interpreter: str
    packages: dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two runs."""

    database: Path
    run: RunRow
    cells: tuple[ComparedCell, ...]
    installed: tuple[Installed, ...]
    rejected: tuple[str, ...] = ()
    """Shards of the run that the merge refused, and why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackageChange:
    """A package of a target's image that was added, removed, or changed its version."""

    target: str
    isolation: Isolation
    package: str
    old: str | None
    new: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diff:
    """Everything that changed from ``old`` to ``new``, the most urgent first.

    ``compared`` cells are in both; ``timed`` of them had comparable speeds, and ``untimed`` says why the others did not.
    """

    old: Side
    new: Side
    changes: tuple[Change, ...]
    packages: tuple[PackageChange, ...]
    compared: int
    timed: int
    untimed: dict[str, int]

    def of(self, *kinds: Kind) -> tuple[Change, ...]:
        """The changes of some kinds."""
        return tuple(change for change in self.changes if change.kind in kinds)

    @property
    def counts(self) -> dict[Kind, int]:
        """How many changes there are of each kind that occurs."""
        found = Counter(change.kind for change in self.changes)
        return {kind: found[kind] for kind in Kind if found[kind]}


def read_side(place: Path, run_id: str | None = None) -> Side:
    """Read one side: a merged database, or a folder of reports that holds one. The latest run, unless ``run_id`` names another.

    Raises:
        StoreError: the database is missing, broken, or of another version, or has no such run.
    """
    database = database_at(place)
    with reading(database) as connection:
        run, _ = scope(connection, database, run_id)
        cells = tuple(build(ComparedCell, row) for row in records(connection, "diff_cells"))
        installed = _installed(connection)
        rejected = tuple(f"{row['file']}: {row['reason']}" for row in records(connection, "report_rejected"))
    if not cells:
        raise StoreError(f"{database}: its run {run.run_id} planned no cells", advice="Name a run of models with @RUN after the file.")
    return Side(database=database, run=run, cells=cells, installed=installed, rejected=rejected)


def side_of(text: str) -> Side:
    """A side from a command's argument: ``PATH`` or ``PATH@RUN``.

    Raises:
        StoreError: there is no such database or run.
    """
    place, mark, run_id = text.rpartition("@")
    if not mark or Path(text).exists():
        return read_side(Path(text))
    return read_side(Path(place), run_id)


def make_diff(old: Side, new: Side) -> Diff:
    """Compare two sides, cell by cell."""
    before = {cell.identity: cell for cell in old.cells}
    after = {cell.identity: cell for cell in new.cells}
    changes: list[Change] = []
    untimed: Counter[str] = Counter()
    timed = 0
    for identity, cell in after.items():
        earlier = before.get(identity)
        if earlier is None:
            changes.append(Change(kind=Kind.APPEARED, cell=cell, old=None, detail=f"is {cell.status.value}"))
            continue
        changes += compare(earlier, cell)
        if earlier.status is cell.status is Status.PASS:
            reason = why_not_timed(earlier, cell)
            timed += reason is None
            untimed.update([reason] if reason is not None else [])
    changes += [
        Change(kind=Kind.VANISHED, cell=cell, old=cell, detail=f"was {cell.status.value}")
        for identity, cell in before.items()
        if identity not in after
    ]
    order = list(Kind)
    return Diff(
        old=old,
        new=new,
        changes=tuple(sorted(changes, key=lambda change: (order.index(change.kind), -abs((change.ratio or 1) - 1)))),
        packages=_package_changes(old, new),
        compared=len(before.keys() & after.keys()),
        timed=timed,
        untimed=dict(untimed.most_common()),
    )


def _installed(connection: duckdb.DuckDBPyConnection) -> tuple[Installed, ...]:
    return tuple(build(Installed, row | {"packages": json.loads(row["packages"])}) for row in records(connection, "diff_packages"))


def _package_changes(old: Side, new: Side) -> tuple[PackageChange, ...]:
    before = {(each.target, each.isolation): each.packages for each in old.installed}
    changes = []
    for each in new.installed:
        was = before.get((each.target, each.isolation))
        if was is None:
            continue
        changes += [
            PackageChange(target=each.target, isolation=each.isolation, package=name, old=was.get(name), new=each.packages.get(name))
            for name in sorted(was.keys() | each.packages.keys())
            if was.get(name) != each.packages.get(name)
        ]
    return tuple(changes)
