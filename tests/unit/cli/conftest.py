"""The working folder of the commands."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from hwmatrix.app import execution

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the module's ``MATRIX`` as matrix.yaml, outside a git checkout, with a separate cache."""
    (tmp_path / "matrix.yaml").write_text(request.module.MATRIX, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(execution, "commit_of", lambda _root: None)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)
