"""What a member of a cluster does for a run: makes bundles, runs the cells of a part, hands over what it has finished, cleans up.

Dask calls these functions on workers. They return failures instead of raising them: a failure of a part is a result of the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from distributed import get_worker

from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import isolation_of_part, pack_bundles, run_part, workshop_of
from hwmatrix.basics.cache_folder import bundles_folder
from hwmatrix.errors import CommandError, EngineError, HwmatrixError, ImageBuildError, StoreError
from hwmatrix.host import artifacts, containers
from hwmatrix.host.cache_limit import keep_under
from hwmatrix.host.cluster.offers import Offer, cores_of, memory_of, offer
from hwmatrix.host.cluster.travelling import Archive, Project, folder_of
from hwmatrix.host.engine import connect
from hwmatrix.host.executors import Ended, Executor, Job, Workshop, choose, missing_hardware
from hwmatrix.host.run_folder import RUNS, RunFolder, worker
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.matrix.shipped import MATRIX_FILE
from hwmatrix.models.canary import canary_plans
from hwmatrix.records import Isolation, Plan, Role, plan_from_json
from hwmatrix.store.shard import PARTIAL_SUFFIX, sealed_copy
from hwmatrix.store.sidecar import sidecar_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType


_STOPS_WITHIN_S: Final = 30.0
_KEPT_S: Final = 14 * 24 * 3600.0
"""For how long a run that was killed can be continued with what a member finished for it, in seconds."""
TOPIC: Final = "hwmatrix-"
"""The beginning of the name under which a member reports what happens in a run; the run's id follows."""
_SHOWN_EVENTS: Final = frozenset({"cell", "bundle", "bundle_again"})
"""The events that travel: one for each finished thing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a run: the cells of some models, on one target or (bundles) on all. ``plan`` is its plan as JSON.

    ``name`` is unique in a run, ``attempt`` counts from 1. ``cache_limit_gb`` is the limit of the member's cache of bundles after the part,
    in GiB; None: the member keeps everything.
    """

    name: str
    run_id: str
    plan: str
    targets: tuple[str, ...]
    attempt: int = 1
    base_image: str | None = None
    cache_limit_gb: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A failure on a member: its message, advice and exit code, and the member's name. ``retry``: another member may succeed."""

    member: str
    message: str
    advice: str
    exit_code: int
    retry: bool

    def error(self) -> HwmatrixError:
        """The failure as an error of the run."""
        message = f"{self.member}: {self.message}"
        if self.exit_code == ImageBuildError.exit_code:
            return ImageBuildError(message, command=(), code=None, output="", advice=self.advice)
        kind = {EngineError.exit_code: EngineError, StoreError.exit_code: StoreError}.get(self.exit_code, HwmatrixError)
        return kind(message, advice=self.advice)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shards:
    """What a part gave: an archive of shards (None: it has none), and what failed besides."""

    member: str
    archive: bytes | None
    failure: Failure | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a part has finished so far, as an archive of shards. ``stamp`` is another after each cell."""

    part: str
    stamp: str
    archive: bytes


Bundles: TypeAlias = "Archive | Failure"


def survey(targets: Sequence[str], project: Project) -> dict[str, str]:
    """Say which of these targets cannot run on this member, and why.

    Raises:
        HwmatrixError: the project cannot be stored here.
    """
    spec = load(project.unpacked(read_environment().cache) / MATRIX_FILE).spec
    return {target: reason for target in targets if (reason := missing_hardware(spec, target)) is not None}


def offer_here() -> Offer:
    """What this member offers."""
    return offer(os.environ)


def without_folder(paths: Sequence[str]) -> list[str]:
    """Return the checkpoints that are not on this member."""
    return [path for path in paths if not Path(path).is_dir()]


def make_bundles(part: Part, project: Project) -> Bundles:
    """Make the bundles of a part's models, and keep them as an archive that other members fetch."""
    try:
        with _at_work(part, project) as work:
            archive = work.folder / "bundles.tar"
            pack_bundles(work.plan, archive, work.loaded, work.workshop, output=work.folder, view=work.view, executor=work.executor)
            kept = Archive.keep(part.run_id, archive, work.cache)
            _tidy(part, work)
            return kept
    except (HwmatrixError, OSError) as error:
        return _failure(error)
    except _StoppedError:
        return _failure(EngineError("it was stopped"))


def run_cells(part: Part, project: Project, bundles: Bundles) -> Shards:
    """Run the cells of a part with these bundles. Cells that an earlier attempt on this machine finished are not run again."""
    if isinstance(bundles, Failure):
        return Shards(member=_name(), archive=None, failure=bundles)
    try:
        with _at_work(part, project) as work:
            failure = _run(part, work, bundles)
            _tidy(part, work)
            return Shards(member=_name(), archive=_packed(work.folder, part), failure=failure)
    except (HwmatrixError, OSError) as error:
        return Shards(member=_name(), archive=None, failure=_failure(error))
    except _StoppedError:  # what it finished is handed over by leftovers()
        return Shards(member=_name(), archive=None, failure=_failure(EngineError("it was stopped")))


def _run(part: Part, work: _Work, bundles: Archive) -> Failure | None:
    try:
        run_part(
            work.plan,
            part.targets,
            work.loaded,
            work.workshop,
            output=work.folder,
            view=work.view,
            bundles=bundles.path,
            failures=True,
            executor=work.executor,
        )
    except (HwmatrixError, OSError) as error:
        return _failure(error)
    return None


def _tidy(part: Part, work: _Work) -> None:
    """Keep the cache of bundles below its limit. The archives of this run are not in it, so a later part finds its bundles there."""
    told = None if part.cache_limit_gb is None else keep_under(part.cache_limit_gb, bundles_folder(work.workshop.cache_dir), ())
    if told is not None:
        work.view.say(told)


def begin(run_id: str) -> list[bytes]:
    """Make this member ready for a run. Return what it had finished for the same run before: see :func:`leftovers`."""
    found = leftovers(run_id)
    _remove_old(folder_of(read_environment().cache, run_id))
    with _LOCK:
        _ENDED.discard(run_id)
    return found


def _remove_old(mine: Path) -> None:
    """Delete what other runs left here that were killed and never continued."""
    for folder in mine.parent.glob("*"):
        if folder != mine and time.time() - folder.stat().st_mtime > _KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)


def leftovers(run_id: str) -> list[bytes]:
    """End what this member runs for a run. Return archives of what its parts finished here, also before this worker was started."""
    environment = read_environment()
    stop(run_id)
    if not folder_of(environment.cache, run_id).is_dir():
        return []
    with contextlib.suppress(EngineError):
        containers.remove_leftovers(connect(environment.variables, need_builder=False))
    found: list[bytes] = []
    for plan in sorted(folder_of(environment.cache, run_id).glob(f"*/{RUNS}/{run_id}/plan.json")):
        folder = RunFolder(path=plan.parent)
        if _is_free(folder) and _is_salvaged(folder):
            targets = tuple(target.name for target in folder.plan().targets)
            found += [archive for target in targets if (archive := _archive(folder, target)) is not None]
    return found


def snapshots(run_id: str, known: frozenset[str]) -> list[Snapshot]:
    """Return what the part on which this member works has finished so far, unless its stamp is known.

    The folders of other parts are left alone: those of ended parts, whose results are on their way or have arrived, and those of other
    members on this machine, which share its cache.
    """
    found: list[Snapshot] = []
    runs = folder_of(read_environment().cache, run_id)
    for plan in sorted(runs.glob(f"*/{RUNS}/{run_id}/plan.json")):
        with contextlib.suppress(OSError, StoreError):  # the part ends, or has only begun
            folder = RunFolder(path=plan.parent)
            if worker(folder) != os.getpid():
                continue
            stamp = _stamp(folder)
            archive = _archive_so_far(folder) if stamp not in known else None
            if archive is not None:
                found.append(Snapshot(part=plan.relative_to(runs).parts[0], stamp=stamp, archive=archive))
    return found


def _stamp(folder: RunFolder) -> str:
    """The names and times of all shards in a folder, finished or not."""
    files = sorted(folder.shards.glob("*.duckdb*"))
    return " ".join(f"{file.name}={file.stat().st_mtime_ns}" for file in files if file.name.endswith((".duckdb", PARTIAL_SUFFIX)))


def _archive_so_far(folder: RunFolder) -> bytes | None:
    """The finished shards of a folder, and copies of what the others hold so far; None if there is none, or one is just written to."""
    if not folder.shards.is_dir():
        return None
    with tempfile.TemporaryDirectory(dir=folder.path, prefix=".so-far-") as temporary:
        copy = RunFolder(path=Path(temporary))
        copy.shards.mkdir()
        shutil.copy(folder.path / "plan.json", copy.path)
        for shard in folder.shards.glob("*.duckdb"):
            shutil.copy(sidecar_path(shard), copy.shards)
            shutil.copy(shard, copy.shards)
        if any(sealed_copy(partial, copy.shards) is None for partial in folder.shards.glob(f"*{PARTIAL_SUFFIX}")):
            return None
        return _archive(copy, copy.plan().targets[0].name)  # cells have one target; a part that makes bundles has no shards


def _is_free(folder: RunFolder) -> bool:
    """Whether no part works in a folder. A part of this process that was just stopped gets half a minute to end."""
    end = time.monotonic() + _STOPS_WITHIN_S
    while worker(folder) == os.getpid() and time.monotonic() < end:
        time.sleep(0.1)
    return worker(folder) is None


def _is_salvaged(folder: RunFolder) -> bool:
    """Whether the unfinished shards of a dead runner could be sealed, which takes until its processes have ended."""
    end = time.monotonic() + _STOPS_WITHIN_S
    while True:
        try:
            folder.salvage()
        except StoreError:
            if time.monotonic() > end:
                return False
            time.sleep(0.5)
        else:
            return True


def stop(run_id: str) -> None:
    """End what this member runs for a run."""
    with _LOCK:
        _ENDED.add(run_id)
        stopped = [key for key in _EXECUTORS if key[0] == run_id]
        executors = [_EXECUTORS.pop(key) for key in stopped]
    for executor in executors:
        executor.stop()


def forget(run_id: str) -> None:
    """End what this member runs for a run, and delete what it stored for it. Bundles and images stay: the next run may need them."""
    stop(run_id)
    for plan in folder_of(read_environment().cache, run_id).glob(f"*/{RUNS}/{run_id}/plan.json"):
        _is_free(RunFolder(path=plan.parent))
    shutil.rmtree(folder_of(read_environment().cache, run_id), ignore_errors=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """Everything for the work on a part. ``folder`` is the part's own."""

    plan: Plan
    folder: Path
    cache: Path
    loaded: LoadedMatrix
    workshop: Workshop
    executor: Executor
    view: _Reporting


@contextlib.contextmanager
def _at_work(part: Part, project: Project) -> Iterator[_Work]:
    """Prepare the work on a part, on the cores that this worker may use."""
    environment = read_environment()
    view = _Reporting(part)
    view.begins()
    loaded = _loaded(project.unpacked(environment.cache))
    workshop = dataclasses.replace(workshop_of(loaded, environment, part.base_image, view), memory_mb=memory_of(environment.variables))
    plan = plan_from_json(part.plan, where=part.name)
    folder = folder_of(environment.cache, part.run_id) / part.name
    with _pinned(environment.variables):
        executor = _executor(part.run_id, project.digest, isolation_of_part(plan, part.targets, loaded), workshop, folder)
        yield _Work(plan=plan, folder=folder, cache=environment.cache, loaded=loaded, workshop=workshop, executor=executor, view=view)


@functools.lru_cache(maxsize=1)
def _loaded(project: Path) -> LoadedMatrix:
    """The matrix.yaml of a project's folder, whose name is the checksum of its contents. Reading it takes longer than a small cell."""
    return load(project / MATRIX_FILE)


_EXECUTORS: Final[dict[tuple[str, str, Isolation], _PreparedOnce]] = {}
_ENDED: Final[set[str]] = set()
"""Runs that have ended here: a part of them that only now begins is dropped."""
_LOCK: Final = threading.Lock()


class _StoppedError(KeyboardInterrupt):
    """A job was stopped because its run has ended: its unfinished cells have no verdict, not even that they failed."""


class _PreparedOnce:
    """An executor that prepares each target once for all parts, and after :meth:`stop` ends every job as an interrupt would.

    A part that ends by an error stops it, too. The next part gets a new one.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._prepared: set[str] = set()
        self._lock = threading.Lock()
        self.isolation = executor.isolation
        self.unavailable = executor.unavailable
        self.identity = executor.identity
        self._stopped = threading.Event()

    def prepare(self, targets: Sequence[str]) -> dict[str, HwmatrixError]:
        """Build what the targets need and what is not built yet. Return the errors of the targets that failed."""
        with self._lock:
            failed = self._executor.prepare([target for target in targets if target not in self._prepared])
            self._prepared |= {*targets} - failed.keys()
            return failed

    def run(self, job: Job, on_line: Callable[[str], None]) -> Ended:
        """Run a job to its end."""
        ended = self._executor.run(job, on_line)
        if self._stopped.is_set():
            raise _StoppedError
        return ended

    @property
    def is_stopped(self) -> bool:
        """Whether it runs no further job."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End all running jobs."""
        self._stopped.set()
        self._executor.stop()


def _executor(run_id: str, project: str, isolation: Isolation, workshop: Workshop, folder: Path) -> Executor:
    """The executor of a run on this member, and the part's folder, unless the run has ended."""
    key = (run_id, project, isolation)
    with _LOCK:
        if run_id in _ENDED:
            raise _StoppedError
        folder.mkdir(parents=True, exist_ok=True)
        if key not in _EXECUTORS or _EXECUTORS[key].is_stopped:
            _EXECUTORS[key] = _PreparedOnce(choose(isolation, workshop))
        return _EXECUTORS[key]


@contextlib.contextmanager
def _pinned(variables: Mapping[str, str]) -> Iterator[None]:
    """Keep this thread, and all that it starts, on the cores that this worker may use."""
    cores = cores_of(variables)
    if not cores or not sys.platform.startswith("linux"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _packed(folder: Path, part: Part) -> bytes | None:
    return _archive(RunFolder(path=folder / RUNS / part.run_id), part.targets[0])


def _archive(folder: RunFolder, target: str) -> bytes | None:
    """The finished shards of a target in a folder as an archive; None if it has none."""
    if not any(folder.shards.glob(f"{target}-*.duckdb")):
        return None
    with tempfile.TemporaryDirectory(dir=folder.path) as temporary:
        archive = Path(temporary) / "shards.tar"
        artifacts.pack(folder.path, target, archive)
        return archive.read_bytes()


def _failure(error: HwmatrixError | OSError) -> Failure:
    if isinstance(error, OSError):  # nobody expected it, so it is this machine's
        error = EngineError(f"{type(error).__name__}: {error}")
    output = error.output if isinstance(error, CommandError) else ""
    message = "\n".join(part for part in (error.message, "\n".join(output.strip().splitlines()[-20:])) if part)
    retry = isinstance(error, EngineError | StoreError | ImageBuildError)
    return Failure(member=_name(), message=message, advice=error.advice, exit_code=error.exit_code, retry=retry)


def _name() -> str:
    return str(get_worker().name)


class _Reporting:
    """A view that sends what it is told to the client of the run."""

    def __init__(self, part: Part) -> None:
        self._worker = get_worker()  # it is known only in the task's own thread
        self._topic = TOPIC + part.run_id
        self._part = part.name
        self._canaries = {canary.name for canary in canary_plans()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def begins(self) -> None:
        """Send that the work on the part begins."""
        self._send({"begins": self._part})

    def say(self, text: str) -> None:
        """Send a step."""
        self._send({"say": text})

    def detail(self, text: str) -> None:
        """Send nothing: nobody watches a build on another machine line by line."""

    def begin(self, target: str, count: int, noun: str = "cells") -> None:
        """Send nothing: the client knows how much there is to do."""

    def event(self, target: str, event: dict[str, Any]) -> None:
        """Send what was finished."""
        canary = event.get("model") in self._canaries or event.get("role") in {Role.CANARY_GOOD, Role.CANARY_WRONG}
        if event["event"] in _SHOWN_EVENTS and not canary:
            self._send({"target": target, "event": json.loads(json.dumps(event))})  # Dask sends no enums

    def end(self, target: str) -> None:
        """Send nothing: the part's result says it."""

    def _send(self, message: dict[str, Any]) -> None:
        self._worker.log_event(self._topic, {"member": str(self._worker.name), "part": self._part, **message})
