"""Adds the artifacts of target jobs to the planned run: validated shards, and an `unavailable` shard for targets without a runner."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import pydantic
import pydantic.dataclasses

from hwmatrix.errors import StoreError
from hwmatrix.host import infrastructure
from hwmatrix.host.artifacts import unpack
from hwmatrix.host.github.jobs import Reached, State
from hwmatrix.records import Status
from hwmatrix.store.sidecar import read_sidecar

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.host.run_folder import RunFolder
    from hwmatrix.records import Plan

ARCHIVE: Final = "shards.tar"
PROBLEMS: Final = "collected.txt"
"""A file beside the plan that lists what was refused and what is missing, one per line."""
_UNAVAILABLE: Final = "target_unavailable"
_NO_RUNNER: Final = frozenset({State.UNCLAIMED, State.SKIPPED})


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class _States:
    """The file with the states of the targets' jobs."""

    schema: Literal["hwmatrix/job-states/1"] = "hwmatrix/job-states/1"
    targets: dict[str, Reached]


_STATES: Final = pydantic.TypeAdapter(_States)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collected:
    """The result: shards by target, unavailable targets with the reason, refused artifacts with the reason, and missing targets."""

    shards: Mapping[str, tuple[str, ...]]
    unavailable: Mapping[str, str]
    refused: tuple[str, ...]
    missing: Mapping[str, str]


def write_states(states: Mapping[str, Reached], path: Path) -> None:
    """Write the states of the jobs to a file.

    Raises:
        StoreError: the file cannot be written.
    """
    try:
        path.write_bytes(_STATES.dump_json(_States(targets=dict(states)), indent=1))
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error}") from error


def read_states(path: Path) -> dict[str, Reached]:
    """Read the file of :func:`write_states`. Empty if the file is missing: then nothing is known of any job.

    Raises:
        StoreError: it is broken, or of another version.
    """
    try:
        return _STATES.validate_json(path.read_bytes()).targets
    except FileNotFoundError:
        return {}
    except (OSError, pydantic.ValidationError) as error:
        raise StoreError(f"{path}: cannot be read: {error}", advice="Use the same hwmatrix everywhere.") from error


def artifact_name(target: str, run_id: str) -> str:
    """Return the name of the artifact with a target's shards."""
    return f"shards-{target}-{run_id}"


def collect(folder: RunFolder, arrived: Path, states: Mapping[str, Reached]) -> Collected:
    """Move the arrived artifacts into the folder of the run.

    ``arrived`` has a folder per artifact, named by :func:`artifact_name`, with ``shards.tar`` in it. For a single artifact, GitHub's action
    makes no folder, so the file is in ``arrived`` itself, and its shards tell the target. Anything else is refused and reported. The
    affected cells stay without a verdict, which reports call ``not_run``.

    Raises:
        StoreError: the run's plan cannot be read, or its folder cannot be written.
    """
    plan = folder.plan()
    folder.shards.mkdir(parents=True, exist_ok=True)
    expected = {artifact_name(target.name, plan.run_id): target.name for target in plan.targets}
    shards: dict[str, tuple[str, ...]] = {}
    refused: list[str] = []
    told: set[str | None] = set()
    for path in _artifacts(arrived):
        target = expected.get(path.name)
        try:
            if path != arrived and (target is None or path.is_symlink() or not path.is_dir()):
                raise StoreError(f"{path.name!r}: no target of this run has an artifact with this name")  # noqa: TRY301 - reported later
            names = _unpacked(folder, path, plan, target)
            shards[read_sidecar(folder.path / names[0]).target] = names
        except StoreError as error:
            refused.append(error.message)
            told.add(target)
    unavailable: dict[str, str] = {}
    missing: dict[str, str] = {}
    for each in plan.targets:
        reached = states.get(each.name, Reached(state=State.UNKNOWN))
        if each.name in shards:
            continue
        if reached.state in _NO_RUNNER:
            cells = tuple(cell for cell in plan.cells if cell.target == each.name)
            infrastructure.record(
                folder.shards, plan, each.name, cells, error_type=_UNAVAILABLE, message=reached.reason, status=Status.UNAVAILABLE
            )
            unavailable[each.name] = reached.reason
        else:
            missing[each.name] = reached.reason or ("what arrived was refused" if each.name in told else "no shards arrived")
    return Collected(shards=shards, unavailable=unavailable, refused=tuple(refused), missing=missing)


def _artifacts(arrived: Path) -> list[Path]:
    """The folders (or other entries) that arrived, or ``arrived`` itself if it is a single artifact."""
    if not arrived.is_dir():
        return []
    return [arrived] if (arrived / ARCHIVE).is_file() else sorted(arrived.iterdir())


def _unpacked(folder: RunFolder, artifact: Path, plan: Plan, target: str | None) -> tuple[str, ...]:
    """Check an artifact's archive and move its shards into the run.

    Raises:
        StoreError: it contains anything else, or is refused.
    """
    names = sorted(path.name for path in artifact.iterdir())
    archive = artifact / ARCHIVE
    if names != [ARCHIVE] or archive.is_symlink():
        raise StoreError(f"{artifact.name!r}: it contains {', '.join(map(repr, names[:5])) or 'nothing'} instead of {ARCHIVE}")
    try:
        return unpack(archive, folder.path, plan=plan, target=target)
    except StoreError as error:
        raise StoreError(f"{artifact.name!r}: {error.message}") from error
