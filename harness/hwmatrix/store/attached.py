"""Another merged database, attached beside the open one as ``other``, to copy its rows."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb

_KNOWN: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "runs": ("runs", ("run_id",)),
    "planned": ("runs", ("run_id",)),
    "shards": ("shards", ("shard_id",)),
    "detections": ("shards", ("shard_id",)),
    "classifications": ("classifications", ("shard_id",)),
    "cells": ("cells", ("cell_id",)),
    "stages": ("cells", ("cell_id",)),
    "outputs": ("cells", ("cell_id",)),
    "samples": ("cells", ("cell_id",)),
    "timings": ("cells", ("cell_id",)),
    "operators": ("operators", ("shard_id", "test")),
    "releases": ("releases", ("run_id",)),
    "rejected": ("rejected", ("run_id", "file", "reason")),
}
"""For each table: the table and the keys that decide whether a row is known already. A cell's rows are copied only if the cell is new."""


@contextlib.contextmanager
def attached(connection: duckdb.DuckDBPyConnection, database: Path, *, holder: str) -> Iterator[dict[str, list[str]]]:
    """Attach a database for a ``with`` block: the tables of both, each with its columns in one order.

    ``holder`` names what the open database has so far, for the error.

    Raises:
        StoreError: it lacks a table or a column of its schema version, or has a view instead, which could read other files; one of its
            shards differs from the open database's with the same id.
    """
    quoted = str(database).replace("'", "''")
    connection.execute(f"ATTACH '{quoted}' AS other (READ_ONLY)")
    try:
        columns, theirs = columns_of(connection), columns_of(connection, "other")
        if lacking := sorted(table for table, names in columns.items() if not set(names) <= set(theirs.get(table, ()))):
            what = f"{database}: it lacks columns, or has views instead of tables: {', '.join(lacking)}"
            raise StoreError(what, advice="It is damaged, or no hwmatrix wrote it: merge its runs again.")
        _refuse_other_content(connection, database, holder)
        yield columns
    finally:
        connection.execute("DETACH other")


def columns_of(connection: duckdb.DuckDBPyConnection, database: str | None = None) -> dict[str, list[str]]:
    """The columns of each table (not of views) of the open database, or of the one that is attached under this name."""
    rows = connection.execute(
        "SELECT table_name, list(column_name ORDER BY column_index) FROM duckdb_columns() "
        "JOIN duckdb_tables() USING (database_name, schema_name, table_name) "
        "WHERE database_name = coalesce(?, current_database()) GROUP BY table_name",
        [database],
    ).fetchall()
    return dict(rows)


def add_rows(connection: duckdb.DuckDBPyConnection, columns: dict[str, list[str]]) -> None:
    """Copy the rows of the attached database that are not known yet: of these tables, each with its columns."""
    for table in sorted(columns, key=lambda table: (_KNOWN[table][0] == table, table)):  # dependent rows first
        place, keys = _KNOWN[table]
        same = " AND ".join(f"h.{key} IS NOT DISTINCT FROM o.{key}" for key in keys)
        named = ", ".join(columns[table])
        known = f"EXISTS (SELECT 1 FROM main.{place} h WHERE {same})"  # noqa: S608 - names of the schema
        connection.execute(f"INSERT INTO {table} ({named}) SELECT {named} FROM other.{table} o WHERE NOT {known}")  # noqa: S608


def _refuse_other_content(connection: duckdb.DuckDBPyConnection, database: Path, holder: str) -> None:
    row = connection.execute(
        "SELECT o.shard_id FROM other.shards o JOIN shards s USING (shard_id) WHERE o.sha256 IS DISTINCT FROM s.sha256 LIMIT 1"
    ).fetchone()
    if row is not None:
        raise StoreError(
            f"{database}: its shard {row[0]} differs from the one with the same id in {holder}",
            advice="One of the two was changed after it was merged: find out which, and merge its shards again.",
        )
