"""Opens untrusted shards and databases: nothing inside them can access other files.

In DuckDB, what looks like a table can be a view, and a view can read any file or address that the process may read
(``read_text('/home/...')``). Connections opened here can access nothing else, and SQL cannot change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import duckdb

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SETTINGS: Final[dict[str, bool | int | float | str | list[str]]] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "lock_configuration": "true",
}


def opened(file: Path, *, read_only: bool = True, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """A connection to one shard or database, which can access only that file. The caller closes it.

    Raises:
        duckdb.Error: the file is not a database, or another process is writing to it.
    """
    settings = _SETTINGS if threads is None else _SETTINGS | {"threads": threads}
    return duckdb.connect(str(file), read_only=read_only, config=settings)


def confine(connection: duckdb.DuckDBPyConnection, files: Iterable[Path]) -> None:
    """Restrict a connection to its own database and these files, which may be attached. This cannot be undone."""
    allowed = [str(path) for file in files for path in (file, file.with_name(f"{file.name}.wal"))]
    connection.execute("SET allowed_paths = $paths", {"paths": allowed})
    for name, value in _SETTINGS.items():
        connection.execute(f"SET {name} = {value}")
