"""The cache of classifications: one DuckDB file that several processes may share. Everything also works without it, but slower.

If the file cannot be used now (another process writes, the disk is full, it is not writable), that is logged, and the answer is computed.
A broken file is renamed with the suffix ``.broken`` and replaced by a new one. A database of something else is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.resources
import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Final

import duckdb

from hwmatrix import __version__
from hwmatrix.errors import StoreError
from hwmatrix.records import Classification, from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA: Final = "hwmatrix/classifications/1"
_SCHEMA_PREFIX: Final = "hwmatrix/classifications/"
_LOG: Final = logging.getLogger(__name__)
_WAIT_S: Final = 1.0
"""How long to wait for other processes. Writing one entry takes about 20 ms."""
_THREAD_LOCK: Final = threading.Lock()
"""DuckDB lets a process open a file either for reading or for writing, so threads take turns."""
_BUSY: Final = ("Could not set lock", "different configuration")
_UNWRITABLE: Final = ("Permission denied", "Read-only file system", "No space left", "Cannot open file")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """All inputs of a classification. ``config`` is the text of a configuration, or None."""

    model_name: str
    model_class: str | None = None
    architecture: str | None = None
    tasks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    config: str | None = None

    def key(self) -> str:
        """The cache key. It includes the versions, since other versions may give another answer."""
        asked = json.dumps([dataclasses.asdict(self), versions()], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()


class _BusyError(Exception):
    """The file cannot be used now, but is not broken."""


class ClassificationCache:
    """The classifications in one file, which is opened on first use."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, question: Question) -> Classification | None:
        """The cached answer, or None.

        Raises:
            StoreError: the file is a database of something else, or a folder.
        """
        if not self._path.exists():
            return None
        try:
            with self._file_lock(fcntl.LOCK_SH), self._connected(read_only=True) as connection:
                if _schema_of(connection, self._path) != SCHEMA:
                    return None
                row = connection.execute("SELECT record FROM classifications WHERE question = ?", [question.key()]).fetchone()
        except (_BusyError, OSError) as busy:
            _LOG.info("classified without the cache %s: %s", self._path, busy)
            return None
        except duckdb.Error as error:
            self._quarantine(error)
            return None
        return self._read(row[0]) if row else None

    def put(self, question: Question, answer: Classification) -> None:
        """Store an answer, if that is possible now.

        Raises:
            StoreError: the file is a database of something else, or a folder.
        """
        try:
            with self._file_lock(fcntl.LOCK_EX):
                try:
                    self._write(question, answer)
                except duckdb.Error as error:
                    self._move_aside(error)
                    self._write(question, answer)
        except (_BusyError, OSError, duckdb.Error) as error:
            _LOG.warning("the classification of %s is not cached in %s: %s", question.model_name, self._path, error)

    def _write(self, question: Question, answer: Classification) -> None:
        with self._connected(read_only=False) as connection:
            found = _schema_of(connection, self._path)
            connection.execute("BEGIN")
            if found != SCHEMA:
                connection.execute("DROP TABLE IF EXISTS classifications; DROP TABLE IF EXISTS meta")
                connection.execute(_sql())
                connection.execute("INSERT INTO meta VALUES ('schema', ?)", [SCHEMA])
            row = {
                "question": question.key(),
                "model_name": question.model_name,
                "architecture": answer.architecture,
                "model_class": answer.model_class,
                "tasks": list(question.tasks),
                "methods": list(question.methods),
                "family": answer.family.value if answer.family else None,
                "subfamily": answer.subfamily,
                "confidence": answer.confidence,
                "versions": json.dumps(versions()),
                "record": to_json(answer),
            }
            marks = ", ".join("?" * len(row))
            connection.execute(
                f"INSERT OR REPLACE INTO classifications ({', '.join(row)}, classified_at) VALUES ({marks}, now() AT TIME ZONE 'UTC')",  # noqa: S608
                list(row.values()),
            )
            connection.execute("COMMIT")

    def _read(self, record: str) -> Classification | None:
        try:
            return from_json(Classification, record, where=str(self._path))
        except StoreError as error:
            _LOG.warning("classified again: %s", error.message)
            return None

    @contextlib.contextmanager
    def _connected(self, *, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
        """The open file.

        Raises:
            _BusyError: another process writes, or the file cannot be opened although it is not broken.
            StoreError: it is a folder.
            duckdb.Error: it is broken.
        """
        if self._path.is_dir():
            raise StoreError(f"{self._path}: it is a folder", advice="Name a file for the cache of classifications.")
        with _THREAD_LOCK:
            try:
                connection = duckdb.connect(str(self._path), read_only=read_only)
            except duckdb.Error as error:
                if any(words in str(error) for words in (*_BUSY, *_UNWRITABLE)):
                    raise _BusyError(str(error).partition(": Conflicting lock")[0]) from error
                raise
            with connection:
                yield connection

    @contextlib.contextmanager
    def _file_lock(self, kind: int) -> Iterator[None]:
        """Lock the file among all processes, shared (``LOCK_SH``) or exclusive (``LOCK_EX``). The system releases it when a process dies.

        DuckDB's own lock fails at once instead of waiting, so readers would keep writers out.

        Raises:
            _BusyError: the others did not finish in time.
            OSError: the folder is not writable.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + _WAIT_S
        with self._path.with_name(f"{self._path.name}.lock").open("ab") as lock:
            while True:
                try:
                    fcntl.flock(lock, kind | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise _BusyError("another process is using it") from None
                    time.sleep(0.02)
            yield

    def _quarantine(self, error: duckdb.Error) -> None:
        try:
            with self._file_lock(fcntl.LOCK_EX):
                self._move_aside(error)
        except (_BusyError, OSError) as failure:
            _LOG.warning("the cache of classifications %s is broken (%s) and could not be moved aside: %s", self._path, error, failure)

    def _move_aside(self, error: duckdb.Error) -> None:
        """Move a broken file aside, unless another process has already replaced it."""
        try:
            with self._connected(read_only=True) as connection:
                _schema_of(connection, self._path)
                connection.execute("SELECT max(record) FROM classifications")
        except duckdb.Error:
            broken = self._path.with_name(f"{self._path.name}.broken")
            self._path.replace(broken)
            self._path.with_name(f"{self._path.name}.wal").unlink(missing_ok=True)
            _LOG.warning(
                "the cache of classifications %s is broken and starts empty; the old file is now %s: %s", self._path, broken, error
            )


@functools.cache
def versions() -> dict[str, str | None]:
    """What could change a classification: the versions of hwmatrix and of transformers (None if it is not installed)."""
    try:
        transformers = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        transformers = None
    return {"hwmatrix": __version__, "transformers": transformers}


def _schema_of(connection: duckdb.DuckDBPyConnection, path: Path) -> str | None:
    """The version of the cache; None if the file is empty.

    Raises:
        StoreError: it is a database of something else.
    """
    tables = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if not tables:
        return None
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() if "meta" in tables else None
    if row is None or not row[0].startswith(_SCHEMA_PREFIX):
        message = f"{path}: it is a database, but not a cache of classifications"
        raise StoreError(message, advice="Name another file for the cache; this one is left unchanged.")
    return str(row[0])


def _sql() -> str:
    return (importlib.resources.files("hwmatrix.classifier") / "cache.sql").read_text(encoding="utf-8")
