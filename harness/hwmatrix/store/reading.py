"""Reads a merged database: opens it, checks its version, and turns rows into records."""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
from typing import TYPE_CHECKING, Any, Final

import duckdb

from hwmatrix.errors import StoreError
from hwmatrix.store.cell_columns import SCHEMA_VERSION, sql
from hwmatrix.store.confined import opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DATABASE: Final = "matrix.duckdb"
"""The name of the merged database in a folder of reports."""

KEEPS_LATEST: Final = ("keeps", "the latest verdict of every cell")
"""The row of ``meta`` that marks a database from which superseded verdicts were removed."""

OTHER_RESULTS: Final = "other results: --run ID, --database PATH"
"""For the hint of what a run does not have."""
_MISSING_ADVICE: Final = "Run models (hwmatrix matrix), or name another database."
_ADVICE: Final = "Merge the shards of a run into a new file (hwmatrix merge --database FILE), or name another database."
_ADVICE_VERSION: Final = "Use the hwmatrix that wrote it, or run the cells again and merge their shards into a new file."


def database_at(place: Path) -> Path:
    """The database at a path: the file itself, or the one in a folder of reports."""
    return place / DATABASE if place.is_dir() else place


@contextlib.contextmanager
def reading(database: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a merged database, or the one in a folder of reports, for reading.

    No query, and no view in it, can change it or access any other file.

    It uses one thread: floats are always summed in the same order, so the same rows give the same bytes.

    Raises:
        StoreError: it is missing, is not a merged database, is being written, or is of an unsupported version; also for
            any error of the database inside the block.
    """
    database = database_at(database)
    if not database.is_file():
        raise StoreError(f"{database}: there is no such file", advice=_MISSING_ADVICE)
    try:
        with opened(database, threads=1) as connection:
            _check(connection, database)
            yield connection
    except duckdb.Error as error:
        raise StoreError(f"{database}: cannot be read as a merged database: {error}", advice=_ADVICE) from error


@functools.cache
def query(name: str) -> str:
    """The text of ``queries/<name>.sql``.

    Raises:
        FileNotFoundError: there is no such query.
    """
    text: str = (_folder() / f"{name}.sql").read_text(encoding="utf-8")
    return text


def names() -> tuple[str, ...]:
    """The names of all queries."""
    return tuple(sorted(entry.name.removesuffix(".sql") for entry in _folder().iterdir() if entry.name.endswith(".sql")))


def records(
    connection: duckdb.DuckDBPyConnection, name: str, parameters: Mapping[str, Any] | None = None, *, views: str = ""
) -> list[dict[str, Any]]:
    """The rows that one of the queries returns, by column. ``views`` replace those of the database: see :func:`narrow`."""
    cursor = connection.execute(views + query(name), dict(parameters) if parameters is not None else None)
    columns = [column[0] for column in cursor.description or ()]
    return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


def keeps_latest(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether superseded verdicts were removed from a database: then all of its runs together are one matrix."""
    return connection.execute("SELECT 1 FROM meta WHERE key = ? AND value = ?", list(KEEPS_LATEST)).fetchone() is not None


def narrow(connection: duckdb.DuckDBPyConnection, model: str) -> str:
    """Restrict the view ``matrix`` to one model, before anything is computed: speeds are compared within a model.

    A history of a hundred releases has half a million cells, and a filter behind the view's windows would be applied last.

    Returns the restricted views as a WITH clause for :func:`records`. As views of this connection, each would be planned when it is created
    and again in the query.
    """
    ((database,),) = connection.execute("SELECT current_database()").fetchall()
    quoted = model.replace("'", "''")  # a view takes no parameter
    for kind, table in (("TABLE", "planned"), ("VIEW", "cells")):  # to copy the cells, all their columns would be read
        connection.execute(f"CREATE TEMP {kind} {table} AS FROM \"{database}\".main.{table} WHERE model = '{quoted}'")
    for table in ("samples", "timings"):
        connection.execute(f'CREATE TEMP TABLE {table} AS FROM "{database}".main.{table} SEMI JOIN temp.cells USING (cell_id)')
    views = ("latency", "adaptations", "results", "matrix")
    return "WITH " + ", ".join(f"{name} AS ({_text_of(name).partition('AS')[2]})" for name in views) + "\n"


def _text_of(view: str) -> str:
    """The definition of a view in views.sql."""
    return sql("views.sql").partition(f"CREATE OR REPLACE VIEW {view} ")[2].partition(";\n")[0]


def _folder() -> Any:
    return importlib.resources.files("hwmatrix.store") / "queries"


def _check(connection: duckdb.DuckDBPyConnection, database: Path) -> None:
    """Raise StoreError if this is not a merged database, or of another version."""
    asked = connection.execute("SELECT table_name FROM duckdb_tables() UNION SELECT view_name FROM duckdb_views()")
    found = {name for (name,) in asked.fetchall()}
    if not {"meta", "runs", "matrix"} <= found:
        shard = " It looks like a shard, which has to be merged first." if "shards" in found else ""
        raise StoreError(f"{database}: not a merged database of hwmatrix.{shard}", advice=_ADVICE)
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    version = row[0] if row else "none"
    if version != SCHEMA_VERSION:
        raise StoreError(f"{database}: schema version {version}, this hwmatrix reads {SCHEMA_VERSION}", advice=_ADVICE_VERSION)
