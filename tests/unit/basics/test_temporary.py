"""Folders of living processes stay; those of ended ones are removed."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from hwmatrix.basics import temporary

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_only_folders_of_ended_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours = temporary.make_folder("hwmatrix-a-")
    ended = tmp_path / "hwmatrix-a-999999-1.00-x"
    of_others = tmp_path / "hwmatrix-b-999999-1.00-x"
    for folder in (ended, of_others):
        (folder / "graph").mkdir(parents=True)
    temporary.remove_leftovers("hwmatrix-a-")
    assert {*tmp_path.iterdir()} == {ours, of_others}
