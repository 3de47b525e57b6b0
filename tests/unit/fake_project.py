"""A project of somebody's: a folder with a matrix.yaml, outside a git checkout, where the commands run that a test calls."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

from hwmatrix.cli import planning, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest


@contextlib.contextmanager
def project_at(folder: Path, matrix: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Be in this folder, with a cache of its own. What a command does when it is told to end is undone afterwards."""
    (folder / "matrix.yaml").write_text(matrix, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HWMATRIX_CACHE", str(folder / "cache"))
    for module in (running, planning):
        monkeypatch.setattr(module, "commit_of", lambda _root: None)
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield folder
    finally:
        signal.signal(signal.SIGTERM, before)
