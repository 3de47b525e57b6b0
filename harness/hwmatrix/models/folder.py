"""Self-verifying folders: every file listed with its size and SHA-256, written to a temporary folder, then renamed.

Whoever makes a folder writes its files, then a manifest with the :func:`listing` of them, then calls :func:`settle` and renames.
Whoever reads one calls :func:`check` with the listing of its manifest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.files import sha256_of
from hwmatrix.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANIFEST: Final = "manifest.json"
LOCKS: Final = ".locks"
MODEL_DIR: Final = "model"
INPUTS: Final = "inputs.safetensors"
EXPECTED: Final = "expected.safetensors"
"""What a bundle has: the saved model, its inputs, and what the reference gives for them."""
HELD_OUT: Final = "held_out.safetensors"
"""What a bundle of a trained model has besides: inputs that training never saw, the reference's answers and the right ones."""


def listing(path: Path) -> dict[str, dict[str, Any]]:
    """Size in bytes and SHA-256 of every file of a folder, by its name within the folder."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): {"size": file.stat().st_size, "sha256": sha256_of(file)} for file in files}


def check(path: Path, files: dict[str, dict[str, Any]]) -> None:
    """Check a folder against a listing: size and checksum of every file, none missing, none extra, no links.

    Raises:
        BundleError: what is wrong, and with which file (``bundle_broken``).
    """
    present = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_symlink() or not file.is_dir()} - {MANIFEST}
    for name in sorted(present ^ files.keys()):
        state = "is not in its manifest" if name in present else "is missing"
        raise BundleError(f"{path / name} {state}", error_type="bundle_broken")
    for name, listed in files.items():
        file = path / name
        try:
            if file.is_symlink() or file.stat().st_size != listed["size"] or sha256_of(file) != listed["sha256"]:
                raise BundleError(f"{file} differs in size or checksum from its manifest", error_type="bundle_broken")
        except OSError as error:
            raise BundleError(f"{file} cannot be read: {error}", error_type="bundle_broken") from error


@contextlib.contextmanager
def locked(cache: Path, key: str) -> Iterator[None]:
    """Hold a key alone, among all processes and containers of this machine. The system releases it when a process dies.

    Raises:
        BundleError: the cache cannot be written to (``cache_not_writable``).
    """
    try:
        (cache / LOCKS).mkdir(parents=True, exist_ok=True)
        lock = (cache / LOCKS / key).open("ab")
    except OSError as error:
        message = f"cannot write to the bundle cache {cache}: {error}; name another cache"
        raise BundleError(message, error_type="cache_not_writable") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def discard(path: Path) -> None:
    """Remove a folder in such an order that what is left of it can never pass for a whole one."""
    (path / MANIFEST).unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path)


def settle(path: Path) -> None:
    """Have every file of a folder on the disk, and readable for the users of all containers, before it is put in place."""
    for file in path.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)  # safetensors are written for their owner alone
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
    path.chmod(0o755)
    sync_folder(path)


def sync_folder(path: Path) -> None:
    """Have a folder's own entries on the disk: what was renamed into it stays."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
