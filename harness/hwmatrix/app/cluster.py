"""A run on a cluster: plans it for what the members offer, splits it into parts, collects their shards, retries what a lost worker had.

The client decides nothing that Dask can decide: which worker gets which part, and where the bundles of a part come from, follows from the
resources that parts need and from the data that they depend on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
import secrets
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from distributed import Future, KilledWorker

from hwmatrix.app import cluster_member as member
from hwmatrix.app.cluster_member import Bundles, Failure, Part, Shards
from hwmatrix.app.cluster_snapshots import Snapshots
from hwmatrix.app.execution import facts_with, finishing, merge_and_report, refuse_gone
from hwmatrix.errors import ConfigError, EngineError, HwmatrixError, NoTargetAvailableError, Problem, StoreError
from hwmatrix.host import artifacts, infrastructure
from hwmatrix.host.cluster.offers import Offer, code_digest, needed
from hwmatrix.host.cluster.parts import Group, costs, grouped
from hwmatrix.host.cluster.travelling import Project
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.matrix.plan import check_selection, make_plan
from hwmatrix.models.build import HUB, RECIPE
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.records import CellPlan, Isolation, ModelPlan, Plan, Role, to_json
from hwmatrix.store.confined import opened
from hwmatrix.store.reading import DATABASE, query
from hwmatrix.store.shard import finished_cells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from distributed import Client

    from hwmatrix.app.environment import Environment
    from hwmatrix.host.console import View
    from hwmatrix.host.executors import Workshop
    from hwmatrix.matrix.load import LoadedMatrix
    from hwmatrix.matrix.plan import Selection

ATTEMPTS: Final = 3
"""How often a part is tried: after so many lost workers or failures of machines, its cells are recorded as ours."""
_LOOK_S: Final = 2.0
"""How often the client looks whether workers came or went, in seconds."""
_GIVE_UP_S: Final = 60.0
"""How long a part waits for a worker that can run it, after the last such worker left."""
_TO_COME: Final = frozenset({"pending", "lost"})
"""The states of a task whose result may still come: of a lost one, whose worker died, once Dask has had it made again."""
_MADE: Final = frozenset({HUB, RECIPE, FACTORY})
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Members:
    """The workers of a cluster by address: what each offers. ``refused`` are those that get no work, with the reason.

    ``names`` are the workers' names, by which messages call them: ``--name``, or else the address.
    """

    offers: dict[str, Offer]
    refused: dict[str, str]
    names: dict[str, str]

    @property
    def isolation(self) -> Isolation:
        """How the members isolate targets: in containers if all of them can, else in virtual environments."""
        return Isolation.VENV if any(offer.no_engine for offer in self.offers.values()) else Isolation.CONTAINER


def members_of(client: Client) -> Members:
    """Ask all workers of a cluster what they offer.

    Raises:
        EngineError: no worker can be used. The message says why not.
    """
    answers = _on_each(client, member.offer_here)
    offers = {address: offer for address, offer in answers.items() if not isinstance(offer, Exception)}
    refused = {address: f"it does not answer as a member: {error}" for address, error in answers.items() if isinstance(error, Exception)}
    for address, offer in list(offers.items()):
        if offer.code != code_digest():
            refused[address] = f"{offer.host} has another hwmatrix ({offer.version}, code {offer.code}, here {code_digest()})"
            del offers[address]
    if not offers:
        reasons = "".join(f"\n{address}: {reason}" for address, reason in refused.items())
        advice = "Start one on each machine: hwmatrix cluster worker ADDRESS. All need the same version of hwmatrix."
        raise EngineError(f"the cluster has no worker that can be used{reasons}", advice=advice)
    return Members(offers=offers, refused=refused, names=names_of(client))


def names_of(client: Client) -> dict[str, str]:
    """The names of all workers of a cluster by address."""
    return {address: str(worker["name"]) for address, worker in client.scheduler_info(n_workers=-1)["workers"].items()}


def matrix_on_cluster(
    client: Client,
    loaded: LoadedMatrix,
    selection: Selection | None,
    isolation: Isolation | None,
    workshop: Workshop,
    *,
    environment: Environment,
    output: Path,
    view: View,
    cache_limit_gb: float | None = None,
) -> None:
    """Run the matrix on a cluster: a new run of a selection, or (None) what the latest run lacks.

    Raises:
        ConfigError: see :func:`plan_on`; or there is no run to continue.
        HwmatrixError: see :func:`plan_on` and :func:`run_on`.
    """
    if selection is None:
        folder = RunFolder.latest(output)
        plan = folder.plan()
        refuse_gone(loaded, plan)
        if plan.matrix_sha256 != loaded.sha256:
            what = "it has changed since the run was planned, so the members would read another"
            raise ConfigError([Problem(where=str(loaded.path), what=what, hint="start a new run")])
        members_of(client)
    else:
        folder, plan = plan_on(
            client, loaded, selection, isolation, environment=environment, commit=workshop.commit, output=output, view=view
        )
    run_on(client, loaded, folder, plan, output=output, workshop=workshop, view=view, cache_limit_gb=cache_limit_gb)


def plan_on(
    client: Client,
    loaded: LoadedMatrix,
    selection: Selection,
    isolation: Isolation | None,
    *,
    environment: Environment,
    commit: str | None,
    output: Path,
    view: View,
) -> tuple[RunFolder, Plan]:
    """Plan a new run for what the members of a cluster can run.

    Raises:
        ConfigError: the selection names something that matrix.yaml does not have, or a checkpoint's folder that a member lacks.
        EngineError: no member can be used, or containers were asked for and one has no engine.
        NoTargetAvailableError: no member can run any of the targets. The message has the reason for each.
    """
    check_selection(loaded, selection)
    members = members_of(client)
    for address, reason in members.refused.items():
        view.say(f"not used: {address}: {reason}")
    chosen = _isolation(isolation, members, view)
    project = Project.of(loaded.path)
    unavailable = _unavailable(client, list(loaded.spec.targets), project, members)
    plan = make_plan(loaded, selection, facts_with(environment, commit, chosen, unavailable))
    if all(target.unavailable for target in plan.targets):
        reasons = "\n".join(f"{target.name}: {target.unavailable}" for target in plan.targets)
        raise NoTargetAvailableError(
            f"no member can run a requested target:\n{reasons}", advice="See docs/cluster.md, or choose other --targets."
        )
    _check_checkpoints(client, plan, members)
    return RunFolder.create(output, plan), plan


def run_on(
    client: Client,
    loaded: LoadedMatrix,
    folder: RunFolder,
    plan: Plan,
    *,
    output: Path,
    workshop: Workshop,
    view: View,
    cache_limit_gb: float | None = None,
) -> None:
    """Run what a plan lacks on a cluster, then merge and report. However it ends, finished cells are merged and reported.

    ``cache_limit_gb`` is the limit of each member's cache of bundles, in GiB; None: members keep everything.

    Raises:
        EngineError: the scheduler is gone.
        HwmatrixError: a target's image, engine or store failed on its last attempt; the others ran.
    """
    with finishing(folder, lambda: merge_and_report(folder, output, workshop.cache_dir, view), view):
        history = (output / DATABASE,)
        run = _ClusterRun(client, loaded, folder, plan, workshop=workshop, view=view, history=history, cache_limit_gb=cache_limit_gb)
        try:
            failed = run.work_off()
        except OSError as error:  # a connection of Dask; what hwmatrix reads and writes raises its own errors
            raise EngineError(f"the cluster does not answer: {error}", advice="Continue with --resume: finished cells are kept.") from error
        finally:
            run.end()
    for failure in failed.values():
        raise failure


@dataclasses.dataclass(kw_only=True)
class _Batch:
    """A group of models whose bundles are made together, and the bundles to come. ``place`` tells it from the others of its run.

    ``only``: the addresses of the workers that may make them; None: any.
    """

    group: Group
    place: str
    priority: int
    bundles: Future[Bundles]
    only: frozenset[str] | None
    attempt: int = 1


@dataclasses.dataclass(kw_only=True)
class _Job:
    """A part that is under way: its cells on one target, and the result to come. ``begun``: a worker has started it.

    ``only``: the addresses of the workers that may run it; None: any.
    """

    part: Part
    target: str
    cells: tuple[CellPlan, ...]
    batch: _Batch
    future: Future[Shards]
    only: frozenset[str] | None
    begun: bool = False
    stranded_since: float | None = None


class _ClusterRun:
    """Executes a run on a cluster, and keeps account of its parts. One thread; Dask's threads only put things into the queue."""

    def __init__(
        self,
        client: Client,
        loaded: LoadedMatrix,
        folder: RunFolder,
        plan: Plan,
        *,
        workshop: Workshop,
        view: View,
        history: Sequence[Path],
        cache_limit_gb: float | None,
    ) -> None:
        self._client = client
        self._loaded = loaded
        self._folder = folder
        self._plan = plan
        self._base_image = workshop.base_image
        self._view = view
        self._history = history
        self._cache_limit_gb = cache_limit_gb
        self._topic = member.TOPIC + plan.run_id
        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._jobs: dict[str, _Job] = {}
        self._failed: dict[str, HwmatrixError] = {}
        self._members: dict[str, str] = {}
        self._project: Future[Project] | None = None
        self._done: set[str] = set()
        self._dead: set[str] = set()
        self._distrusted: set[str] = set()
        """The names of the members whose last part failed by their fault. Others are preferred to them."""
        self._begun: dict[str, str] = {}
        self._reported: set[str] = set()
        self._submitted = 0
        self._snapshots = Snapshots(folder.path / _SNAPSHOTS, lambda known: _on_each(client, member.snapshots, plan.run_id, known))

    def work_off(self) -> dict[str, HwmatrixError]:
        """Run every cell that has no verdict yet. Return the first error of each target that failed as a whole.

        Raises:
            EngineError: the scheduler is gone.
        """
        self._client.subscribe_topic(self._topic, lambda event: self._arrived.put(event[1]))
        self._members = self._names()
        self._take_over(list(self._members), member.begin)
        self._take_snapshots(None)
        todo = self._to_do()
        if not todo:
            self._view.say("nothing is missing: every cell has a verdict")
            return {}
        self._begin(todo)
        files = Project.of(self._loaded.path)
        self._project = self._client.submit(_itself, files, key=f"hwmatrix-project-{files.digest}", pure=False)
        groups = grouped(self._plan, todo, costs(self._history), len(self._members))
        for number, group in enumerate(groups, 1):
            self._submit(group, f"{number} of {len(groups)}", priority=len(groups) - number)
        with self._snapshots:
            self._wait()
        for target in todo:
            self._view.end(target)
        return self._failed

    def _wait(self) -> None:
        """Handle what arrives until every part has ended."""
        looked = time.monotonic()
        while self._jobs:
            with contextlib.suppress(queue.Empty):
                arrived = self._arrived.get(timeout=_LOOK_S)
                self._check_scheduler()
                self._handle(arrived)
            self._check_scheduler()
            if time.monotonic() - looked > _LOOK_S:
                self._look_at_members()
                looked = time.monotonic()

    def end(self) -> None:
        """End what is still running on the members, take over what it finished, and have them delete what they stored for this run."""
        try:
            self._check_scheduler()
            if self._jobs:
                self._client.cancel([future for job in self._jobs.values() for future in (job.future, job.batch.bundles)], force=True)
                self._take_over(list(self._names()), member.leftovers)
                self._take_snapshots(None)
            self._client.unsubscribe_topic(self._topic)
            _on_each(self._client, member.forget, self._plan.run_id)
            self._snapshots.clear()
        except (OSError, EngineError) as error:
            why = error.message if isinstance(error, EngineError) else error
            self._view.say(f"the members do not know that the run has ended ({why}); --resume takes over what they have finished")

    def _check_scheduler(self) -> None:
        """Check that the scheduler is there: without it, Dask drops all that was submitted.

        Raises:
            EngineError: it is gone.
        """
        if self._client.status != "running":
            raise EngineError("the scheduler is gone", advice="Start it again, then continue with --resume: finished cells are kept.")

    def _to_do(self) -> dict[str, tuple[CellPlan, ...]]:
        self._done = self._folder.settled()
        found: dict[str, list[CellPlan]] = defaultdict(list)
        for cell in self._plan.cells:
            target = self._plan.target(cell.target)
            if cell.key not in self._done and target.unavailable is None and self._plan.model_of(cell).unbuildable is None:
                found[cell.target].append(cell)
        return {target: tuple(cells) for target, cells in found.items()}

    def _begin(self, todo: Mapping[str, Sequence[CellPlan]]) -> None:
        models = {cell.model_key for cells in todo.values() for cell in cells}
        self._view.begin(_BUNDLES, len(models), "to build or find")
        for target, cells in todo.items():
            self._view.begin(target, len(cells))
            self._begun |= {cell.key: target for cell in cells}

    def _submit(self, group: Group, place: str, *, priority: int) -> None:
        """Submit the bundles of a group of models, and the cells on each target."""
        bundles, only = self._submit_bundles(group, place, priority, attempt=1)
        batch = _Batch(group=group, place=place, priority=priority, bundles=bundles, only=only)
        for target, cells in group.cells.items():
            self._start(f"{target} {place}", cells, batch)

    def _submit_bundles(self, group: Group, place: str, priority: int, *, attempt: int) -> tuple[Future[Bundles], frozenset[str] | None]:
        """Submit the bundles of a group. Return what is to come, and which workers may make it."""
        cells = tuple(cell for listed in group.cells.values() for cell in listed)
        part = self._part(f"bundles {place}", cells, group.models, tuple(group.cells), attempt)
        wanted = needed(self._loaded.spec.targets[self._loaded.spec.images.reference].backend, _memory_mb(cells))
        only = self._preferred(wanted)
        bundles = self._client.submit(
            member.make_bundles,
            part,
            self._project,
            key=self._key(part),
            pure=False,
            priority=priority + 1,
            resources=wanted,
            workers=sorted(only) if only else None,
        )
        return bundles, only

    def _start(self, name: str, cells: tuple[CellPlan, ...], batch: _Batch, *, attempt: int = 1) -> None:
        """Submit a part: cells of one target. If their bundles could not be made, they are made once more."""
        if _has_failed(batch.bundles):
            batch.attempt += 1
            batch.bundles, batch.only = self._submit_bundles(batch.group, batch.place, batch.priority, attempt=batch.attempt)
        target = cells[0].target
        part = self._part(name, cells, batch.group.models, (target,), attempt)
        wanted = needed(self._plan.target(target).backend, _memory_mb(cells))
        only = self._preferred(wanted)
        future = self._client.submit(
            member.run_cells,
            part,
            self._project,
            batch.bundles,
            key=self._key(part),
            pure=False,
            priority=batch.priority,
            resources=wanted,
            workers=sorted(only) if only else None,
        )
        self._jobs[str(future.key)] = _Job(part=part, target=target, cells=cells, batch=batch, future=future, only=only)
        future.add_done_callback(self._arrived.put)

    def _workers(self) -> dict[str, dict[str, Any]]:
        """What the scheduler knows of each worker, by address."""
        return dict(self._client.scheduler_info(n_workers=-1)["workers"])

    def _preferred(self, wanted: Mapping[str, float]) -> frozenset[str] | None:
        """The workers that may do something: those whose last part did not fail by their fault; None (any) if there are no such.

        Otherwise a machine that fails at once, since its disk is full or its engine broken, would take one part after the other while the
        others work, until each part has failed as often as it may.
        """
        if not self._distrusted:
            return None
        able = _able(wanted, self._workers())
        return frozenset(address for address in able if self._members.get(address) not in self._distrusted) or None

    def _key(self, part: Part) -> str:
        """The name of a new task. Dask would take a task of the same name for the same, also if that one has failed."""
        self._submitted += 1
        return f"hwmatrix-{self._plan.run_id}-{part.name.replace(' ', '-')}-{self._submitted}-{secrets.token_hex(4)}"

    def _part(self, name: str, cells: Sequence[CellPlan], models: tuple[ModelPlan, ...], targets: Sequence[str], attempt: int = 1) -> Part:
        plan = dataclasses.replace(
            self._plan,
            cells=tuple(cells),
            models=models,
            targets=tuple(target for target in self._plan.targets if target.name in targets),
            types_of=None,
        )
        return Part(
            name=name,
            run_id=self._plan.run_id,
            plan=to_json(plan),
            targets=tuple(targets),
            attempt=attempt,
            base_image=self._base_image,
            cache_limit_gb=self._cache_limit_gb,
        )

    def _handle(self, arrived: Any) -> None:
        """Handle one thing that arrived: a part's end, or an event of a member."""
        if not isinstance(arrived, Future):
            self._show(arrived)
            return
        job = self._jobs.pop(str(arrived.key), None)
        if job is None:
            return
        status, outcome = _outcome_of(arrived)
        if status == "finished":
            try:
                self._take(job, outcome)
            except HwmatrixError as error:  # what arrived is not what a member sends
                self._again(job, str(error))
        elif isinstance(outcome, KilledWorker) or status == "lost":
            self._lost(job, outcome)
        else:
            self._again(job, f"{type(outcome).__name__}: {outcome}")

    def _show(self, message: dict[str, Any]) -> None:
        if "begins" in message:
            for job in self._jobs.values():
                job.begun = job.begun or job.part.name == message["begins"]
            self._view.say(f"{message['member']}: {message['begins']}")
            return
        if "say" in message:
            self._view.say(f"{message['member']}: {message['say']}")
            return
        self._report(_BUNDLES if message["event"]["event"] != "cell" else message["target"], message["event"])

    def _report(self, title: str, event: dict[str, Any]) -> None:
        """Show an event. Of the executions of a cell that is tried again, only the first counts for the progress."""
        if event["event"] == "cell" and event["role"] == Role.MODEL:
            if event["key"] in self._reported:
                return
            self._reported.add(event["key"])
        self._view.event(title, event)

    def _take(self, job: _Job, result: Shards) -> None:
        """Store the shards of a finished part. Cells that it could not run are tried again, or recorded as our failure."""
        if result.archive is not None:
            self._store(result.archive)
        failure = result.failure
        self._judge(result)
        if failure is not None and not failure.retry:
            error = failure.error()
            self._record(job, str(error))
            self._failed.setdefault(job.target, error)
        else:
            self._again(job, "not all of its cells were run" if failure is None else failure.message, member_name=result.member)

    def _judge(self, result: Shards) -> None:
        """Note whether a part failed by its member's fault, which may be the one that should have made the bundles."""
        if result.failure is None:
            self._distrusted.discard(result.member)
        elif result.failure.retry and result.failure.member not in self._distrusted:
            self._distrusted.add(result.failure.member)
            if len(self._members) > 1:
                self._view.say(f"what failed on {result.failure.member} is tried on another member first, if there is one that can run it")

    def _store(self, archive: bytes) -> tuple[str, ...]:
        """Check an archive of shards, and put them into the run's folder. Return the names of those that are new."""
        with tempfile.TemporaryDirectory(dir=self._folder.path, prefix=".arrived-") as temporary:
            file = Path(temporary) / "shards.tar"
            file.write_bytes(archive)
            names = artifacts.unpack(file, self._folder.path, plan=self._plan, again=True)
        self._done |= finished_cells([self._folder.path / name for name in names])
        return names

    def _lost(self, job: _Job, error: KilledWorker | None) -> None:
        """Give a dead worker's part to another. Dask reports it for every part that the worker was given, also those not begun."""
        self._client.cancel([job.future], force=True)
        if error is not None:
            self._bury(error.last_worker.address, str(error.last_worker.name))
        name = None if error is None else str(error.last_worker.name)
        self._look_at_members()
        if job.begun or any(self._snapshots.of(job.part.name)):  # its message that it begins may come later, or never
            self._again(job, "its worker died", member_name=name)
        else:
            self._start(job.part.name, job.cells, job.batch, attempt=job.part.attempt)

    def _bury(self, address: str, name: str) -> None:
        """Say that a worker died, and take over what it finished: its nanny starts another, which has its files."""
        if address not in self._dead:
            self._dead.add(address)
            self._members.pop(address, None)
            self._view.say(f"{name} died")
            self._take_over(self._restarted(name, address), member.begin)

    def _again(self, job: _Job, why: str, *, member_name: str | None = None) -> None:
        """Try the cells of a part that have no verdict yet once more, or record why they have none."""
        if self._left(job):
            self._take_snapshots(job.part.name)
        left = self._left(job)
        if not left:
            return
        who = f"{member_name}: " if member_name else ""
        if job.part.attempt >= ATTEMPTS:
            message = f"{who}{why}; tried {ATTEMPTS} times"
            self._record(job, message)
            self._failed.setdefault(
                job.target, EngineError(f"{job.target}: {message}", advice="Continue with --resume: finished cells are kept.")
            )
            return
        self._view.say(f"{job.part.name}: {who}{why}; {len(left)} of its {len(job.cells)} cells are tried again")
        self._start(job.part.name, left, job.batch, attempt=job.part.attempt + 1)

    def _left(self, job: _Job) -> tuple[CellPlan, ...]:
        """The cells of a part that have no verdict yet."""
        return tuple(cell for cell in job.cells if cell.key not in self._done)

    def _record(self, job: _Job, message: str) -> None:
        cells = self._left(job)
        if cells:
            infrastructure.record(self._folder.shards, self._plan, job.target, cells, error_type="infrastructure", message=message)

    def _look_at_members(self) -> None:
        """Say who came and who left; give up parts that no worker can run any more."""
        now = self._names()
        for address, name in list(self._members.items()):
            if address not in now:
                self._bury(address, name)
        came = {name for address, name in now.items() if address not in self._members}
        if came:
            self._view.say(f"{', '.join(sorted(came))} joined")
        self._members = self._names()
        workers = self._workers()
        for job in list(self._jobs.values()):
            able = _able(needed(self._plan.target(job.target).backend, _memory_mb(job.cells)), workers)
            if self._waits_in_vain(job, able):
                self._move(job)
            elif able:
                job.stranded_since = None
            elif job.stranded_since is None:
                job.stranded_since = time.monotonic()
            elif time.monotonic() - job.stranded_since > _GIVE_UP_S:
                del self._jobs[str(job.future.key)]
                self._client.cancel([job.future], force=True)
                message = f"no worker that can run {job.target} is left in the cluster"
                self._record(job, message)
                self._failed.setdefault(job.target, EngineError(message, advice="Start one, then continue with --resume."))

    def _waits_in_vain(self, job: _Job, able: frozenset[str]) -> bool:
        """Whether a part, or its bundles, may be done only by workers that are gone, while there are others."""
        bundles_wait = job.batch.only is not None and job.batch.bundles.status in _TO_COME and not job.batch.only & self._members.keys()
        return bool(able) and (bundles_wait or (job.only is not None and not job.only & able))

    def _move(self, job: _Job) -> None:
        """Submit a part again, to the workers that are there now, and its bundles if they were not made."""
        self._jobs.pop(str(job.future.key), None)
        self._client.cancel([job.future], force=True)
        if job.batch.only is not None and not job.batch.only & self._members.keys():
            self._client.cancel([job.batch.bundles], force=True)
        self._start(job.part.name, job.cells, job.batch, attempt=job.part.attempt)

    def _names(self) -> dict[str, str]:
        return names_of(self._client)

    def _restarted(self, name: str, died: str) -> list[str]:
        """The address of the worker that was started in the place of a dead one, under its name: it has the files of the dead one."""
        end = time.monotonic() + _RESTARTS_WITHIN_S
        while time.monotonic() < end:
            found = [address for address, other in self._names().items() if other == name and address != died]
            if found:
                return found
            time.sleep(0.2)
        return []

    def _take_over(self, addresses: Iterable[str], ask: Callable[[str], list[bytes]]) -> None:
        """Take over the cells that parts of this run finished on these members before they, their worker or an earlier client ended."""
        for answer in _on_each(self._client, ask, self._plan.run_id, workers=list(addresses)).values():
            self._store_leftovers(answer if isinstance(answer, list) else ())

    def _take_snapshots(self, part: str | None) -> None:
        """Take over the latest snapshots of a lost part (None: of all parts of an earlier client), unless its machine gave all it had."""
        self._store_leftovers(path.read_bytes() for path in self._snapshots.of(part))

    def _store_leftovers(self, archives: Iterable[bytes]) -> None:
        for archive in archives:
            try:
                names = self._store(archive)
            except StoreError as error:
                self._view.say(str(error))
            else:
                self._show_taken_over(names)

    def _show_taken_over(self, names: Iterable[str]) -> None:
        """Show the cells of shards that were taken over, as far as their member did not report them itself."""
        for name in names:
            with opened(self._folder.path / name) as connection:
                cursor = connection.execute(query("taken_over"))
                columns = [column[0] for column in cursor.description or ()]
                rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
            for row in rows:
                if row["key"] not in self._reported and row["key"] in self._begun:
                    self._report(self._begun[row["key"]], {"event": "cell", "p50_ms": None, **row})


_BUNDLES: Final = "bundles"
_SNAPSHOTS: Final = "snapshots"
_RESTARTS_WITHIN_S: Final = 15.0
_GATHER_S: Final = 30.0


def _itself(project: Project) -> Project:
    """Give a task's argument as its result, so that Dask moves it to the workers that need it, and can do so again if one dies."""
    return project


async def _off_loop(function: Callable[..., _Result], *args: Any) -> _Result:
    """Call a function beside a worker's event loop, which must not be blocked."""
    return await asyncio.to_thread(function, *args)


def _on_each(client: Client, function: Callable[..., Any], *args: Any, workers: list[str] | None = None) -> dict[str, Any]:
    """Call a function on each worker. An exception is returned in the place of the result."""
    if workers is not None and not workers:
        return {}
    return dict(client.run(_off_loop, function, *args, workers=workers, on_error="return"))


def _unavailable(client: Client, targets: Sequence[str], project: Project, members: Members) -> dict[str, str]:
    """The targets that no member can run, with the reasons and who gave them."""
    answers = _on_each(client, member.survey, list(targets), project, workers=list(members.offers))
    reasons: dict[str, dict[str, list[str]]] = {}
    for target in targets:
        given: dict[str, list[str]] = defaultdict(list)
        for address, answer in answers.items():
            reason = str(answer) if isinstance(answer, Exception) else answer.get(target)
            if reason is not None:
                given[reason].append(members.offers[address].host)
        if sum(map(len, given.values())) == len(answers):
            reasons[target] = given
    return {
        target: "; ".join(f"{reason} (on {', '.join(dict.fromkeys(hosts))})" for reason, hosts in given.items())
        for target, given in reasons.items()
    }


def _isolation(asked: Isolation | None, members: Members, view: View) -> Isolation:
    without = {offer.host: offer.no_engine for offer in members.offers.values() if offer.no_engine}
    if asked is Isolation.NONE:
        hint = "use container or venv: what is installed on each machine differs"
        raise ConfigError([Problem(where="--isolation none", what="members of a cluster would not run the same software", hint=hint)])
    if asked is Isolation.CONTAINER and without:
        reasons = "\n".join(f"{host}: {reason}" for host, reason in without.items())
        raise EngineError(f"members without a container engine:\n{reasons}", advice="Install one there, or run with --isolation venv.")
    if asked is not None:
        return asked
    for host, reason in without.items():
        view.say(f"no containers: {host}: {reason}")
    if without:
        view.say("using virtual environments made from the same requirements instead (isolation: venv)")
    return members.isolation


def _check_checkpoints(client: Client, plan: Plan, members: Members) -> None:
    folders = sorted({model.weights for model in plan.models} - _MADE)
    if not folders:
        return
    answers = _on_each(client, member.without_folder, folders, workers=list(members.offers))
    lacking: Counter[str] = Counter(folder for answer in answers.values() if isinstance(answer, list) for folder in answer)
    problems = [
        Problem(
            where=folder, what=f"{count} of {len(answers)} members do not have this folder", hint="put checkpoints on a shared file system"
        )
        for folder, count in lacking.items()
    ]
    if problems:
        raise ConfigError(problems)


def _memory_mb(cells: Sequence[CellPlan]) -> int:
    return max(cell.limits.memory_mb for cell in cells)


def _outcome_of(future: Future[Shards]) -> tuple[str, Any]:
    """How a part ended: ``finished`` with its result, ``error`` with an exception, or ``lost`` with the worker that had its result.

    A task that has ended can begin anew if a worker dies, so nothing is waited for without a limit.
    """
    try:
        status = future.status
        if status == "finished":
            return status, future.result(timeout=_GATHER_S)
        if status == "error":
            return status, future.exception(timeout=_GATHER_S)
    except (TimeoutError, CancelledError):
        return "lost", None
    except Exception as error:  # noqa: BLE001 - whatever the transfer raised
        return "error", error
    return "lost", None


def _able(wanted: Mapping[str, float], workers: Mapping[str, dict[str, Any]]) -> frozenset[str]:
    """The addresses of the workers that have these resources."""
    return frozenset(
        address for address, worker in workers.items() if all(worker["resources"].get(name, 0) >= least for name, least in wanted.items())
    )


def _has_failed(bundles: Future[Bundles]) -> bool:
    """Whether the bundles of a part could not be made. If a dead worker had them (``lost``), Dask has them made once more."""
    if bundles.status == "finished":
        return isinstance(bundles.result(), Failure)
    return bundles.status not in _TO_COME
