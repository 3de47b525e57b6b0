"""Merges several merged databases into one that keeps the latest verdict of each cell, with the run that it came from.

Runs keep their date, versions and shards, but only the cells that the view ``verdicts`` needs (views.sql).
The result can be merged again, with itself or with others, in any order: the same databases always give the same content.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb

from hwmatrix.basics.files import sha256_of
from hwmatrix.errors import StoreError
from hwmatrix.records import Plan, Role
from hwmatrix.store.attached import add_rows, attached, columns_of
from hwmatrix.store.cell_columns import SCHEMA_VERSION, schema, sql
from hwmatrix.store.confined import confine
from hwmatrix.store.merge import COPIED, MergeReport, merge
from hwmatrix.store.personal import clean, plan_without_personal
from hwmatrix.store.planned import check_visible, in_order, plan_in, put, united
from hwmatrix.store.reading import KEEPS_LATEST, database_at, reading
from hwmatrix.store.rewriting import rewriting

if TYPE_CHECKING:
    from collections.abc import Sequence

_TABLES: Final = ("runs", "planned", *COPIED, "timings", "releases", "rejected")
_SORTED: Final = {"cells": "model, target, dtype, cell_id", "planned": "model, target, dtype, run_id, cell_key"}
"""Sort orders that put similar rows together, so that they compress better. All other tables are sorted by all of their columns."""
_SHOWN: Final = """
    SELECT
        model, hub_id, size, target, dtype, batch, sequence_length, threads, new_tokens, column_isolation, run_id, status, level,
        started_at, p50_ms, speed_up
    FROM verdicts WHERE shown AND (status <> 'not_run' OR NOT getvariable('publish')) ORDER BY ALL
"""
_HIDDEN_ADVICE: Final = "This is a bug of hwmatrix. The database is as it was before."


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatestReport:
    """What was kept: the numbers of runs and of cells. ``superseded`` is the number of executions that were removed."""

    runs: int
    cells: int
    superseded: int


def merge_places(places: Sequence[Path], database: Path, *, publish: bool = False) -> tuple[LatestReport, tuple[MergeReport, ...]]:
    """As :func:`merge_latest`, for merged databases, folders of reports and folders of runs. ``database`` is one of them if it exists.

    Returns:
        What was kept, and for each run's folder the report of merging its shards.

    Raises:
        StoreError: as :func:`merge_latest` and :func:`hwmatrix.store.merge.merge`.
    """
    with tempfile.TemporaryDirectory(prefix="hwmatrix-merge-") as folder:
        databases = [database] if database.exists() else []
        merged = []
        for number, place in enumerate(places):
            if is_run(place):
                databases.append(Path(folder) / f"{number}.duckdb")
                merged.append(merge([place], databases[-1]))
            else:
                databases.append(database_at(place))
        return merge_latest(databases, database, publish=publish), tuple(merged)


def is_run(place: Path) -> bool:
    """Whether a path is the folder of a run, and not a database or a folder of reports."""
    return place.is_dir() and ((place / "plan.json").is_file() or not database_at(place).is_file())


def merge_latest(databases: Sequence[Path], database: Path, *, publish: bool = False) -> LatestReport:
    """Write the latest verdict of every cell of some merged databases to ``database``, which may be among them and is replaced.

    ``publish`` leaves out cells that were never run and what no report needs (publish.sql), and removes what is personal
    (:mod:`hwmatrix.store.personal`).

    Raises:
        StoreError: a database is missing, damaged, or of an unsupported version (then nothing is written); two have different shards with
            the same id, or plans of a run that contradict each other.
    """
    ordered = _by_content(databases)
    with tempfile.TemporaryDirectory(prefix="hwmatrix-merge-") as folder:
        work = Path(folder) / "work.duckdb"
        with duckdb.connect(str(work)) as connection:
            connection.execute(schema())
            connection.execute(sql("views.sql"))
            confine(connection, [*ordered, database.absolute()])
            for each in ordered:
                _add_database(connection, each)
            report = _prune(connection, publish=publish, where=str(database))
            if _is_unchanged(connection, database):
                return report
        with rewriting(database, "the merge", fresh=True, small_blocks=True) as out:
            _write(out, work)
    return report


def _is_unchanged(connection: duckdb.DuckDBPyConnection, database: Path) -> bool:
    """Whether a database holds exactly these rows already: then the file is not touched."""
    if not database.exists():
        return False
    quoted = str(database.absolute()).replace("'", "''")
    connection.execute(f"ATTACH '{quoted}' AS old (READ_ONLY)")
    try:
        if connection.execute("SELECT value FROM old.meta WHERE key = 'schema_version'").fetchone() != (SCHEMA_VERSION,):
            return False
        if connection.execute("SELECT 1 FROM old.meta WHERE key = ? AND value = ?", list(KEEPS_LATEST)).fetchone() is None:
            return False
        here, there = columns_of(connection), columns_of(connection, "old")
        if {table: set(names) for table, names in here.items()} != {table: set(names) for table, names in there.items()}:
            return False
        contents = (_contents(connection, database, here) for database in ("main", "old"))  # in one order of columns
        return next(contents) == next(contents)
    finally:
        connection.execute("DETACH old")


def _contents(connection: duckdb.DuckDBPyConnection, database: str, columns: dict[str, list[str]]) -> list[tuple[str, int, int | None]]:
    """Each table's name, the number of its rows and the sum of their hashes: equal for the same rows in whatever order."""
    asked = (
        f"SELECT '{table}', count(*), sum(hash({', '.join(columns[table])})) FROM {database}.{table}"  # noqa: S608 - names of the schema
        for table in _TABLES
    )
    return sorted(connection.execute(" UNION ALL ".join(asked)).fetchall())


def _by_content(databases: Sequence[Path]) -> list[Path]:
    """Each database once, in an order that depends only on their content: if two differ in a cell's text, the same one always wins."""
    found: dict[str, Path] = {}
    for path in databases:
        with reading(path):  # raises, with the file's name, unless it is a merged database of a supported version
            pass
        found.setdefault(sha256_of(path), path.absolute())
    return [found[digest] for digest in sorted(found)]


def _add_database(connection: duckdb.DuckDBPyConnection, database: Path) -> None:
    """Add the rows of a database that are not here yet."""
    try:
        with attached(connection, database, holder="another of these databases") as columns:
            connection.execute("BEGIN")
            plans = _united_plans(connection, database)
            add_rows(connection, {table: columns[table] for table in _TABLES})
            for plan in plans:
                put(connection, plan)
                connection.execute("UPDATE runs SET command = ? WHERE run_id = ?", [plan.command, plan.run_id])
            connection.execute("COMMIT")
    except duckdb.Error as error:
        raise StoreError(
            f"{database}: cannot be read as a merged database: {error}", advice="It is damaged: merge its runs again."
        ) from error


def _united_plans(connection: duckdb.DuckDBPyConnection, database: Path) -> list[Plan]:
    """The merged plans of runs whose plans differ between the databases."""
    differing = connection.execute(
        "SELECT run_id FROM runs h JOIN other.runs o USING (run_id) "
        "WHERE CAST(h.plan AS VARCHAR) IS DISTINCT FROM CAST(o.plan AS VARCHAR) ORDER BY run_id"
    ).fetchall()
    found = []
    for (run_id,) in differing:
        here = plan_in(connection, run_id, where="the databases before it")
        there = plan_in(connection, run_id, where=str(database), schema="other")
        if here is not None and there is not None:
            if here.command != there.command:  # one of the two was published
                here, there = plan_without_personal(here), plan_without_personal(there)
            found.append(united([("the databases before it", here), (str(database), there)]))
    return found


def _prune(connection: duckdb.DuckDBPyConnection, *, publish: bool, where: str) -> LatestReport:
    """Delete everything that the verdicts do not need, and check that no verdict changed."""
    connection.execute("SET VARIABLE publish = ?", [publish])
    executed = _count(connection, "cells", f"role = '{Role.MODEL.value}'")
    before = connection.execute(_SHOWN).fetchall()
    connection.execute("BEGIN")
    connection.execute(sql("prune.sql"))
    for (run_id,) in connection.execute("SELECT run_id FROM runs ORDER BY run_id").fetchall():
        plan = plan_in(connection, run_id, where=where)
        if plan is not None:
            put(connection, _restricted_to(plan, _kept_keys(connection, run_id)))
    if publish:
        connection.execute(sql("publish.sql"))
        clean(connection)
    after = connection.execute(_SHOWN).fetchall()
    if after != before:
        raise StoreError(f"{where}: {len(set(before) ^ set(after))} verdicts would have changed", advice=_HIDDEN_ADVICE)
    runs = [run_id for (run_id,) in connection.execute("SELECT run_id FROM runs").fetchall()]
    check_visible(connection, runs, where=where)
    connection.execute("COMMIT")
    left = _count(connection, "cells", f"role = '{Role.MODEL.value}'")
    return LatestReport(runs=len(runs), cells=len(after), superseded=executed - left)


def _kept_keys(connection: duckdb.DuckDBPyConnection, run_id: str) -> set[str]:
    return {key for (key,) in connection.execute("SELECT cell_key FROM kept WHERE run_id = ?", [run_id]).fetchall()}


def _restricted_to(plan: Plan, keys: set[str]) -> Plan:
    """A plan with only these of its cells, their models and their targets, in the order of :func:`in_order`."""
    cells = tuple(cell for cell in plan.cells if cell.key in keys)
    models = {cell.model_key for cell in cells}
    targets = {cell.target for cell in cells}
    return in_order(
        dataclasses.replace(
            plan,
            cells=cells,
            models=tuple(model for model in plan.models if model.role is not Role.MODEL or model.key in models),
            targets=tuple(target for target in plan.targets if target.name in targets or not plan.cells),
            withdrawn=(),
        )
    )


def _count(connection: duckdb.DuckDBPyConnection, table: str, condition: str) -> int:
    row: Any = connection.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone()  # noqa: S608 - our own words
    return int(row[0])


def _write(out: duckdb.DuckDBPyConnection, work: Path) -> None:
    """Copy everything, sorted, so that the same rows always have the same order."""
    quoted = str(work).replace("'", "''")
    out.execute("SET preserve_insertion_order = true; SET threads = 1")
    out.execute(f"ATTACH '{quoted}' AS work (READ_ONLY)")
    for table in _TABLES:
        out.execute(f"INSERT INTO {table} SELECT * FROM work.{table} ORDER BY {_SORTED.get(table, 'ALL')}")  # noqa: S608
    out.execute("DETACH work")
    out.execute("INSERT INTO meta VALUES (?, ?)", list(KEEPS_LATEST))
