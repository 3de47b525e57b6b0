"""Transfers the shards of a target to the machine that collects them: one archive per target, validated before anything reads it."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from hwmatrix.basics.files import sha256_of
from hwmatrix.errors import ConfigError, Problem, StoreError
from hwmatrix.host import archive as archives
from hwmatrix.host.archive import PLAN, Limits, refused
from hwmatrix.records import Plan, plan_from_json
from hwmatrix.store.sidecar import read_sidecar, sidecar_path

_SHARD: Final = re.compile(r"shards/[A-Za-z0-9][A-Za-z0-9._-]*\.duckdb")
_SIDECAR: Final = re.compile(r"shards/[A-Za-z0-9][A-Za-z0-9._-]*\.duckdb\.json")


def pack(folder: Path, target: str, archive: Path) -> tuple[str, ...]:
    """Write a target's complete shards with their sidecars and the run's plan into an archive. Return the names in it.

    Raises:
        ConfigError: the run has no such target.
        StoreError: the folder is not a run's, has no complete shard of the target, or the archive cannot be written.
    """
    plan = archives.read_plan(folder, advice="Name a run's folder: it holds plan.json and shards/.")
    if target not in {each.name for each in plan.targets}:
        names = ", ".join(each.name for each in plan.targets)
        raise ConfigError([Problem(where="TARGET", what=f"the run has no target {target!r}", hint=f"one of: {names}")])
    files = {PLAN: folder / PLAN}
    for shard in sorted((folder / "shards").glob("*.duckdb")):
        if read_sidecar(shard).target == target:
            files[f"shards/{shard.name}"] = shard
            files[f"shards/{shard.name}.json"] = sidecar_path(shard)
    if len(files) == 1:
        raise StoreError(f"{folder}: it has no complete shard of {target}", advice="Run the target first: hwmatrix run.")
    return archives.write(archive, files)


def unpack(
    archive: Path, folder: Path, *, plan: Plan | None = None, target: str | None = None, limits: Limits | None = None
) -> tuple[str, ...]:
    """Check an archive, and move its shards into the folder of their run. Return the names of the shards.

    All or nothing: a rejected archive leaves the folder unchanged. ``plan`` is the folder's, for a caller that has read it; None: it is
    read. ``target`` is the only target whose shards are accepted; None: whichever it is.

    Raises:
        StoreError: the archive is not an archive, contains anything but what :func:`pack` writes, exceeds a limit, or is from another run
            or target. The message says which.
    """
    if plan is None:
        plan = archives.read_plan(folder, advice="Name the folder of the planned run: hwmatrix plan makes it.")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack-") as temporary:
        names = archives.extract(archive, Path(temporary), plan, limits or Limits(), large=_is_large)
        _check_cells(archive, Path(temporary) / PLAN, plan)
        shards = _check_shards(archive, Path(temporary), names, plan, target)
        (folder / "shards").mkdir(exist_ok=True)
        known = [name for name in shards if (folder / name).exists()]
        if known:
            raise refused(archive, f"{known[0]} already exists")
        for name in shards:  # the sidecar first: a shard counts once both are there
            shutil.move(sidecar_path(Path(temporary) / name), sidecar_path(folder / name))
            shutil.move(Path(temporary) / name, folder / name)
    return shards


def _is_large(name: str) -> bool | None:
    if _SHARD.fullmatch(name):
        return True
    return False if _SIDECAR.fullmatch(name) else None


def _check_cells(archive: Path, path: Path, plan: Plan) -> None:
    theirs = plan_from_json(path.read_bytes(), where=f"{archive}: {PLAN}")
    unknown = {cell.key for cell in theirs.cells} - {cell.key for cell in plan.cells}
    if unknown:
        raise refused(archive, f"its plan has cells that the run does not have: {', '.join(sorted(unknown)[:3])}")


def _check_shards(archive: Path, into: Path, names: frozenset[str], plan: Plan, target: str | None) -> tuple[str, ...]:
    shards = tuple(sorted(name for name in names if _SHARD.fullmatch(name)))
    if not shards:
        raise refused(archive, "it has no shard")
    lonely = {name for name in names if _SIDECAR.fullmatch(name)} ^ {f"{name}.json" for name in shards}
    if lonely:
        raise refused(archive, f"a shard without its sidecar, or the other way round: {', '.join(sorted(lonely))}")
    planned, targets = {each.name for each in plan.targets}, set()
    for name in shards:
        try:
            sidecar = read_sidecar(into / name)
        except StoreError as error:
            raise refused(archive, f"{name}: {error}") from error
        if sidecar.run_id != plan.run_id or sidecar.target not in planned:
            raise refused(archive, f"{name} is from run {sidecar.run_id} and target {sidecar.target}")
        if sidecar.sha256 != sha256_of(into / name):
            raise refused(archive, f"{name} does not match the checksum in its sidecar")
        targets.add(sidecar.target)
    if len(targets) > 1 or target not in {None, *targets}:
        raise refused(archive, f"it has shards of {', '.join(sorted(targets))}")
    return shards
