"""What a member of a cluster does for a run: makes bundles, runs the cells of a part, and returns their shards.

The client registers a :class:`Member` as a plugin of all workers. Tasks find it by the run's name, so a task that begins after the run has
ended fails at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from distributed import Worker, WorkerPlugin, get_worker

from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import isolation_of_part, pack_bundles, run_part, workshop_of
from hwmatrix.basics.cache_folder import bundles_folder
from hwmatrix.errors import CommandError, EngineError, HwmatrixError, ImageBuildError, StoreError
from hwmatrix.host import artifacts, containers
from hwmatrix.host.cache_limit import keep_under
from hwmatrix.host.cluster import project
from hwmatrix.host.cluster.offers import Offer, memory_of, offer
from hwmatrix.host.engine import connect
from hwmatrix.host.executors import Ended, Executor, Job, Workshop, choose
from hwmatrix.host.run_folder import RUNS
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.matrix.shipped import MATRIX_FILE
from hwmatrix.models.canary import canary_plans
from hwmatrix.records import Isolation, Plan, plan_from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

NAME: Final = "hwmatrix-"
"""The beginning of the name of a run's plugin, and of the topic of its members' messages; the run's id follows."""
_SHOWN_EVENTS: Final = frozenset({"bundle", "bundle_again"})
"""The events that are sent while a part is under way. Cells are shown when their shard has arrived."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a run: the cells of some models, on one target or (bundles) on all. ``plan`` is its plan as JSON."""

    name: str
    run_id: str
    plan: str
    targets: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A failure of a part: the name and address of the member, a message, advice and exit code. ``retry``: another member may succeed."""

    member: str = ""
    address: str = ""
    message: str
    advice: str = ""
    exit_code: int = EngineError.exit_code
    retry: bool = True

    def error(self) -> HwmatrixError:
        """The failure as an error of the run."""
        message = f"{self.member}: {self.message}" if self.member else self.message
        if self.exit_code == ImageBuildError.exit_code:
            return ImageBuildError(message, command=(), code=None, output="", advice=self.advice)
        kind = {EngineError.exit_code: EngineError, StoreError.exit_code: StoreError}.get(self.exit_code, HwmatrixError)
        return kind(message, advice=self.advice)


class PartError(Exception):
    """A part failed on a member. Errors of hwmatrix have keyword arguments, which are lost when they are sent."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shards:
    """The result of a part: an archive of the shards with the cells that it finished, and why it did not finish the others, if any."""

    address: str
    archive: bytes
    failure: Failure | None


def offer_here() -> Offer:
    """What this member offers."""
    return offer(os.environ)


def without_folder(paths: Sequence[str]) -> list[str]:
    """Return the checkpoints that are not on this member."""
    return [path for path in paths if not Path(path).is_dir()]


def make_bundles(part: Part) -> bytes:
    """Make the bundles of a part's models. Return them as an archive.

    Raises:
        PartError: they cannot be made here.
    """
    with _at_work(part) as work:
        archive = work.folder / "bundles.tar"
        pack_bundles(work.plan, archive, work.loaded, work.workshop, output=work.folder, view=work.view, executor=work.executor)
        return archive.read_bytes()


def run_cells(part: Part, bundles: bytes) -> Shards:
    """Run the cells of a part with these bundles.

    Raises:
        PartError: none of them was finished.
    """
    shards: bytes | None = None
    failure = None
    try:
        with _at_work(part) as work:
            archive = work.folder / "bundles.tar"
            archive.write_bytes(bundles)
            try:
                run_part(
                    work.plan,
                    part.targets,
                    work.loaded,
                    work.workshop,
                    output=work.folder,
                    view=work.view,
                    bundles=archive,
                    failures=True,
                    executor=work.executor,
                )
            finally:
                shards = _packed(work.folder / RUNS / part.run_id, part.targets[0])
    except PartError as error:
        failure = error.failure
        if shards is None:
            raise
    if shards is None:
        raise PartError(Failure(member=str(get_worker().name), address=get_worker().address, message="it returned no shard"))
    return Shards(address=get_worker().address, archive=shards, failure=failure)


class Member(WorkerPlugin):
    """The work for one run on one worker, from the start of the run, or of the worker, to the end of the run.

    Args:
        run_id: the run's id.
        packed_project: see :func:`hwmatrix.host.cluster.project.pack`.
        base_image: the base of the images; None: that of matrix.yaml.
        cache_limit_gb: the limit of this member's cache of bundles after each part, in GiB; None: it keeps everything.
    """

    def __init__(self, run_id: str, packed_project: bytes, *, base_image: str | None, cache_limit_gb: float | None) -> None:
        self.name = NAME + run_id
        self.base_image = base_image
        self.cache_limit_gb = cache_limit_gb
        self._project = packed_project

    async def setup(self, worker: Worker) -> None:
        """Prepare for tasks, and end what a worker that died has left here."""
        self._folder = Path(worker.local_directory) / self.name
        self._executors: dict[Isolation, _PreparedOnce] = {}
        self._loaded: LoadedMatrix | None = None
        self._lock = threading.Lock()
        self._stopped = False
        await asyncio.to_thread(_remove_leftovers)

    async def teardown(self, worker: Worker) -> None:  # noqa: ARG002 - as Dask calls it
        """End what still runs here. A part that is under way returns the shards of the cells that it has finished."""
        with self._lock:
            self._stopped = True
            executors = list(self._executors.values())
        for executor in executors:
            await asyncio.to_thread(executor.stop)
        shutil.rmtree(self._folder, ignore_errors=True)

    def matrix(self) -> LoadedMatrix:
        """The run's matrix.yaml, beside its images.

        Raises:
            OSError: it cannot be stored here.
        """
        if self._loaded is None:
            project.unpack(self._project, self._folder)
            self._loaded = load(self._folder / MATRIX_FILE)
        return self._loaded

    def executor(self, isolation: Isolation, workshop: Workshop) -> Executor:
        """The executor for all parts with this isolation, until one of them fails.

        Raises:
            EngineError: the run has ended, or there is no engine.
        """
        with self._lock:
            if self._stopped:
                raise EngineError("it was stopped")
            if isolation not in self._executors:
                self._executors[isolation] = _PreparedOnce(choose(isolation, workshop))
            return self._executors[isolation]

    def forget_executors(self) -> None:
        """Make new executors for the next part: a part that fails may have stopped them."""
        with self._lock:
            self._executors.clear()


def _remove_leftovers() -> None:
    with contextlib.suppress(HwmatrixError):
        containers.remove_leftovers(connect(read_environment().variables, need_builder=False))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """Everything for the work on a part. ``folder`` is the part's own, and is deleted afterwards."""

    plan: Plan
    folder: Path
    loaded: LoadedMatrix
    workshop: Workshop
    executor: Executor
    view: _Reporting


@contextlib.contextmanager
def _at_work(part: Part) -> Iterator[_Work]:
    """Prepare the work on a part, and tidy up after it.

    Raises:
        PartError: something failed.
    """
    worker = get_worker()
    member = worker.plugins.get(NAME + part.run_id)
    if not isinstance(member, Member):
        raise PartError(_failure(worker, EngineError("the run has ended")))
    view = _Reporting(worker, member.name)
    view.begun(part.name)
    try:
        with tempfile.TemporaryDirectory(dir=worker.local_directory, prefix="part-", ignore_cleanup_errors=True) as folder:
            environment, loaded = read_environment(), member.matrix()
            workshop = dataclasses.replace(
                workshop_of(loaded, environment, member.base_image, view), memory_mb=memory_of(environment.variables)
            )
            plan = plan_from_json(part.plan, where=part.name)
            executor = member.executor(isolation_of_part(plan, part.targets, loaded), workshop)
            yield _Work(plan=plan, folder=Path(folder), loaded=loaded, workshop=workshop, executor=executor, view=view)
        removed = None if member.cache_limit_gb is None else keep_under(member.cache_limit_gb, bundles_folder(environment.cache), ())
        if removed is not None:
            view.say(removed)
    except (Exception, _StoppedError) as error:
        member.forget_executors()
        raise PartError(_failure(worker, error)) from error


class _StoppedError(KeyboardInterrupt):
    """A job was stopped because its run has ended: its unfinished cells have no verdict, not even that they failed."""


class _PreparedOnce:
    """An executor that prepares each target once for all parts, and after :meth:`stop` ends every job as an interrupt would."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._prepared: set[str] = set()
        self._stopped = False
        self.isolation = executor.isolation
        self.unavailable = executor.unavailable
        self.identity = executor.identity

    def prepare(self, targets: Sequence[str]) -> dict[str, HwmatrixError]:
        """Build what the targets need and what is not built yet. Return the errors of the targets that failed."""
        failed = self._executor.prepare([target for target in targets if target not in self._prepared])
        self._prepared |= {*targets} - failed.keys()
        return failed

    def run(self, job: Job, on_line: Callable[[str], None]) -> Ended:
        """Run a job to its end."""
        ended = self._executor.run(job, on_line)
        if self._stopped:
            raise _StoppedError
        return ended

    def stop(self) -> None:
        """End all running jobs."""
        self._stopped = True
        self._executor.stop()


def _packed(folder: Path, target: str) -> bytes | None:
    """The finished shards in the folder of a run as an archive; None if it has none."""
    if not any((folder / "shards").glob("*.duckdb")):
        return None
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        archive = Path(temporary) / "shards.tar"
        artifacts.pack(folder, target, archive)
        return archive.read_bytes()


def _failure(worker: Worker, error: BaseException) -> Failure:
    if isinstance(error, _StoppedError):
        error = EngineError("it was stopped")
    if not isinstance(error, HwmatrixError):  # nobody expected it, so it is this machine's
        error = EngineError(f"{type(error).__name__}: {error}")
    output = error.output if isinstance(error, CommandError) else ""
    message = "\n".join(part for part in (error.message, "\n".join(output.strip().splitlines()[-20:])) if part)
    retry = isinstance(error, EngineError | StoreError | ImageBuildError)
    return Failure(
        member=str(worker.name), address=worker.address, message=message, advice=error.advice, exit_code=error.exit_code, retry=retry
    )


class _Reporting:
    """A view that sends to the client of the run what the user should see at once."""

    def __init__(self, worker: Worker, topic: str) -> None:
        self._worker = worker
        self._topic = topic
        self._canaries = {canary.name for canary in canary_plans()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def begun(self, part: str) -> None:
        """Send that a part has begun, and show it."""
        self._worker.log_event(self._topic, {"begun": part})
        self.say(part)

    def say(self, text: str) -> None:
        """Send a step."""
        self._worker.log_event(self._topic, {"say": f"{self._worker.name}: {text}"})

    def detail(self, text: str) -> None:
        """Send nothing: nobody watches a build on another machine line by line."""

    def begin(self, target: str, count: int, noun: str = "cells") -> None:
        """Send nothing: the client knows how much there is to do."""

    def event(self, target: str, event: dict[str, Any]) -> None:  # noqa: ARG002 - as the other views
        """Send that a bundle was made."""
        if event["event"] in _SHOWN_EVENTS and event["model"] not in self._canaries:
            self._worker.log_event(self._topic, {"event": json.loads(json.dumps(event))})  # Dask sends no enums

    def end(self, target: str) -> None:
        """Send nothing: the part's result says it."""
