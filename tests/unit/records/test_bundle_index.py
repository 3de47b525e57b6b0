from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.errors import StoreError
from hwmatrix.records import Size
from hwmatrix.records.bundle_index import INDEX, BundleEntry, read_index, write_index

if TYPE_CHECKING:
    from pathlib import Path

ENTRIES = [
    BundleEntry(model="bert", size=Size.TINY, batch=1, sequence_length=16, key="a" * 64, digest="b" * 64),
    BundleEntry(model="bert", size=Size.TINY, batch=8, sequence_length=16, error_type="factory_failed", message="no", traceback="why"),
]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_index(tmp_path / INDEX, ENTRIES)
    assert [*read_index(tmp_path / INDEX).values()] == ENTRIES


@pytest.mark.parametrize(
    "change", [{"schema": "hwmatrix/bundle-index/1"}, {"bundles": None}, {"more": 1}, {"bundles": [{"model": "bert"}]}]
)
def test_another_version_or_form_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    write_index(tmp_path / INDEX, ENTRIES)
    (tmp_path / INDEX).write_text(json.dumps(json.loads((tmp_path / INDEX).read_bytes()) | change), encoding="utf-8")
    with pytest.raises(StoreError, match=INDEX):
        read_index(tmp_path / INDEX)


def test_a_missing_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=INDEX):
        read_index(tmp_path / INDEX)
