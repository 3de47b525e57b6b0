from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from hwmatrix.runner.identity import packages

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_an_interrupted_installation_left_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("importlib_metadata")  # once imported it answers, and raises where the standard library returns nothing
    for name, metadata in (("half-1.dist-info", None), ("empty-1.dist-info", ""), ("Whole-1.dist-info", "Name: Whole\nVersion: 1\n")):
        (tmp_path / name).mkdir()
        if metadata is not None:
            (tmp_path / name / "METADATA").write_text(metadata, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert packages() == {"Whole": "1"}
