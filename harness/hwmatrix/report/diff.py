"""Compares two runs: what broke, what works now, what became slower or faster, and what changed in the images."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import StoreError
from hwmatrix.matrix.plan import none_of
from hwmatrix.records import Isolation, Status
from hwmatrix.report.comparing import Change, ComparedCell, Identity, Kind, compare, why_not_timed
from hwmatrix.report.rows import RunRow, build, scope
from hwmatrix.store.reading import database_at, reading, records

if TYPE_CHECKING:
    from collections.abc import Iterable

    import duckdb


_LISTED: Final = 6
"""How many values of a setting a message names."""


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

    ``pairs`` are the cells that were compared, old and new; ``timed`` of them had comparable speeds, and ``untimed`` says why the others
    did not.
    """

    old: Side
    new: Side
    changes: tuple[Change, ...]
    packages: tuple[PackageChange, ...]
    pairs: tuple[tuple[ComparedCell, ComparedCell], ...]
    timed: int
    untimed: dict[str, int]
    across_dtype: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be compared: why no cell was, and the targets that only the old run has."""
        return (*(() if self.pairs else (why_nothing_compared(self),)), *_missing_targets(self.old, self.new))

    @property
    def compared(self) -> int:
        """How many cells are in both runs."""
        return len(self.pairs)

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


def make_diff(old: Side, new: Side, *, across_dtype: bool = False) -> Diff:
    """Compare two sides, cell by cell.

    With ``across_dtype``, each cell is compared with those that differ from it in the precision alone, and no others.
    """
    pairs = _pairs_across(old, new) if across_dtype else _pairs(old, new)
    changes: list[Change] = []
    untimed: Counter[str] = Counter()
    timed = 0
    for earlier, cell in pairs:
        found = compare(earlier, cell)
        if across_dtype:
            found = [dataclasses.replace(change, detail=f"{_across(earlier, cell)}: {change.detail}") for change in found]
        changes += found
        if earlier.status is cell.status is Status.PASS:
            reason = why_not_timed(earlier, cell)
            timed += reason is None
            untimed.update([reason] if reason is not None else [])
    if not across_dtype:
        before, after = ({cell.identity for cell in side.cells} for side in (old, new))
        changes += [
            Change(kind=Kind.APPEARED, cell=cell, old=None, detail=f"is {cell.status.value}")
            for cell in new.cells
            if cell.identity not in before
        ]
        changes += [
            Change(kind=Kind.VANISHED, cell=cell, old=cell, detail=f"was {cell.status.value}")
            for cell in old.cells
            if cell.identity not in after
        ]
    order = list(Kind)
    return Diff(
        old=old,
        new=new,
        changes=tuple(sorted(changes, key=lambda change: (order.index(change.kind), -abs((change.ratio or 1) - 1)))),
        packages=_package_changes(old, new),
        pairs=tuple(pairs),
        timed=timed,
        untimed=dict(untimed.most_common()),
        across_dtype=across_dtype,
    )


def why_nothing_compared(diff: Diff) -> str:
    """Why no cell is in both runs: the settings of which they have no value in common, or that alone keep cells apart, with the values."""
    ignored = {"precision"} if diff.across_dtype else set()
    fields = [name for name in Identity._fields if name not in ignored]
    sides = [[{name: str(getattr(cell.identity, name)) for name in fields} for cell in side.cells] for side in (diff.old, diff.new)]
    apart, alone = [], []
    for name in fields:
        old, new = ([(frozenset((cell | {name: ""}).items()), cell[name]) for cell in side] for side in sides)
        alike = dict(old).keys() & dict(new).keys()
        before, after = {value for _, value in old}, {value for _, value in new}
        if not before & after:
            apart.append(_differs(name, before, after))
        elif alike and name not in {"model", "target"}:
            before, after = ({value for others, value in side if others in alike} for side in (old, new))
            alone += [] if before & after else [_differs(name, before, after)]
    return f"no cell is in both: {', '.join(apart or alone) or 'each setting has values in both, but never together'}"


def _differs(name: str, before: Iterable[str], after: Iterable[str]) -> str:
    return f"{name.replace('_', ' ')} {_some(sorted(before))} / {_some(sorted(after))}"


def _missing_targets(old: Side, new: Side) -> tuple[str, ...]:
    """The targets of the old run that the new one does not have, and that they have none of its precisions, in words."""
    asked = sorted({cell.dtype.value for cell in new.cells})
    before: dict[str, set[str]] = {}
    for cell in old.cells:
        before.setdefault(cell.target, set()).add(cell.dtype.value)
    gone = sorted(before.keys() - {cell.target for cell in new.cells})
    reasons = {target: "" if before[target] & {*asked} else f" ({none_of(asked, sorted(before[target]))})" for target in gone}
    return tuple(f"{target} is not in the new run{reasons[target]}" for target in gone)


def _pairs(old: Side, new: Side) -> list[tuple[ComparedCell, ComparedCell]]:
    before = {cell.identity: cell for cell in old.cells}
    return [(before[cell.identity], cell) for cell in new.cells if cell.identity in before]


def _pairs_across(old: Side, new: Side) -> list[tuple[ComparedCell, ComparedCell]]:
    before: dict[Identity, list[ComparedCell]] = {}
    for cell in old.cells:
        before.setdefault(cell.identity._replace(precision=""), []).append(cell)
    return [
        (earlier, cell)
        for cell in new.cells
        for earlier in before.get(cell.identity._replace(precision=""), ())
        if earlier.dtype is not cell.dtype
    ]


def _across(old: ComparedCell, new: ComparedCell) -> str:
    """The precisions of two cells, and what the second one costs."""
    cost = "" if new.loss is None else f" (loss {new.loss:.2g})"
    return f"{old.dtype.value} to {new.dtype.value}{cost}"


def _some(values: list[str]) -> str:
    return " ".join(values) if len(values) <= _LISTED else f"{' '.join(values[:_LISTED])} and {len(values) - _LISTED} more"


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
