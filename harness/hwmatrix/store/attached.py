"""Another merged database, attached beside the open one as ``other``, to copy its rows."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hwmatrix.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb


@contextlib.contextmanager
def attached(connection: duckdb.DuckDBPyConnection, database: Path, *, holder: str) -> Iterator[dict[str, list[str]]]:
    """Attach a database for a ``with`` block: its tables, each with the columns that the open database has too.

    An older schema has fewer. ``holder`` names what the open database has so far, for the error.

    Raises:
        StoreError: one of its shards differs from the open database's with the same id.
    """
    quoted = str(database).replace("'", "''")
    connection.execute(f"ATTACH '{quoted}' AS other (READ_ONLY)")
    try:
        _refuse_other_content(connection, database, holder)
        yield _shared_columns(connection)
    finally:
        connection.execute("DETACH other")


def _shared_columns(connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    rows = connection.execute(
        "SELECT o.table_name, list(o.column_name ORDER BY o.column_index) FROM duckdb_columns() o "
        "JOIN duckdb_columns() h ON h.table_name = o.table_name AND h.column_name = o.column_name "
        "JOIN duckdb_tables() t ON t.table_oid = o.table_oid AND t.database_name = 'other' "  # a view could read other files
        "WHERE o.database_name = 'other' AND h.database_name = current_database() GROUP BY o.table_name"
    ).fetchall()
    return dict(rows)


def _refuse_other_content(connection: duckdb.DuckDBPyConnection, database: Path, holder: str) -> None:
    row = connection.execute(
        "SELECT o.shard_id FROM other.shards o JOIN shards s USING (shard_id) WHERE o.sha256 IS DISTINCT FROM s.sha256 LIMIT 1"
    ).fetchone()
    if row is not None:
        raise StoreError(
            f"{database}: its shard {row[0]} differs from the one with the same id in {holder}",
            advice="One of the two was changed after it was merged: find out which, and merge its shards again.",
        )
