"""Self-verifying folders: every file listed with its size and SHA-256, written to a temporary folder, then renamed.

:func:`replacing` makes one; its last file is the manifest (:func:`describe`). To read one, call
:func:`check` with its manifest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.files import sha256_of
from hwmatrix.errors import BundleError
from hwmatrix.models import manifests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANIFEST: Final = "manifest.json"
CHECKSUM: Final = "checksum"
"""The field of a manifest that has the checksum of all others."""
LOCKS: Final = ".locks"
MODEL_DIR: Final = "model"
INPUTS: Final = "inputs.safetensors"
EXPECTED: Final = "expected.safetensors"
"""The files of a bundle: the saved model, its inputs, and the reference's outputs for them."""
HELD_OUT: Final = "held_out.safetensors"
"""A further file of models with a task: inputs that training did not use, the reference's answers and the correct answers."""
CALIBRATION: Final = "calibration.safetensors"
"""Another one: inputs of the task that are not evaluated. Quantized targets compute value ranges from them."""
GENERATION: Final = "generation.safetensors"
"""A further file of models that generate: prompts, the tokens that are forced, and the reference's logits of every step."""


def listing(path: Path) -> dict[str, dict[str, Any]]:
    """Size in bytes and SHA-256 of every file of a folder, by its path within the folder."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): {"size": file.stat().st_size, "sha256": sha256_of(file)} for file in files}


@contextlib.contextmanager
def replacing(place: Path, what: str, *, partial: str | None = None) -> Iterator[Path]:
    """A new folder to fill, manifest included, which then replaces ``place``. A failure to fill it changes nothing.

    ``what`` says what is written, for the error; ``partial`` is the temporary folder's name, beside ``place``.

    Raises:
        BundleError: a file cannot be written (``cache_not_writable``).
    """
    with writing(place.parent, what), fresh(place.with_name(partial or f".partial-{place.name}")) as filled:
        yield filled
        put(filled, place)


@contextlib.contextmanager
def writing(cache: Path, what: str) -> Iterator[None]:
    """Turn an OSError into one that says what could not be written, and where.

    Raises:
        BundleError: a file cannot be written (``cache_not_writable``).
    """
    try:
        yield
    except OSError as error:
        message = f"cannot write {what} under {cache}: {error}; free space there, or name another cache"
        raise BundleError(message, error_type="cache_not_writable") from error


@contextlib.contextmanager
def fresh(path: Path) -> Iterator[Path]:
    """A new folder, whatever was there before. It is removed at the end, unless it was moved."""
    try:
        shutil.rmtree(path, ignore_errors=True)
        make_folder(path.parent)
        path.mkdir()
        give(path)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def describe(path: Path, facts: dict[str, Any]) -> None:
    """Write a folder's manifest: these facts, the listing of its other files, and a checksum of all that."""
    (path / MANIFEST).unlink(missing_ok=True)  # it does not list itself
    manifest = facts | {"files": listing(path)}
    manifest[CHECKSUM] = _checksum(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _checksum(manifest: dict[str, Any]) -> str:
    """The SHA-256 of everything else in a manifest."""
    others = {name: value for name, value in manifest.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def check(path: Path, manifest: dict[str, Any], kind: type[manifests.FolderManifest] = manifests.FolderManifest) -> None:
    """Check a folder, which must not be a link, against its manifest, and that against its kind's form and its own checksum.

    Every file must have the listed size and checksum; none may be missing, extra or a link.

    Raises:
        BundleError: what is wrong, and with which file (``bundle_broken``).
    """
    manifests.check(manifest, kind, path / MANIFEST)
    if manifest.get(CHECKSUM) != _checksum(manifest):
        raise BundleError(f"{path / MANIFEST} differs from its checksum", error_type="bundle_broken")
    files: dict[str, dict[str, Any]] = manifest["files"]
    for followed in (path, path / MANIFEST):
        if followed.is_symlink():
            raise BundleError(f"{followed} is a link", error_type="bundle_broken")
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
    """Lock a key against all other processes and containers of this machine. The system releases it when the process dies.

    Raises:
        BundleError: the cache cannot be written to (``cache_not_writable``).
    """
    try:
        make_folder(cache / LOCKS)
        lock = (cache / LOCKS / key).open("ab")
        give(cache / LOCKS / key)
    except OSError as error:
        message = f"cannot write to the bundle cache {cache}: {error}; name another cache"
        raise BundleError(message, error_type="cache_not_writable") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def unlocked(cache: Path, key: str) -> Iterator[bool]:
    """Lock a key if nobody has locked it, this process included; otherwise it is False, as it is if the lock belongs to another user."""
    try:
        make_folder(cache / LOCKS)
        lock = (cache / LOCKS / key).open("ab")
        give(cache / LOCKS / key)
    except PermissionError:
        yield False
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are missing."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        give(path)


def give(path: Path) -> None:
    """Give what root has made to the owner of the folder that it is in.

    The cache of a root user belongs to the user of containers, who can neither lock nor replace what belongs to root.
    """
    if os.geteuid() == 0:
        owner = path.parent.stat()
        with contextlib.suppress(PermissionError):  # a root without the right to do so, as in some containers
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def discard(path: Path) -> None:
    """Remove a folder, its manifest first, so that a partly removed one never looks complete."""
    (path / MANIFEST).unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path)


def put(filled: Path, place: Path) -> None:
    """Sync a complete folder to disk, and rename it to ``place``, whose earlier content is discarded."""
    _settle(filled)
    discard(place)
    filled.rename(place)
    _sync_folder(place.parent)


def _settle(path: Path) -> None:
    """Sync every file of a folder to disk and make it readable for the users of all containers, before it is put in place."""
    give(path)
    for file in path.rglob("*"):  # a folder before what is in it
        give(file)
        file.chmod(0o755 if file.is_dir() else 0o644)  # safetensors files are readable by their owner alone
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
    path.chmod(0o755)
    _sync_folder(path)


def _sync_folder(path: Path) -> None:
    """Sync a folder's own entries to disk, so that a rename into it is durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
