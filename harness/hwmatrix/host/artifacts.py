"""Transfers shards between machines: one archive per target, validated before anything reads it.

An archive comes from a machine that ran untrusted models, so it is not extracted as a whole. Only regular files with expected names are
accepted, within limits of size and number, with matching checksums, and only from the run being collected. If anything else is in an
archive, all of it is rejected.
"""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from hwmatrix.basics.files import sha256_of
from hwmatrix.errors import ConfigError, Problem, StoreError
from hwmatrix.records import Plan, plan_from_json
from hwmatrix.store.sidecar import read_sidecar, sidecar_path

PLAN: Final = "plan.json"
SUMS: Final = "SHA256SUMS"
_SHARD: Final = re.compile(r"shards/[A-Za-z0-9][A-Za-z0-9._-]*\.duckdb")
_SIDECAR: Final = re.compile(r"shards/[A-Za-z0-9][A-Za-z0-9._-]*\.duckdb\.json")
_SUM: Final = re.compile(r"([0-9a-f]{64}) {2}(\S+)")
_SMALL: Final = 16 * 2**20
"""The size limit in bytes of plans, sidecars and checksum files, which are text of some kilobytes."""
_ADVICE: Final = "Run the target again and upload what hwmatrix artifacts pack wrote, unchanged."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of an archive: bytes of one shard, bytes of all files, number of files."""

    shard_bytes: int = 2 * 2**30
    total_bytes: int = 4 * 2**30
    files: int = 200


def pack(folder: Path, target: str, archive: Path) -> tuple[str, ...]:
    """Write a target's complete shards with the run's plan and all checksums into an archive. Return the names in it.

    Raises:
        ConfigError: the run has no such target.
        StoreError: the folder is not a run's, has no complete shard of the target, or the archive cannot be written.
    """
    plan_path = folder / PLAN
    try:
        plan = plan_from_json(plan_path.read_bytes(), where=str(plan_path))
    except OSError as error:
        raise StoreError(f"{plan_path}: cannot be read: {error}", advice="Name a run's folder: it holds plan.json and shards/.") from error
    if target not in {each.name for each in plan.targets}:
        names = ", ".join(each.name for each in plan.targets)
        raise ConfigError([Problem(where="TARGET", what=f"the run has no target {target!r}", hint=f"one of: {names}")])
    files = {PLAN: plan_path}
    for shard in sorted((folder / "shards").glob("*.duckdb")):
        if read_sidecar(shard).target == target:
            files[f"shards/{shard.name}"] = shard
            files[f"shards/{shard.name}.json"] = sidecar_path(shard)
    if len(files) == 1:
        raise StoreError(f"{folder}: it has no complete shard of {target}", advice="Run the target first: hwmatrix run.")
    sums = "".join(f"{sha256_of(path)}  {name}\n" for name, path in files.items()).encode()
    temporary = archive.with_name(f".{archive.name}.{os.getpid()}.tmp")
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as tar:
            for name, path in files.items():
                tar.add(path, arcname=name, recursive=False, filter=_anonymous)
            entry = _anonymous(tarfile.TarInfo(SUMS))
            entry.size = len(sums)
            tar.addfile(entry, io.BytesIO(sums))
        temporary.replace(archive)
    except OSError as error:
        raise StoreError(f"{archive}: cannot be written: {error}", advice="Free disk space, or name another place.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return (*files, SUMS)


def unpack(archive: Path, folder: Path, *, limits: Limits | None = None) -> tuple[str, ...]:
    """Check an archive, and move its shards into the folder of their run. Return the names of the shards.

    All or nothing: a rejected archive leaves the folder unchanged.

    Raises:
        StoreError: the archive is not an archive, contains anything but what :func:`pack` writes, exceeds a limit, has wrong checksums, or
            is from another run. The message says which.
    """
    plan = _plan_of(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack-") as temporary:
        try:
            names = _extract(archive, Path(temporary), limits or Limits())
        except (tarfile.TarError, OSError, EOFError) as error:
            raise StoreError(f"{archive}: it cannot be read as an archive: {error}", advice=_ADVICE) from error
        _check_sums(archive, Path(temporary), names)
        _check_plan(archive, Path(temporary) / PLAN, plan)
        shards = _check_shards(archive, Path(temporary), names, plan)
        (folder / "shards").mkdir(exist_ok=True)
        for name in shards:
            if (folder / name).exists():
                raise _refused(archive, f"{name} already exists")
        for name in shards:  # the sidecar first: a shard counts once both are there
            shutil.move(sidecar_path(Path(temporary) / name), sidecar_path(folder / name))
            shutil.move(Path(temporary) / name, folder / name)
    return shards


def _extract(archive: Path, into: Path, limits: Limits) -> frozenset[str]:
    """Write the files of an archive into a folder, one by one. Raise StoreError for a file that does not belong there."""
    names: set[str] = set()
    total = 0
    (into / "shards").mkdir()
    with tarfile.open(archive, "r:") as tar:
        for member in tar:  # reads entry by entry, so that an archive with very many entries is not listed first
            if len(names) >= limits.files:
                raise _refused(archive, f"it has more than {limits.files} files")
            name = member.name
            if not member.isreg() or member.islnk() or member.issym():
                raise _refused(archive, f"{name!r} is not a regular file")
            if name not in {PLAN, SUMS} and not _SHARD.fullmatch(name) and not _SIDECAR.fullmatch(name):
                raise _refused(archive, f"{name!r} does not belong in it")
            if name in names:
                raise _refused(archive, f"{name!r} appears in it twice")
            largest = limits.shard_bytes if _SHARD.fullmatch(name) else _SMALL
            total += member.size
            if member.size > largest or total > limits.total_bytes:
                raise _refused(archive, f"{name!r} is too large")
            source = tar.extractfile(member)
            if source is None:
                raise _refused(archive, f"{name!r} is not a regular file")
            with source, (into / name).open("xb") as file:
                shutil.copyfileobj(source, file, 2**20)
            names.add(name)
    return frozenset(names)


def _check_sums(archive: Path, into: Path, names: frozenset[str]) -> None:
    if SUMS not in names or PLAN not in names:
        raise _refused(archive, f"it has no {SUMS if SUMS not in names else PLAN}")
    promised: dict[str, str] = {}
    for line in (into / SUMS).read_text(encoding="utf-8", errors="replace").splitlines():
        found = _SUM.fullmatch(line)
        if found is None:
            raise _refused(archive, f"{SUMS} has a line that is not a checksum")
        promised[found[2]] = found[1]
    if promised.keys() != names - {SUMS}:
        odd = sorted(promised.keys() ^ (names - {SUMS}))
        raise _refused(archive, f"{SUMS} and the files do not agree: {', '.join(odd)}")
    for name, digest in promised.items():
        if sha256_of(into / name) != digest:
            raise _refused(archive, f"{name!r} does not match its checksum in {SUMS}: it was damaged or changed")


def _check_plan(archive: Path, path: Path, plan: Plan) -> None:
    try:
        theirs = plan_from_json(path.read_bytes(), where=f"{archive}: {PLAN}")
    except StoreError as error:
        raise _refused(archive, str(error)) from error
    for name, mine, other in (
        ("run", plan.run_id, theirs.run_id),
        ("matrix.yaml", plan.matrix_sha256, theirs.matrix_sha256),
        ("version of hwmatrix", plan.hwmatrix_version, theirs.hwmatrix_version),
    ):
        if mine != other:
            raise _refused(archive, f"it is from another {name}: {other}, not {mine}")
    unknown = {cell.key for cell in theirs.cells} - {cell.key for cell in plan.cells}
    if unknown:
        raise _refused(archive, f"its plan has cells that the run does not have: {', '.join(sorted(unknown)[:3])}")


def _check_shards(archive: Path, into: Path, names: frozenset[str], plan: Plan) -> tuple[str, ...]:
    shards = tuple(sorted(name for name in names if _SHARD.fullmatch(name)))
    if not shards:
        raise _refused(archive, "it has no shard")
    lonely = {name for name in names if _SIDECAR.fullmatch(name)} ^ {f"{name}.json" for name in shards}
    if lonely:
        raise _refused(archive, f"a shard without its sidecar, or the other way round: {', '.join(sorted(lonely))}")
    targets = {target.name for target in plan.targets}
    for name in shards:
        try:
            sidecar = read_sidecar(into / name)
        except StoreError as error:
            raise _refused(archive, f"{name}: {error}") from error
        if sidecar.run_id != plan.run_id or sidecar.target not in targets:
            raise _refused(archive, f"{name} is from run {sidecar.run_id} and target {sidecar.target}")
        if sidecar.sha256 != sha256_of(into / name):
            raise _refused(archive, f"{name} does not match the checksum in its sidecar")
    return shards


def _plan_of(folder: Path) -> Plan:
    path = folder / PLAN
    try:
        return plan_from_json(path.read_bytes(), where=str(path))
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read: {error}", advice="Name the folder of the planned run: hwmatrix plan makes it."
        ) from error


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Clear owner, mode and time, so that the same files always give the same archive."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o644
    entry.mtime = 0
    return entry


def _refused(archive: Path, why: str) -> StoreError:
    return StoreError(f"{archive}: refused: {why}", advice=_ADVICE)
