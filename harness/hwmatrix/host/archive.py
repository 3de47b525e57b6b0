"""Archives that are moved between machines: tar files, extracted only if all of their contents are as expected.

An archive may come from a machine that ran untrusted models, so it is not extracted as a whole. Only regular files with expected names are
accepted, within limits of size and number. If anything else is in an archive, all of it is rejected. The checksums are those of its
contents: a shard's sidecar and a bundle's manifest have them.
"""

from __future__ import annotations

import dataclasses
import os
import re
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
_LONGEST_HEADER: Final = 16 * 2**10
"""Bytes of the header of one file, with its name and attributes."""
_STATED_SIZE: Final = re.compile(rb"^\d+ size=(\d{1,15})\n", re.MULTILINE)
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
    except (tarfile.TarError, OSError, EOFError) as error:
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
    _check_headers(archive, limits)
    with tarfile.open(archive, "r:") as tar:
        for member in tar:  # reads entry by entry, so that an archive with very many entries is not listed first
            if len(names) >= limits.files:
                raise refused(archive, f"it has more than {limits.files} files")
            name = member.name
            if not member.isreg() or member.islnk() or member.issym():
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
                shutil.copyfileobj(source, file, 2**20)
            names.add(name)
    return frozenset(names)


def _check_headers(archive: Path, limits: Limits) -> None:
    """Raise StoreError for an archive that is too large, or has a header that :mod:`tarfile` would read into memory as a whole.

    Long names and attributes of the PAX and GNU formats are stored as files before the file that they describe.
    """
    size = archive.stat().st_size
    if size > limits.total_bytes + limits.files * 4 * _LONGEST_HEADER:
        raise refused(archive, f"it is too large: {size:,} bytes")
    stated: int | None = None  # what the attributes say of the next file's size, which is too large for its own header
    with archive.open("rb") as file:
        while (block := file.read(tarfile.BLOCKSIZE)).strip(b"\0"):
            entry = tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
            describes = entry.type in {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, *tarfile.GNU_TYPES}
            if entry.size < 0 or (describes and entry.size > _LONGEST_HEADER):
                raise refused(archive, f"the header of {entry.name!r} is too large")
            padded = -(-(entry.size if stated is None or describes else stated) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            found = _STATED_SIZE.search(file.read(padded)) if describes else None
            stated = int(found[1]) if found else None
            if not describes:
                file.seek(padded, os.SEEK_CUR)


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
