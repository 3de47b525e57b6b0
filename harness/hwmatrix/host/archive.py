"""Archives that are moved between machines: tar files, extracted only if all of their contents are as expected.

An archive may come from a machine that ran untrusted models, so it is not extracted as a whole. Only regular files with expected names are
accepted, within limits of size and number. If anything else is in an archive, all of it is rejected. The checksums are those of its
contents: a shard's sidecar and a bundle's manifest have them.
"""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import tarfile
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import StoreError
from hwmatrix.records import Plan, plan_from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PLAN: Final = "plan.json"
SMALL: Final = 16 * 2**20
"""The size limit in bytes of plans, indexes and sidecars, which are a few kilobytes of text."""
_PIECE: Final = 2**16
"""Bytes that are read at once: also the limit of the header of one file, with its name and attributes."""
_ADVICE: Final = "Make it again on its machine, and upload what hwmatrix wrote, unchanged."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of an archive: bytes of one large file, bytes of all files, number of files."""

    file_bytes: int = 2 * 2**30
    total_bytes: int = 4 * 2**30
    files: int = 200


def read_plan(folder: Path, *, advice: str) -> Plan:
    """Read the plan of a run's folder.

    Raises:
        StoreError: it is missing or broken; ``advice`` says what to name instead.
    """
    path = folder / PLAN
    try:
        return plan_from_json(path.read_bytes(), where=str(path))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error}", advice=advice) from error


def write(archive: Path, files: Mapping[str, Path]) -> tuple[str, ...]:
    """Write files into an archive: the same files always give the same bytes. Return the names in it.

    Raises:
        StoreError: the archive cannot be written.
    """
    temporary = archive.with_name(f".{archive.name}.{os.getpid()}.tmp")
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as tar:
            for name, path in files.items():
                tar.add(path, arcname=name, recursive=False, filter=_anonymous)
        temporary.replace(archive)
    except OSError as error:
        raise StoreError(f"{archive}: cannot be written: {error}", advice="Free disk space, or name another place.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return tuple(files)


def extract(archive: Path, into: Path, plan: Plan, limits: Limits, *, large: Callable[[str], bool | None]) -> frozenset[str]:
    """Write the files of an archive of this plan's run into an empty folder, and check them. Return their names.

    ``large`` says for each name whether its file may be large; None: the archive must not contain that name.

    Raises:
        StoreError: the archive cannot be read, has another file or exceeds a limit, or is from another run. The message says which.
    """
    try:
        names = _extract(archive, into, limits, large)
    except (tarfile.TarError, OSError, EOFError, RecursionError, ValueError) as error:
        raise StoreError(f"{archive}: it cannot be read as an archive: {error}", advice=_ADVICE) from error
    if PLAN not in names:
        raise refused(archive, f"it has no {PLAN}")
    _check_plan(archive, into / PLAN, plan)
    return names


def refused(archive: Path, why: str) -> StoreError:
    """The error for a rejected archive."""
    return StoreError(f"{archive}: refused: {why}", advice=_ADVICE)


def _extract(archive: Path, into: Path, limits: Limits, large: Callable[[str], bool | None]) -> frozenset[str]:
    """Write the files of an archive into a folder, one by one. Raise StoreError for a file that does not belong there."""
    names: set[str] = set()
    total = 0
    with _Bounded(archive) as bounded, tarfile.open(fileobj=bounded, mode="r:") as tar:
        for member in tar:  # reads entry by entry, so that an archive with very many entries is not listed first
            if len(names) >= limits.files:
                raise refused(archive, f"it has more than {limits.files} files")
            name = member.name
            if not member.isreg() or member.issparse():
                raise refused(archive, f"{name!r} is not a regular file")
            is_large = False if name == PLAN else large(name)
            if is_large is None:
                raise refused(archive, f"{name!r} does not belong in it")
            if name in names:
                raise refused(archive, f"{name!r} appears in it twice")
            total += member.size
            if member.size > (limits.file_bytes if is_large else SMALL) or total > limits.total_bytes:
                raise refused(archive, f"{name!r} is too large")
            source = tar.extractfile(member)
            if source is None:
                raise refused(archive, f"{name!r} is not a regular file")
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            with source, (into / name).open("xb") as file:
                shutil.copyfileobj(source, file, _PIECE)
            names.add(name)
    return frozenset(names)


class _Bounded(io.FileIO):
    """A file that is never read in large pieces: :mod:`tarfile` reads long names and attributes into memory as a whole."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _PIECE:
            raise tarfile.ReadError("the header of a file is too large")
        return super().read(size) or b""


def _check_plan(archive: Path, path: Path, plan: Plan) -> None:
    try:
        theirs = plan_from_json(path.read_bytes(), where=f"{archive}: {PLAN}")
    except StoreError as error:
        raise refused(archive, str(error)) from error
    for name, mine, other in (
        ("run", plan.run_id, theirs.run_id),
        ("matrix.yaml", plan.matrix_sha256, theirs.matrix_sha256),
        ("version of hwmatrix", plan.hwmatrix_version, theirs.hwmatrix_version),
    ):
        if mine != other:
            raise refused(archive, f"it is from another {name}: {other}, not {mine}")


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Clear owner, mode and time, so that the same files always give the same archive."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o644
    entry.mtime = 0
    return entry
