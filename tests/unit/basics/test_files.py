"""Files are written completely or not at all."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from hwmatrix.basics.files import sha256_of, write_atomically, write_together

if TYPE_CHECKING:
    from pathlib import Path


def test_text_and_bytes_replace_an_existing_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_atomically(file, "käse\n")
    assert file.read_bytes() == "käse\n".encode()
    write_atomically(file, b"\x00")
    assert file.read_bytes() == b"\x00"
    assert sha256_of(file) == hashlib.sha256(b"\x00").hexdigest()
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("durable", [True, False])
def test_if_one_file_cannot_be_written_none_changes(tmp_path: Path, durable: bool) -> None:  # noqa: FBT001 - a parameter of the test
    old = tmp_path / "old"
    old.write_text("before", encoding="utf-8")
    with pytest.raises(OSError, match="missing"):
        write_together({old: "after", tmp_path / "missing" / "new": "x"}, durable=durable)
    assert old.read_text(encoding="utf-8") == "before"
    assert list(tmp_path.iterdir()) == [old]
