"""One shard: the DuckDB file of one target's run, written cell by cell, and finished by a rename and a sidecar.

Until it is finished, its name is ``<name>.duckdb.partial``. Every cell is one transaction and a checkpoint, so that a killed
run keeps all finished cells. ``seal`` renames it and writes ``<name>.duckdb.json`` with its SHA-256 and row counts: a
shard without a matching sidecar is incomplete. (DuckDB opens a truncated write-ahead log without rows and without an error.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from typing import TYPE_CHECKING, Any, Final, Self

import duckdb
import numpy as np

from hwmatrix.basics.clock import utc_now
from hwmatrix.basics.files import sha256_of, write_atomically
from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import StoreError
from hwmatrix.records import CellResult, Classification, Detection, OperatorResult, Plan, to_json
from hwmatrix.store.cell_columns import SCHEMA_VERSION, cell_row, schema, sql
from hwmatrix.store.confined import opened
from hwmatrix.store.sidecar import COUNTED, SHARD_SCHEMA, sidecar_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

_LOG: Final = logging.getLogger(__name__)
PARTIAL_SUFFIX: Final = ".duckdb.partial"
_LOCKED: Final = "Could not set lock"
"""How DuckDB says that another process has a file open."""
_STILL_WRITTEN: Final = (
    "A runner still writes to it: its container may go on although its engine is gone. When it has ended (`docker ps`), "
    "continue with --resume: finished cells are kept."
)
BLOCK_SIZE: Final = "16384"
"""DuckDB's smallest block size: a shard of a few cells takes 0.3 MB instead of 3, which a merge has to hash."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardIdentity:
    """The software and the machine that produced a shard. ``host`` is a hash of the machine's identity."""

    shard_id: str
    target: str
    image: str | None
    image_digest: str | None
    host: str
    interpreter: str
    versions: dict[str, str]
    packages: dict[str, str]
    warm_up_ms: float | None


def insert_run(connection: duckdb.DuckDBPyConnection, plan: Plan, text: str | None = None) -> None:
    """Add this plan's row to ``runs``. ``text`` is the plan as JSON, if it is there already."""
    _insert(
        connection,
        "runs",
        {
            "run_id": plan.run_id,
            "created_at": plan.created_at,
            "command": plan.command,
            "hwmatrix_version": plan.hwmatrix_version,
            "matrix_sha256": plan.matrix_sha256,
            "commit_id": plan.commit,
            "isolation": plan.isolation.value,
            "plan": text if text is not None else to_json(plan),
        },
    )


class ShardWriter:
    """Writes one shard. Use as a context manager. ``seal`` finishes the shard; leaving without it keeps the partial file."""

    def __init__(self, directory: Path, plan: Plan, identity: ShardIdentity) -> None:
        self._plan = plan
        self._identity = identity
        self._path = directory / f"{identity.target}-{identity.shard_id}{PARTIAL_SUFFIX}"
        self._connection: duckdb.DuckDBPyConnection | None = None

    def __enter__(self) -> Self:
        """Create the file with its tables.

        Raises:
            StoreError: the folder cannot be written.
        """
        try:
            self._connection = duckdb.connect(str(self._path), config={"default_block_size": BLOCK_SIZE})
            self._connection.execute("SET threads = 1")
            self._connection.execute("BEGIN")
            self._connection.execute(schema(checked=False))
            _insert(self._connection, "meta", {"key": "schema_version", "value": SCHEMA_VERSION})
            insert_run(self._connection, self._plan)
            self._insert_shard(self._connection)
            self._commit()
        except duckdb.Error as error:
            self.__exit__(None, None, None)
            raise _cannot_write(self._path, error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the file, whatever happened."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def add_detections(self, detections: list[Detection]) -> None:
        """Store the detected hardware."""
        with self._transaction() as connection:
            for found in detections:
                row = dataclasses.asdict(found) | {"shard_id": self._identity.shard_id, "features": json.dumps(found.features)}
                _insert(connection, "detections", row)

    def add_classifications(self, classifications: Sequence[Classification]) -> None:
        """Store the classifications of the models by the packages of this environment.

        Raises:
            StoreError: the disk is full or the file cannot be written.
        """
        with self._transaction() as connection:
            for found in classifications:
                row = dataclasses.asdict(found)
                row["model"] = row.pop("model_name")
                _insert(connection, "classifications", row | {"shard_id": self._identity.shard_id})

    def add_cell(self, result: CellResult, *, command: str) -> None:
        """Store one finished cell in one transaction.

        Raises:
            StoreError: the disk is full or the file cannot be written.
        """
        cell_id = f"{self._identity.shard_id}/{result.role.value}/{result.key}"
        with self._transaction() as connection:
            _insert(connection, "cells", cell_row(result, cell_id, self._identity.shard_id, self._plan.run_id, command))
            for stage, wall_ms in result.stages.items():
                _insert(connection, "stages", {"cell_id": cell_id, "stage": stage.value, "wall_ms": wall_ms})
            for output in result.outputs:
                parity = dataclasses.asdict(output.parity) if output.parity else {}
                row = {"cell_id": cell_id, "name": output.name, "shape": list(output.shape), "dtype": output.dtype}
                _insert(connection, "outputs", row | parity)
            if result.samples_wall_ns:
                self._insert_samples(connection, cell_id, result)

    def add_operators(self, results: Sequence[OperatorResult]) -> None:
        """Store the results of some operator tests in one transaction.

        Raises:
            StoreError: the disk is full or the file cannot be written.
        """
        with self._transaction() as connection:
            for result in results:
                row = dataclasses.asdict(result) | {"shard_id": self._identity.shard_id, "needs": list(result.needs)}
                _insert(connection, "operators", row)

    def set_canaries(self, *, ok: bool | None, detail: str | None) -> None:
        """Store whether the canaries ended as expected. Call it at once, so that an interrupted shard has the result too."""
        with self._transaction() as connection:
            connection.execute("UPDATE shards SET canary_ok = ?, canary_detail = ?", [ok, detail])

    def seal(self) -> Path:
        """Finish the shard: checkpoint, sidecar, rename. The writer is closed afterwards."""
        connection = self._open()
        try:
            connection.execute("UPDATE shards SET finished_at = ?", [utc_now()])
        except duckdb.Error as error:
            raise _cannot_write(self._path, error) from error
        self.__exit__(None, None, None)
        return seal_file(self._path)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A transaction, which is on disk when the block ends.

        Raises:
            StoreError: the disk is full or the file cannot be written.
        """
        connection = self._open()
        try:
            connection.execute("BEGIN")
            yield connection
            self._commit()
        except duckdb.Error as error:
            raise _cannot_write(self._path, error) from error

    def _insert_shard(self, connection: duckdb.DuckDBPyConnection) -> None:
        identity = dataclasses.asdict(self._identity) | {
            "run_id": self._plan.run_id,
            "isolation": self._plan.isolation_of(self._identity.target).value,
            "versions": json.dumps(self._identity.versions),
            "packages": json.dumps(self._identity.packages),
            "started_at": utc_now(),
        }
        _insert(connection, "shards", identity)

    def _insert_samples(self, connection: duckdb.DuckDBPyConnection, cell_id: str, result: CellResult) -> None:
        """Insert samples through registered arrays: about twenty times faster than row by row."""
        samples = {
            "n": np.arange(len(result.samples_wall_ns), dtype=np.int32),
            "wall_ns": np.asarray(result.samples_wall_ns, dtype=np.int64),
        }
        if result.samples_cpu_ns:
            samples["cpu_ns"] = np.asarray(result.samples_cpu_ns, dtype=np.int64)
        connection.register("new_samples", samples)
        columns = ", ".join(samples)
        connection.execute(f"INSERT INTO samples (cell_id, {columns}) SELECT ?, {columns} FROM new_samples", [cell_id])  # noqa: S608
        connection.unregister("new_samples")

    def _commit(self) -> None:
        connection = self._open()
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT")

    def _open(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            raise StoreError(f"{self._path}: the shard is closed", advice="This is a bug of hwmatrix.")
        return self._connection


def seal_file(partial: Path) -> Path:
    """Turn a closed partial file into a finished shard: count rows, write the sidecar, rename. Also recovers the file of a killed run.

    The rename comes last: if the process is killed before it, the file is still partial and is sealed again. A renamed shard without
    a sidecar would count as finished and never be merged.

    Raises:
        StoreError: the file cannot be read or is empty.
    """
    final = partial.with_name(partial.name.removesuffix(".partial"))
    try:
        with opened(partial, read_only=False) as connection:
            connection.execute("CHECKPOINT")
            counts = {table: _count(connection, table) for table in COUNTED}
            identity = connection.execute("SELECT shard_id, run_id, target FROM shards").fetchone()
    except duckdb.Error as error:
        raise StoreError(f"{partial}: cannot be read: {error}", advice="Nothing in it can be saved: delete it.") from error
    if identity is None:
        raise StoreError(f"{partial}: holds no shard", advice="Nothing in it can be saved: delete it.")
    sidecar = {
        "schema": SHARD_SCHEMA,
        "shard_id": identity[0],
        "run_id": identity[1],
        "target": identity[2],
        "sha256": sha256_of(partial),
        "bytes": partial.stat().st_size,
        "counts": counts,
    }
    write_atomically(sidecar_path(final), json.dumps(sidecar, indent=1) + "\n")
    partial.replace(final)
    return final


def finished_cells(shards: list[Path]) -> set[str]:
    """The keys of the cells (including adapted ones) with a trustworthy verdict in these shards.

    Raises:
        StoreError: one of them cannot be read.
    """
    return _keys(shards, "finished_cells")


def settled_cells(shards: list[Path]) -> set[str]:
    """The finished cells that need not run again: all but those that failed because of hwmatrix or the machine, which may be temporary.

    Raises:
        StoreError: one of them cannot be read.
    """
    return _keys(shards, "settled_cells")


def _keys(shards: list[Path], name: str) -> set[str]:
    """The keys that a query returns, over all shards."""
    keys: set[str] = set()
    for shard in shards:
        try:
            with opened(shard) as connection:
                keys.update(key for (key,) in connection.execute(sql(f"queries/{name}.sql")).fetchall())
        except duckdb.Error as error:
            raise StoreError(f"{shard}: cannot be read: {error}", advice="Delete it: its cells will be run again.") from error
    return keys


def salvage(directory: Path, target: str | None = None) -> list[Path]:
    """Seal every partial shard (of one target). Call it only when no runner is writing any more.

    An unreadable shard gets the suffix ``.broken``: nothing in it can be recovered, and its cells run again. So does a finished shard that
    was damaged later: no merge would take it, so its cells must not count as finished.

    Raises:
        StoreError: a shard holds cells and cannot be sealed now: the disk is full, or another process still has it open.
    """
    sealed: list[Path] = []
    for partial in sorted(directory.glob(f"{target or '*'}-*{PARTIAL_SUFFIX}")):
        try:
            sealed.append(seal_file(partial))
        except StoreError as error:
            if not _is_lost(partial):
                advice = (
                    _STILL_WRITTEN if _LOCKED in str(error) else "Free disk space, then continue with --resume: finished cells are kept."
                )
                raise StoreError(f"{partial}: cannot be sealed now: {error.message}", advice=advice) from error
            _LOG.warning("%s", error)
            _set_aside(partial)
    for shard in sorted(directory.glob(f"{target or '*'}-*.duckdb")):
        if (problem := _damage(shard)) is not None:
            _LOG.warning("%s: %s; its cells will be run again", shard, problem)
            _set_aside(shard)
    return sealed


def _set_aside(shard: Path) -> None:
    shard.replace(shard.with_name(f"{shard.name}.broken"))
    shard.with_name(f"{shard.name}.wal").unlink(missing_ok=True)


def _damage(shard: Path) -> str | None:
    """Why a finished shard is not the one that was sealed; None if it is."""
    try:
        sidecar = read_json(sidecar_path(shard).read_bytes())
        whole = sidecar["sha256"] == sha256_of(shard)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its sidecar is missing or broken: {error!r}"
    return None if whole else "its SHA-256 is not the one in its sidecar"


def _is_lost(partial: Path) -> bool:
    """Whether a partial shard is unreadable or empty. One that another process has open is not lost."""
    try:
        with opened(partial) as connection:
            return _count(connection, "shards") == 0
    except duckdb.Error as error:
        return _LOCKED not in str(error)


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - a name of COUNTED
    return int(row[0]) if row else 0


def _insert(connection: duckdb.DuckDBPyConnection, table: str, row: dict[str, Any]) -> None:
    columns, marks = ", ".join(row), ", ".join("?" for _ in row)
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(row.values()))  # noqa: S608 - our own names


def _cannot_write(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"{path}: cannot be written: {error}",
        advice="Free disk space or choose another --output-dir, then continue with --resume: finished cells are kept.",
    )
