"""Merges shards into one database: only complete shards, in one pass. Merging again gives the same result."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from hwmatrix.basics.clock import now, utc_now
from hwmatrix.basics.files import sha256_of
from hwmatrix.basics.garbage import without_collection
from hwmatrix.errors import StoreError
from hwmatrix.records import Plan, Role, plan_from_json
from hwmatrix.store.cell_columns import SCHEMA_VERSION, schema
from hwmatrix.store.confined import confine
from hwmatrix.store.planned import check_visible, plan_in, put, united
from hwmatrix.store.rewriting import rewriting
from hwmatrix.store.sidecar import Sidecar, read_sidecar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_BATCH: Final = 64
"""Shards attached at once: one INSERT over all of them costs little more than one over a single shard."""
COPIED: Final = ("shards", "detections", "cells", "stages", "outputs", "samples", "operators", "classifications")
_SHOWN: Final = 3
_IDENTITY: Final = ("model", "size", "target", "dtype", "batch", "sequence_length", "threads", "new_tokens")
"""The columns of a cell that say what was executed, as the plan does."""
_CLOCK_SKEW: Final = dt.timedelta(days=1)
"""How far the clock of a shard's machine may be ahead: a later time would hide all verdicts that follow."""
_RAISED: Final = "Invalid Input Error: "
"""What DuckDB writes before the text of ``error()``."""
_PLAN_FILE: Final = "plan.json"
_SHARDS_FOLDER: Final = "shards"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rejection:
    """A shard that the merge refused, and why. ``run_id`` is the run whose folder contains it."""

    run_id: str
    file: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeReport:
    """What a merge did. ``known`` shards were in the database before; ``rows`` counts all rows that were added, including samples.

    ``withdrawn`` are keys of cells that are in shards but in no report, because a new plan of their run dropped them.
    """

    merged: tuple[str, ...]
    known: tuple[str, ...]
    rejected: tuple[Rejection, ...]
    rows: int
    withdrawn: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _File:
    """A file that looks like a shard, and the run whose folder contains it."""

    path: Path
    run_id: str

    def rejected(self, reason: Exception) -> Rejection:
        return Rejection(run_id=self.run_id, file=self.path.name, reason=str(reason).removeprefix(_RAISED))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Candidate:
    file: _File
    sidecar: Sidecar


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    """What the merge keeps of a run's plan: its matrix.yaml, and the keys of the cells that a new plan dropped.

    ``listed`` are those that the plan itself lists, ``withdrawn`` also those that shards turn out to have.
    """

    matrix_sha256: str
    listed: frozenset[str]
    withdrawn: set[str]


class _RefusedError(Exception):
    """This shard is rejected. The message is the reason."""


def merge(run_folders: Sequence[Path], database: Path, *, fresh: bool = False) -> MergeReport:
    """Merge runs (folders with a ``plan.json`` and a folder ``shards``) into a database, which is created if it is missing.

    A run may be spread over several folders, each with the plan of its own cells: the run's plan is the union of these and of the plan
    in the database. A shard is rejected if it is broken, foreign (its run or one of its cells is in none of the plans), of another
    version, without its sidecar, has rows of another target or shard than its sidecar says, or a value that the schema does not allow;
    the table ``rejected`` lists it with the reason. The others are merged. The database is replaced by a rename: a failing merge changes
    nothing. ``fresh`` starts with an empty database, so that the result holds only these runs.

    Raises:
        StoreError: a plan or the database itself cannot be read, plans of one run contradict each other, a cell of an accepted shard
            would be in no view, or the disk is full.
    """
    with without_collection(), rewriting(database, "the merge", fresh=fresh) as connection:
        folders = list(dict.fromkeys(run_folders))
        runs, files = _put_plans(connection, folders, database)
        return _merge_into(connection, runs, files, database)


def _put_plans(connection: duckdb.DuckDBPyConnection, folders: list[Path], database: Path) -> tuple[dict[str, _Run], list[_File]]:
    """Write the plan of each run, united from its folders and the database; return the runs by their ids, and the files of their shards.

    The plan of a run in one folder is written as it was read, unless the database has one. Plans are large: none is kept.
    """
    placed: dict[str, list[tuple[str, Plan]]] = {}
    texts: dict[str, list[str]] = {}
    files: list[_File] = []
    for folder in folders:
        plan, text = _read_plan(folder)
        placed.setdefault(plan.run_id, []).append((str(folder / _PLAN_FILE), plan))
        texts.setdefault(plan.run_id, []).append(text)
        files += [_File(path=path, run_id=plan.run_id) for path in sorted((folder / _SHARDS_FOLDER).glob("*.duckdb"))]
    runs: dict[str, _Run] = {}
    connection.begin()
    for run_id, plans in placed.items():
        known = plan_in(connection, run_id, where=str(database))
        plan = united([*plans, (str(database), known)] if known is not None else plans)
        read = texts.pop(run_id)
        put(connection, plan, read[0] if len(read) == 1 and known is None else None)
        runs[run_id] = _Run(matrix_sha256=plan.matrix_sha256, listed=frozenset(plan.withdrawn), withdrawn=set(plan.withdrawn))
    connection.commit()
    return runs, files


def _read_plan(folder: Path) -> tuple[Plan, str]:
    """The plan of a run's folder, and its JSON."""
    path = folder / _PLAN_FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error}", advice="Name a run's folder: it holds plan.json and shards/.") from error
    return plan_from_json(content, where=str(path)), content.decode()


def _merge_into(connection: duckdb.DuckDBPyConnection, runs: dict[str, _Run], files: list[_File], database: Path) -> MergeReport:
    merged: list[str] = []
    rows = 0
    candidates, known, rejected = _sort_files(connection, runs, files)
    confine(connection, (candidate.file.path for candidate in candidates))
    for start in range(0, len(candidates), _BATCH):
        batch = candidates[start : start + _BATCH]
        try:
            rows += _copy(connection, batch, runs)
            merged += [candidate.sidecar.shard_id for candidate in batch]
        except (_RefusedError, duckdb.Error):
            for candidate in batch:  # one of them is broken: find out which
                try:
                    rows += _copy(connection, [candidate], runs)
                    merged.append(candidate.sidecar.shard_id)
                except (_RefusedError, duckdb.Error) as error:
                    rejected.append(candidate.file.rejected(error))
    connection.begin()
    for run_id, run in runs.items():
        if run.withdrawn != run.listed:
            plan = plan_in(connection, run_id, where=str(database))
            assert plan is not None  # noqa: S101 - it was put above
            put(connection, dataclasses.replace(plan, withdrawn=tuple(sorted(run.withdrawn))))
    _list_rejected(connection, rejected, tuple(runs))
    check_visible(connection, runs, where=str(database))
    connection.commit()
    gone = tuple(sorted(key for run in runs.values() for key in run.withdrawn))
    return MergeReport(merged=tuple(merged), known=tuple(known), rejected=tuple(rejected), rows=rows, withdrawn=gone)


def _sort_files(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, _Run], files: list[_File]
) -> tuple[list[_Candidate], list[str], list[Rejection]]:
    """Sort files into new complete shards, known ones (or copies), and rejected ones, without opening their databases."""
    have = dict(connection.execute("SELECT shard_id, sha256 FROM shards").fetchall())
    candidates: list[_Candidate] = []
    known: list[str] = []
    rejected: list[Rejection] = []
    for file in files:
        try:
            sidecar = read_sidecar(file.path)
            if have.get(sidecar.shard_id) == sidecar.sha256:
                known.append(sidecar.shard_id)
                continue
            _check_file(file.path, sidecar, runs, have)
            have[sidecar.shard_id] = sidecar.sha256
        except (StoreError, _RefusedError, OSError) as error:
            rejected.append(file.rejected(error))
        else:
            candidates.append(_Candidate(file=file, sidecar=sidecar))
    return candidates, known, rejected


def _check_file(path: Path, sidecar: Sidecar, runs: Collection[str], have: dict[str, str]) -> None:
    if sidecar.shard_id in have:
        raise _RefusedError("the database already has a different shard with the same id")
    if sidecar.run_id not in runs:
        raise _RefusedError(f"it belongs to another run, {sidecar.run_id}, which is not being merged")
    if path.with_name(f"{path.name}.wal").exists():
        raise _RefusedError("it has a write-ahead log: something wrote to it after it was finished")
    if sha256_of(path) != sidecar.sha256:
        raise _RefusedError("its SHA-256 is not the one in its sidecar: it was damaged or changed")


def _copy(connection: duckdb.DuckDBPyConnection, batch: list[_Candidate], runs: dict[str, _Run]) -> int:
    """Copy whole shards in one transaction; if one is rejected, none is copied.

    Adds to the runs' ``withdrawn`` the keys of cells that were executed before a new plan dropped them.
    """
    attached: dict[str, _Candidate] = {}
    try:
        for candidate in batch:
            alias, quoted = f"shard_{len(attached)}", str(candidate.file.path).replace("'", "''")
            connection.execute(f"ATTACH '{quoted}' AS {alias} (READ_ONLY)")
            attached[alias] = candidate
        _check_tables(connection, attached)
        _check_versions(connection, attached)
        _check_types(connection, attached)
        connection.begin()
        try:
            rows = _insert_all(connection, attached)
            _check_adapted(connection, attached)
            for alias, missing in _unplanned(connection, attached).items():
                run = runs[attached[alias].sidecar.run_id]
                run.withdrawn.update(_checked_unplanned(connection, alias, run, missing - run.withdrawn))
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        return rows
    finally:
        for alias in attached:
            connection.execute(f"DETACH {alias}")


def _check_adapted(connection: duckdb.DuckDBPyConnection, attached: dict[str, _Candidate]) -> None:
    """Refuse retries of another target's cells: they would show there as what made a failed cell work."""
    found = connection.execute(
        "SELECT c.adapted_from, p.target FROM cells c JOIN planned p ON p.run_id = c.run_id AND p.cell_key = c.adapted_from "
        "WHERE list_contains(?, c.shard_id) AND p.target <> c.target ORDER BY ALL LIMIT 1",
        [[candidate.sidecar.shard_id for candidate in attached.values()]],
    ).fetchone()
    if found is not None:
        raise _RefusedError(f"it retries {found[0]}, a cell of another target: {found[1]}")


def _unplanned(connection: duckdb.DuckDBPyConnection, attached: dict[str, _Candidate]) -> dict[str, set[str]]:
    """The keys of the cells of these shards that their run's plan does not have, by the names under which the shards are attached.

    A shard is refused if a cell ran with other settings than its plan has: one of the two was damaged.
    """
    aliases = {candidate.sidecar.shard_id: alias for alias, candidate in attached.items()}
    ran = ", ".join(("shard_id", "run_id", "cell_key", *_IDENTITY[:-1], "coalesce(new_tokens, 0) AS new_tokens"))
    differs = " OR ".join(f"e.{name} IS DISTINCT FROM p.{name}" for name in _IDENTITY)
    columns = ", ".join(f"{place}.{name}" for name in _IDENTITY for place in "ep")
    found = connection.execute(  # only these cells of the plan, which has many more, are joined: that takes half the time
        f"WITH e AS MATERIALIZED (SELECT {ran} FROM cells WHERE role = '{Role.MODEL}' AND list_contains(?, shard_id)), "  # noqa: S608
        "p AS (SELECT * FROM planned WHERE cell_key IN (SELECT cell_key FROM e)) "
        f"SELECT e.shard_id, p.cell_key IS NULL, e.cell_key, {columns} FROM e "
        f"LEFT JOIN p ON p.run_id = e.run_id AND p.cell_key = e.cell_key WHERE {differs} ORDER BY e.cell_key",
        [list(aliases)],
    ).fetchall()
    missing: dict[str, set[str]] = {}
    for shard_id, unknown, key, *values in found:
        if not unknown:
            pairs = zip(_IDENTITY, values[::2], values[1::2], strict=True)
            name, executed, planned = next(each for each in pairs if each[1] != each[2])
            raise _RefusedError(f"its cell {key} has the {name} {executed}, but {planned} in the plan")
        missing.setdefault(aliases[shard_id], set()).add(key)
    return missing


def _checked_unplanned(connection: duckdb.DuckDBPyConnection, alias: str, run: _Run, missing: set[str]) -> set[str]:
    """Return these cells of a shard that its run's plan does not have, if a later matrix.yaml explains that; else refuse the shard."""
    if missing and connection.execute(f"SELECT matrix_sha256 FROM {alias}.runs").fetchone() == (run.matrix_sha256,):  # noqa: S608
        raise _RefusedError(f"no plan of its run contains its cells {_abbreviated(sorted(missing))}")
    return missing


def _abbreviated(keys: list[str]) -> str:
    return ", ".join(keys[:_SHOWN]) + (f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else "")


def _check_tables(connection: duckdb.DuckDBPyConnection, aliases: Collection[str]) -> None:
    """Refuse views instead of tables: reading one would run SQL of the shard's author with the rights of this process."""
    views = connection.execute("SELECT database_name, view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    if foreign := sorted(name for alias, name in views if alias in aliases):
        raise _RefusedError(f"it is not a valid shard: it has views, which could read other files: {', '.join(foreign)}")


def _check_types(connection: duckdb.DuckDBPyConnection, aliases: Collection[str]) -> None:
    """Refuse columns of another type, which could change the rows of other shards that are copied in the same query."""
    types = {(table, name): kind for table, columns in _columns().items() for name, kind in columns.items()}
    described = connection.execute("SELECT database_name, table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal")
    for alias, table, name, kind in described.fetchall():
        if alias in aliases and kind != types.get((table, name), kind):
            raise _RefusedError(f"its column {table}.{name} has the type {kind}, not {types[table, name]}")


def _check_versions(connection: duckdb.DuckDBPyConnection, aliases: Collection[str]) -> None:
    """Refuse other schema versions. One query for the whole batch, since each costs some milliseconds."""
    asking = " UNION ALL ".join(f"SELECT '{alias}', value FROM {alias}.meta WHERE key = 'schema_version'" for alias in aliases)  # noqa: S608
    versions = dict(connection.execute(asking).fetchall())
    foreign = [version for version in versions.values() if version != SCHEMA_VERSION]
    if foreign or len(versions) != len(aliases):
        found = foreign[0] if foreign else "none"
        raise _RefusedError(f"its schema is version {found}, this hwmatrix reads {SCHEMA_VERSION}: run the target again")


def _insert_all(connection: duckdb.DuckDBPyConnection, attached: dict[str, _Candidate]) -> int:
    rows = 0
    for table, names in _columns().items():
        selects = " UNION ALL ".join(_select(alias, table, names, each.sidecar) for alias, each in attached.items())
        ((inserted,),) = connection.execute(f"INSERT INTO {table} ({', '.join(names)}) {selects}").fetchall()
        promised = sum(candidate.sidecar.counts[table] for candidate in attached.values())
        if inserted != promised:
            raise _RefusedError(f"its table {table} holds {inserted} rows, its sidecar says {promised}")
        rows += promised
    return rows


def _select(alias: str, table: str, columns: Iterable[str], sidecar: Sidecar) -> str:
    """A query for a shard's rows of a table, with the SHA-256 of the file.

    It raises an error for a row of another run, target or shard than the sidecar says, or of the future.
    """
    latest = (now() + _CLOCK_SKEW).replace(tzinfo=None).isoformat()
    valid = {name: f"{name} = {_text(getattr(sidecar, name))}" for name in ("shard_id", "run_id", "target")}
    valid["cell_id"] = f"starts_with(cell_id, {_text(sidecar.shard_id + '/')})"
    valid |= {name: f"{name} <= '{latest}'" for name in ("started_at", "detected_at")}

    def value(name: str) -> str:
        if (table, name) == ("shards", "sha256"):
            return f"{_text(sidecar.sha256)} AS sha256"
        if name not in valid:
            return name
        foreign = f"error(concat('its table {table} has a row with the {name} ', {name}, ', which is not its own'))"
        return f"CASE WHEN {valid[name]} THEN {name} ELSE {foreign} END AS {name}"

    return f"SELECT {', '.join(map(value, columns))} FROM {alias}.{table}"  # noqa: S608 - names of the schema


def _text(value: str) -> str:
    """A string in SQL."""
    quoted = value.replace("'", "''")
    return f"'{quoted}'"


@functools.cache
def _columns() -> dict[str, dict[str, str]]:
    """The columns of each copied table, with their SQL types: shards of the same schema may have them in another order."""
    columns: dict[str, dict[str, str]] = {table: {} for table in COPIED}
    with duckdb.connect() as connection:
        connection.execute(schema(checked=False))
        found = connection.execute("SELECT table_name, column_name, data_type FROM duckdb_columns() ORDER BY column_index").fetchall()
    for table, name, kind in found:
        if table in columns:
            columns[table][name] = kind
    return columns


def _list_rejected(connection: duckdb.DuckDBPyConnection, rejected: list[Rejection], run_ids: tuple[str, ...]) -> None:
    """Replace the list of rejected shards: it covers only the latest merge, so that repaired shards disappear from it."""
    for run_id in run_ids:
        connection.execute("DELETE FROM rejected WHERE run_id = ?", [run_id])
    for rejection in rejected:
        row = [rejection.run_id, rejection.file, rejection.reason, utc_now()]
        connection.execute("INSERT INTO rejected VALUES (?, ?, ?, ?)", row)
