"""JSON that others wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import BundleError, StoreError
from hwmatrix.models.bundle import verify
from hwmatrix.records import plan_from_json
from hwmatrix.store.sidecar import read_sidecar, sidecar_path

if TYPE_CHECKING:
    from pathlib import Path

DEEP = "[" * 100_000


def test_text_that_is_nested_too_deeply_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(DEEP)
    with pytest.raises(StoreError, match="not JSON: Invalid JSON: recursion limit exceeded"):
        plan_from_json(DEEP, where="plan.json")
    sidecar_path(tmp_path / "cpu.duckdb").write_text(DEEP, encoding="ascii")
    with pytest.raises(StoreError, match="nested too deeply"):
        read_sidecar(tmp_path / "cpu.duckdb")
    (tmp_path / "manifest.json").write_text(DEEP, encoding="ascii")
    with pytest.raises(BundleError, match="nested too deeply"):
        verify(tmp_path)


def test_other_text_is_parsed_as_json_does() -> None:
    assert read_json(b'{"a": [1, null]}') == {"a": [1, None]}
    with pytest.raises(ValueError, match="Expecting value"):
        read_json("")
