"""Caches the content of a file until the file changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Value = TypeVar("Value")


class Reread(Generic[Value]):
    """Reads a file by a function, and again when its size or the moment of its last change is another."""

    def __init__(self, read: Callable[[Path], Value]) -> None:
        self._read = read
        self._kept: dict[Path, tuple[tuple[int, int], Value]] = {}

    def of(self, path: Path) -> Value:
        """What the file says now. What the function raises is raised, also for a file that is not there."""
        try:
            stat = path.stat()
        except OSError:
            return self._read(path)
        state = (stat.st_mtime_ns, stat.st_size)
        if path not in self._kept or self._kept[path][0] != state:
            self._kept[path] = (state, self._read(path))
        return self._kept[path][1]
