"""Changes a merged database: always in a copy, which then replaces it by a rename, so that a failure changes nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Final

import duckdb

from hwmatrix.errors import StoreError
from hwmatrix.store.cell_columns import SCHEMA_VERSION, schema, sql
from hwmatrix.store.reading import reading
from hwmatrix.store.shard import BLOCK_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHECKPOINT_AT: Final = "64MB"
"""Size of the write-ahead log at which DuckDB writes it into the file: four times its default, since nothing is recovered from the log."""


@contextlib.contextmanager
def rewriting(database: Path, what: str, *, fresh: bool = False, small_blocks: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a copy of the database (empty, if there is none or if ``fresh``). The copy replaces the original at the end.

    ``what`` names the operation in error messages. ``small_blocks`` creates a new database with the smallest block size, so that a small
    one takes less space.

    Raises:
        StoreError: the database is not a merged one, is of another version, or the disk is full; also for any error of
            the database inside the block. The original is then unchanged.
    """
    temporary = database.with_name(f".{database.name}.{os.getpid()}.tmp")
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{database.parent}: cannot be created: {error}", advice="Name another place for the database.") from error
    try:
        if database.exists() and not fresh:
            with reading(database):  # raises unless it is a merged database of this version
                shutil.copyfile(database, temporary)
        with duckdb.connect(str(temporary), config={"default_block_size": BLOCK_SIZE} if small_blocks else {}) as connection:
            connection.execute("SET preserve_insertion_order = false")  # samples are numbered
            connection.execute(f"SET checkpoint_threshold = '{_CHECKPOINT_AT}'")
            _prepare(connection)
            yield connection
            connection.execute("CHECKPOINT")
        temporary.replace(database)
    except (duckdb.Error, OSError) as error:
        advice = "The database is as it was before."
        raise StoreError(f"{database}: {what} failed: {error}", advice=advice) from error
    finally:
        for leftover in (temporary, temporary.with_name(f"{temporary.name}.wal")):
            leftover.unlink(missing_ok=True)


def _prepare(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the tables, if there are none, and the current views."""
    connection.execute("BEGIN")  # one flush to the disk, not one per table
    if connection.execute("SELECT 1 FROM duckdb_tables() LIMIT 1").fetchone() is None:
        connection.execute(schema())
        connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", [SCHEMA_VERSION])
    connection.execute(sql("views.sql"))
    connection.execute("COMMIT")
