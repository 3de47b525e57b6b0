"""Writes files atomically, and computes checksums."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write to a temporary name in the same folder, flush to disk, then rename. A failure leaves no temporary file."""
    write_together({path: content})


def write_together(contents: Mapping[Path, str | bytes], *, durable: bool = True) -> None:
    """Write several files: nothing is renamed before everything is written, so that a full disk leaves the old files intact.

    ``durable=False`` does not wait until the content is on disk. Use it for files that can be recreated.
    """
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp") for path in contents}
    try:
        for path, content in contents.items():
            with temporary[path].open("wb") as file:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
        for path in contents:
            temporary[path].replace(path)
    finally:
        for path in temporary.values():
            with contextlib.suppress(OSError):  # raise the first error, even if the cleanup fails too
                path.unlink(missing_ok=True)
