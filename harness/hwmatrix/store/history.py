"""A history: the runs of many merged databases in one. It is itself a merged database, so all reports can read it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.basics.clock import utc_now
from hwmatrix.errors import StoreError
from hwmatrix.store.attached import add_rows, attached
from hwmatrix.store.merge import COPIED
from hwmatrix.store.planned import check_visible, hidden, plan_in, put, united
from hwmatrix.store.reading import keeps_latest, reading
from hwmatrix.store.rewriting import rewriting

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

_COPIED: Final = ("runs", "planned", *COPIED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Added:
    """What one database added: new runs, the number of new shards, and the number of shards that were already known."""

    database: Path
    runs: tuple[str, ...]
    shards: int
    known: int


def add(history: Path, databases: Sequence[Path], *, release: str | None = None) -> tuple[Added, ...]:
    """Add all runs of some merged databases; known shards stay as they are. ``release`` is the release name of the runs.

    Adding a database again changes nothing. A failure changes nothing either.

    Raises:
        StoreError: a database is missing, broken or of another version; a shard differs from the known one with the same id; the history
            cannot be written; the history has a contradicting plan of one of the runs, or another release name for it.
    """
    before: dict[Path, frozenset[tuple[str, str]]] = {}
    for database in databases:  # check all before anything is copied
        with reading(database) as connection:
            if keeps_latest(connection):
                advice = "Add the databases of the runs themselves; a release has them."
                raise StoreError(f"{database}: it keeps only the latest verdicts of its runs, not whole runs", advice=advice)
            runs = [run_id for (run_id,) in connection.execute("SELECT run_id FROM runs").fetchall()]
            before[database] = frozenset(hidden(connection, runs))
    with rewriting(history, "adding to the history") as connection:
        return tuple(_add(connection, database, release, str(history), before[database]) for database in databases)


def _add(
    connection: duckdb.DuckDBPyConnection, database: Path, release: str | None, history: str, before: frozenset[tuple[str, str]]
) -> Added:
    """Add one database. ``before``: cells that no view of the database itself shows, so that they are not reported as lost here."""
    with attached(connection, database, holder="the history") as columns:
        asked = connection.execute("SELECT run_id FROM other.runs ORDER BY created_at, run_id")
        listed = [run_id for (run_id,) in asked.fetchall()]
        before |= frozenset(hidden(connection, listed))
        here = {run_id for (run_id,) in connection.execute("SELECT run_id FROM runs").fetchall()}
        new = tuple(run_id for run_id in listed if run_id not in here)
        shards = connection.execute(
            "SELECT count(*), count(*) FILTER (shard_id IN (SELECT shard_id FROM shards)) FROM other.shards"
        ).fetchone()
        connection.begin()
        add_rows(connection, {table: columns[table] for table in _COPIED})
        connection.commit()
        _unite_plans(connection, [run_id for run_id in listed if run_id in here], str(database), history)
        check_visible(connection, listed, where=history, before=before)
        if release is not None:
            _name_release(connection, listed, release)
        add_rows(connection, {"releases": columns["releases"]})
    total, known = shards or (0, 0)
    return Added(database=database, runs=new, shards=total - known, known=known)


def _unite_plans(connection: duckdb.DuckDBPyConnection, run_ids: list[str], database: str, history: str) -> None:
    """Merge the plans of runs that are in both databases: each may have another part of the run."""
    differing = connection.execute(
        "SELECT run_id FROM runs h JOIN other.runs o USING (run_id) WHERE list_contains(?, run_id) AND CAST(h.plan AS VARCHAR) "
        "IS DISTINCT FROM CAST(o.plan AS VARCHAR) ORDER BY run_id",
        [run_ids],
    )
    for (run_id,) in differing.fetchall():
        plans = [
            (history, plan_in(connection, run_id, where=history)),
            (database, plan_in(connection, run_id, where=database, schema="other")),
        ]
        put(connection, united([(place, plan) for place, plan in plans if plan is not None]))


def _name_release(connection: duckdb.DuckDBPyConnection, runs: list[str], release: str) -> None:
    for run_id in runs:
        row = connection.execute("SELECT release FROM releases WHERE run_id = ?", [run_id]).fetchone()
        if row is not None and row[0] != release:
            raise StoreError(
                f"run {run_id} is called {row[0]!r} in the history, not {release!r}",
                advice="Add its database without --release, or under the name that it has.",
            )
        if row is None:
            connection.execute("INSERT INTO releases VALUES (?, ?, ?)", [run_id, release, utc_now()])
