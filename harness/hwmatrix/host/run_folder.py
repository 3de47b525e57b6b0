"""The folder of a run: ``<output>/runs/<run id>/`` with plan.json, bundles/, shards/. A killed run leaves its data here."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from hwmatrix.basics.files import write_atomically
from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import ConfigError, Problem, StoreError
from hwmatrix.records import ModelKey, Plan, plan_from_json, to_json
from hwmatrix.store.shard import finished_cells, salvage, settled_cells

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS: Final = "runs"
OPERATORS: Final = "operators"
"""The subfolder for runs of operator tests, because ``--resume`` looks only for runs of models."""
SURVEYS: Final = "surveys"
"""The subfolder for surveys, which execute nothing."""
_PLAN: Final = "plan.json"
_TESTS: Final = "tests"
_LOCK: Final = "lock"
"""Locked while a process works in the folder, whose id it contains."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFolder:
    """One run's folder. If it is a part of another run, ``beside`` is that run's folder, where the shards go."""

    path: Path
    beside: Path | None = None

    @property
    def shards(self) -> Path:
        """The folder of the shards."""
        return (self.beside or self.path) / "shards"

    @property
    def bundles(self) -> Path:
        """The folder of the index of bundles. The bundles themselves are in the cache."""
        return self.path / "bundles"

    @classmethod
    def create(cls, output: Path, plan: Plan) -> RunFolder:
        """Create the folder and write the plan.

        Raises:
            StoreError: the folder cannot be written.
        """
        return cls.planned(output / RUNS / plan.run_id, plan)

    @classmethod
    def planned(cls, path: Path, plan: Plan) -> RunFolder:
        """Make this folder that of the run, and write the plan. It must not be the folder of a run yet.

        Raises:
            StoreError: it is, or cannot be written.
        """
        folder = cls(path=path)
        if (path / _PLAN).exists() or folder.shards.exists():
            raise StoreError(f"{path}: it is the folder of a plan already", advice="Name a new folder.")
        with _writing(folder.path):
            folder.shards.mkdir(parents=True)
            folder.bundles.mkdir()
            write_atomically(folder.path / _PLAN, to_json(plan, indent=1) + "\n")
        return folder

    @classmethod
    def continued(cls, output: Path, plan: Plan) -> RunFolder:
        """Return the run's folder with this plan: the existing one, with its shards, or a new one.

        Raises:
            StoreError: the folder cannot be written.
        """
        folder = cls(path=output / RUNS / plan.run_id)
        if not folder.path.exists():
            return cls.create(output, plan)
        folder.replace_plan(plan)
        return folder

    @classmethod
    def within(cls, run: RunFolder, name: str, plan: Plan) -> RunFolder:
        """Create a folder within a run's, with the plan of a part of this run. In an existing folder, the plan is replaced.

        Raises:
            StoreError: the folder cannot be written.
        """
        folder = cls(path=run.path / name, beside=run.path)
        with _writing(folder.path):
            folder.bundles.mkdir(parents=True, exist_ok=True)
        folder.replace_plan(plan)
        return folder

    @classmethod
    def latest(cls, output: Path) -> RunFolder:
        """Return the newest run in an output folder (run ids begin with their time).

        Raises:
            ConfigError: there is none.
        """
        found = sorted((output / RUNS).glob(f"*/{_PLAN}"))
        if not found:
            what = f"{output} holds no run to continue"
            raise ConfigError([Problem(where="--resume", what=what, hint="start without --resume, or name the right --output-dir")])
        return cls(path=found[-1].parent)

    def plan(self) -> Plan:
        """Read the run's plan.

        Raises:
            StoreError: it is broken, or of another version.
        """
        path = self.path / _PLAN
        try:
            return plan_from_json(path.read_bytes(), where=str(path))
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error}", advice="Name the folder of a run: it holds plan.json.") from error

    def replace_plan(self, plan: Plan) -> None:
        """Replace the folder's plan by another plan of the same run. Shards stay, and cells that are no longer planned are ignored.

        Raises:
            StoreError: the folder cannot be written.
        """
        with _writing(self.path):
            write_atomically(self.path / _PLAN, to_json(plan, indent=1) + "\n")

    def salvage(self, target: str | None = None) -> None:
        """Seal the unfinished shards of a runner that is gone (only one target's, because others may still be running).

        An unreadable partial shard is renamed, and its cells are run again.
        """
        salvage(self.shards, target)

    def finished(self) -> set[str]:
        """Return the keys of the cells that have a verdict."""
        return finished_cells(sorted(self.shards.glob("*.duckdb")))

    def settled(self) -> set[str]:
        """Return the keys of cells that need no rerun: they have a verdict, not caused by a busy machine or an infrastructure failure."""
        return settled_cells(sorted(self.shards.glob("*.duckdb")))

    def write_cells(self, target: str, keys: list[str]) -> Path:
        """Write for the runner which cells to run. It finds the file beside the plan by the target's name.

        Raises:
            StoreError: the folder cannot be written.
        """
        return self._write_list(f"cells-{target}", keys)

    def write_models(self, name: str, models: list[ModelKey]) -> Path:
        """Write for the runner the keys of the models to make bundles of. It finds the file beside the plan by ``name``.

        Raises:
            StoreError: the folder cannot be written.
        """
        return self._write_list(f"models-{name}", models)

    def write_finished(self, target: str, tests: list[str]) -> Path:
        """Write for the runner which operator tests of a target have a verdict. It finds the file beside the plan by the target's name.

        Raises:
            StoreError: the folder cannot be written.
        """
        return self._write_list(f"finished-{target}", tests)

    def write_pattern(self, pattern: str) -> Path:
        """Store the pattern of the requested operator tests for ``--resume``.

        Raises:
            StoreError: the folder cannot be written.
        """
        return self._write_list(_TESTS, [pattern])

    def pattern(self) -> str:
        """Read the pattern of the requested operator tests, a regular expression that is searched in their names.

        Raises:
            StoreError: the folder has no pattern.
        """
        path = self.path / f"{_TESTS}.json"
        try:
            (pattern,) = read_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(f"{path}: cannot be read: {error}", advice="Start a new run without --resume.") from error
        return str(pattern)

    def _write_list(self, name: str, content: list[str] | list[ModelKey]) -> Path:
        path = self.path / f"{name}.json"
        with _writing(path):
            write_atomically(path, json.dumps(content))
        return path


@contextlib.contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Lock the folder against other processes. The kernel releases the lock of a process that dies, on any host.

    Raises:
        StoreError: another process has locked it, or the folder cannot be written.
    """
    path = folder.path / _LOCK
    with _writing(path):
        lock = path.open("a+", encoding="ascii")
    with lock:
        if not _acquired(lock, fcntl.LOCK_EX):
            raise StoreError(f"{folder.path}: process {_owner(lock)} is working in it", advice="Wait for it, or end it first.")
        with _writing(path):
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
        yield


def worker(folder: RunFolder) -> int | None:
    """Return the id of the process that works in the folder, if any: on the host where it runs.

    Raises:
        OSError: the folder cannot be read.
    """
    path = folder.path / _LOCK
    if not path.exists():
        return None
    with path.open(encoding="ascii") as lock:
        return None if _acquired(lock, fcntl.LOCK_SH) else _owner(lock)


def _acquired(lock: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(lock: IO[str]) -> int:
    lock.seek(0)
    return int(lock.read() or 0)  # 0: it has the lock, but has not yet written its id


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error}", advice="Choose another --output-dir, or free disk space.") from error
