"""The cache of classifications: one SQLite file, which several processes may share."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import logging
import sqlite3
from typing import TYPE_CHECKING, Any, Final

from hwmatrix import __version__
from hwmatrix.errors import StoreError
from hwmatrix.records import Classification, from_json, to_json

if TYPE_CHECKING:
    from pathlib import Path

_TABLE: Final = "CREATE TABLE IF NOT EXISTS classifications (question TEXT PRIMARY KEY, answer TEXT NOT NULL)"
_LOG: Final = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """All inputs of a classification."""

    model_name: str
    model_class: str | None = None
    architecture: str | None = None
    tasks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    config: dict[str, Any] | None = None

    def key(self) -> str:
        """The cache key, as JSON. It includes the versions, since other versions may give another answer."""
        return json.dumps(dataclasses.asdict(self) | versions(), sort_keys=True)


class ClassificationCache:
    """The classifications in one file. If it cannot be used now (locked, not writable, disk full), that is logged and nothing cached."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, question: Question) -> Classification | None:
        """The cached answer, or None.

        Raises:
            StoreError: the file is no SQLite database.
        """
        rows = self._execute("SELECT answer FROM classifications WHERE question = ?", question.key()) if self._path.exists() else []
        try:
            return from_json(Classification, rows[0][0], where=str(self._path)) if rows else None
        except StoreError as error:
            _LOG.warning("classified again: %s", error)
            return None

    def put(self, question: Question, answer: Classification) -> None:
        """Store an answer, if that is possible now.

        Raises:
            StoreError: the file is no SQLite database.
        """
        self._execute("INSERT OR REPLACE INTO classifications VALUES (?, ?)", question.key(), to_json(answer))

    def _execute(self, statement: str, *values: str) -> list[Any]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
                connection.execute(_TABLE)
                return connection.execute(statement, values).fetchall()
        except (OSError, sqlite3.OperationalError) as error:
            _LOG.warning("the cache of classifications %s is not used: %s", self._path, error)
            return []
        except sqlite3.DatabaseError as error:
            advice = "Name another file for the cache, or delete this one; it is left unchanged."
            raise StoreError(f"{self._path}: it is not a cache of classifications: {error}", advice=advice) from error


@functools.cache
def versions() -> dict[str, str | None]:
    """What could change a classification: the versions of hwmatrix and of transformers (None if it is not installed)."""
    try:
        transformers = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        transformers = None
    return {"hwmatrix": __version__, "transformers": transformers}
