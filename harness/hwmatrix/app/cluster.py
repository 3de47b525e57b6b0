"""A run on a cluster: plans it for what the members offer, splits it into parts, and collects their shards.

The client decides nothing that Dask can decide: which worker gets which part, where the bundles of a part come from, and what is made again
if a worker dies, follows from the resources that parts need and from the data that they depend on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import CancelledError
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from distributed import Future, KilledWorker, as_completed
from distributed.scheduler import NoValidWorkerError, NoWorkerError

from hwmatrix.app import cluster_member as member
from hwmatrix.app.cluster_member import Failure, Part, PartError, Shards
from hwmatrix.app.execution import facts_with, finishing, merge_and_report, refuse_gone
from hwmatrix.errors import ConfigError, EngineError, HwmatrixError, NoTargetAvailableError, Problem, StoreError
from hwmatrix.host import artifacts, infrastructure
from hwmatrix.host.cluster import project
from hwmatrix.host.cluster.offers import Offer, code_digest, needed
from hwmatrix.host.cluster.parts import Group, costs, grouped
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.matrix.plan import check_selection, make_plan
from hwmatrix.models.build import HUB, RECIPE
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.records import CellPlan, Isolation, Plan, to_json
from hwmatrix.store.confined import opened
from hwmatrix.store.reading import DATABASE, query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distributed import Client

    from hwmatrix.app.environment import Environment
    from hwmatrix.host.console import View
    from hwmatrix.host.executors import Workshop
    from hwmatrix.matrix.load import LoadedMatrix
    from hwmatrix.matrix.plan import Selection

ATTEMPTS: Final = 3
"""How often a part is tried: after so many failures of machines, its cells are recorded as ours."""
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
    plan = make_plan(loaded, selection, facts_with(environment, commit, chosen, _unavailable(loaded, members)))
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
    """Run what a plan lacks on a cluster, then merge and report. However it ends, finished parts are merged and reported.

    ``cache_limit_gb`` is the limit of each member's cache of bundles, in GiB; None: members keep everything.

    Raises:
        EngineError: the scheduler is gone.
        StoreError: the results cannot be stored here.
        HwmatrixError: a target's image, engine or store failed on its last attempt; the others ran.
    """
    with finishing(folder, lambda: merge_and_report(folder, output, workshop.cache_dir, view), view):
        history = (output / DATABASE,)
        run = _ClusterRun(client, loaded, folder, plan, workshop=workshop, view=view, history=history, cache_limit_gb=cache_limit_gb)
        try:
            failed = run.execute()
        except OSError as error:  # a connection of Dask; what hwmatrix reads and writes raises its own errors
            raise EngineError(f"the cluster does not answer: {error}", advice="Continue with --resume: finished parts are kept.") from error
    for failure in failed.values():
        raise failure


@dataclasses.dataclass(kw_only=True)
class _Batch:
    """A group of models whose bundles are made together, and the bundles to come. ``place`` tells it from the others of its run."""

    group: Group
    place: str
    priority: int
    bundles: Future[bytes]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    """A part that is under way: its cells on one target. ``attempt`` counts from 1."""

    name: str
    target: str
    cells: tuple[CellPlan, ...]
    batch: _Batch
    attempt: int


class _ClusterRun:
    """Executes a run on a cluster. A part is one task, and its result is its shards: what has arrived is stored at once.

    Dask repeats the tasks of a worker that dies. A part whose member failed is repeated here: what it finished counts, and the rest goes to
    another member, which Dask's ``retries`` would not see to.
    """

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
        self._view = view
        self._history = history
        self._member = member.Member(plan.run_id, project.pack(loaded.path), base_image=workshop.base_image, cache_limit_gb=cache_limit_gb)
        self._results = as_completed(loop=client.loop)
        self._jobs: dict[Future[Shards], _Job] = {}
        self._failed: dict[str, HwmatrixError] = {}
        self._names: dict[str, str] = {}
        self._begun: Counter[str] = Counter()
        """How often each part has begun on a member."""
        self._done: set[str] = set()
        self._broken: set[str] = set()
        """The addresses of the members whose last part failed by their fault. Others are preferred to them."""

    def execute(self) -> dict[str, HwmatrixError]:
        """Run every cell that has no verdict yet. Return the first error of each target that failed as a whole.

        Raises:
            EngineError: the scheduler is gone.
        """
        todo = self._to_do()
        if not todo:
            self._view.say("nothing is missing: every cell has a verdict")
            return {}
        self._view.begin(_BUNDLES, len({cell.model_key for cells in todo.values() for cell in cells}), "to build or find")
        for target, cells in todo.items():
            self._view.begin(target, len(cells))
        self._names = names_of(self._client)
        self._client.subscribe_topic(self._member.name, self._show)
        self._client.subscribe_topic(_ALL, self._show_members)
        try:
            self._install()
            groups = grouped(self._plan, todo, costs(self._history), len(self._names))
            for number, group in enumerate(groups, 1):
                self._submit(group, f"{number} of {len(groups)}", priority=len(groups) - number)
            for future in self._results:
                self._check_scheduler()
                self._take(self._jobs[future], future)
                del self._jobs[future]
                future.release()  # or Dask would make it again if the worker that has it dies
        finally:
            self._end()
        for target in todo:
            self._view.end(target)
        return self._failed

    def _install(self) -> None:
        """Give every worker its part of the run. One with another hwmatrix cannot take it, and gets no work."""
        try:
            self._client.register_plugin(self._member)
        except Exception as error:  # noqa: BLE001 - whatever a worker that is no member raises
            self._check_scheduler()
            self._view.say(f"not every worker of the cluster takes part: {type(error).__name__}: {error}")

    def _end(self) -> None:
        """End what still runs on the members, and store what it has finished."""
        if self._client.status != "running":
            self._view.say("not every member knows that the run has ended: the scheduler is gone")
            return
        for topic in (self._member.name, _ALL):
            self._finally(self._client.unsubscribe_topic, topic)
        self._finally(self._client.unregister_worker_plugin, self._member.name)
        with contextlib.suppress(TimeoutError):
            for future in as_completed(list(self._jobs), loop=self._client.loop, timeout=_STOPS_WITHIN_S):
                if future.status == "finished":
                    self._finally(lambda finished: self._store(finished.result().archive), future)
        self._finally(self._client.cancel, list(self._jobs))

    def _finally(self, step: Callable[..., object], argument: object) -> None:
        """Take a step of the end of the run. The others follow even if it fails."""
        try:
            step(argument)
        except Exception as error:  # noqa: BLE001 - the run's own error is the one to raise
            self._view.say(f"while the run was ended: {type(error).__name__}: {error}")

    def _check_scheduler(self) -> None:
        """Check that the scheduler is there: without it, Dask drops all that was submitted.

        Raises:
            EngineError: it is gone.
        """
        if self._client.status != "running":
            raise EngineError("the scheduler is gone", advice="Start it again, then continue with --resume: finished parts are kept.")

    def _to_do(self) -> dict[str, tuple[CellPlan, ...]]:
        self._done = self._folder.settled()
        found: dict[str, list[CellPlan]] = defaultdict(list)
        for cell in self._plan.cells:
            target = self._plan.target(cell.target)
            if cell.key not in self._done and target.unavailable is None and self._plan.model_of(cell).unbuildable is None:
                found[cell.target].append(cell)
        return {target: tuple(cells) for target, cells in found.items()}

    def _submit(self, group: Group, place: str, *, priority: int) -> None:
        """Submit the bundles of a group of models, and the cells on each target."""
        batch = _Batch(group=group, place=place, priority=priority, bundles=self._submit_bundles(group, place, priority))
        for target, cells in group.cells.items():
            self._start(f"{target} {place}", cells, batch, attempt=1)

    def _submit_bundles(self, group: Group, place: str, priority: int) -> Future[bytes]:
        cells = tuple(cell for listed in group.cells.values() for cell in listed)
        part = self._part(f"bundles {place}", cells, group, tuple(group.cells))
        backend = self._loaded.spec.targets[self._loaded.spec.images.reference].backend
        return self._client.submit(member.make_bundles, part, pure=False, priority=priority + 1, **self._placed(backend, cells))

    def _start(self, name: str, cells: tuple[CellPlan, ...], batch: _Batch, *, attempt: int) -> None:
        """Submit a part: cells of one target. If their bundles could not be made, they are made once more."""
        if batch.bundles.status == "error":
            batch.bundles = self._submit_bundles(batch.group, batch.place, batch.priority)
        target = cells[0].target
        part = self._part(name, cells, batch.group, (target,))
        placed = self._placed(self._plan.target(target).backend, cells)
        future = self._client.submit(member.run_cells, part, batch.bundles, pure=False, priority=batch.priority, **placed)
        self._jobs[future] = _Job(name=name, target=target, cells=cells, batch=batch, attempt=attempt)
        self._results.add(future)

    def _placed(self, backend: str, cells: Sequence[CellPlan]) -> dict[str, Any]:
        """Which workers may run cells: those that have what they need, without the broken ones as long as there are others.

        Otherwise a machine that fails at once, since its disk is full or its engine broken, would take one part after the other while the
        others work, until each part has failed as often as it may.
        """
        wanted = needed(backend, max(cell.limits.memory_mb for cell in cells))
        workers = self._client.scheduler_info(n_workers=-1)["workers"].items() if self._broken else ()
        able = [address for address, worker in workers if all(worker["resources"].get(name, 0) >= least for name, least in wanted.items())]
        return {"resources": wanted, "workers": sorted({*able} - self._broken) or None}

    def _part(self, name: str, cells: tuple[CellPlan, ...], group: Group, targets: tuple[str, ...]) -> Part:
        plan = dataclasses.replace(
            self._plan,
            cells=cells,
            models=group.models,
            targets=tuple(target for target in self._plan.targets if target.name in targets),
            types_of=None,
        )
        return Part(name=name, run_id=self._plan.run_id, plan=to_json(plan), targets=targets)

    def _take(self, job: _Job, future: Future[Shards]) -> None:
        """Store the shards of a part that has ended. Cells that it did not finish are tried again, or recorded as our failure.

        Raises:
            EngineError: the scheduler is gone.
            StoreError: the results cannot be stored here.
        """
        try:
            shards = future.result()
        except (Exception, CancelledError) as error:  # noqa: BLE001 - whatever the transfer raised
            failure = self._failure_of(job, future, error)
            if failure is None:
                self._start(job.name, job.cells, job.batch, attempt=job.attempt)
                return
        else:
            if shards.failure is None:
                self._broken.discard(shards.address)
            failure = self._stored(job, shards) or shards.failure
        left = tuple(cell for cell in job.cells if cell.key not in self._done)
        if left:
            self._again(job, left, failure or Failure(message="not all of its cells were run"))

    def _failure_of(self, job: _Job, future: Future[Shards], error: BaseException) -> Failure | None:
        """Why a part has no result; None: the members that were preferred are gone, so it is to be submitted again.

        Raises:
            EngineError: the scheduler is gone.
        """
        if isinstance(error, PartError):
            return error.failure
        if isinstance(error, KilledWorker):
            own, deaths = error.task == future.key, error.allowed_failures + 1
            what = job.name if own else f"the bundles of {job.name}"
            waited = self._begun[job.name] < deaths  # Dask counts the death of a worker against all that waited there, too
            return Failure(message=f"{deaths} workers died while they had {what}", retry=waited or not own)
        if isinstance(error, NoValidWorkerError) and error.worker_restrictions:
            self._broken.clear()
            return None
        if isinstance(error, NoValidWorkerError | NoWorkerError):
            why = f"no worker that can run {job.target} is left in the cluster"
            return Failure(message=why, advice="Start one, then continue with --resume.", retry=False)
        self._check_scheduler()
        return Failure(message=f"{type(error).__name__}: {error}")

    def _stored(self, job: _Job, shards: Shards) -> Failure | None:
        """Store what a member sent. Return what is wrong with it.

        Raises:
            StoreError: it cannot be stored here.
        """
        try:
            self._store(shards.archive)
        except Exception as error:
            if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
                advice = "Free disk space, then continue with --resume: finished parts are kept."
                raise StoreError(f"{self._folder.path}: the results of {job.name} cannot be stored: {error}", advice=advice) from error
            return Failure(message=f"{type(error).__name__}: {error}")
        return None

    def _again(self, job: _Job, left: tuple[CellPlan, ...], failure: Failure) -> None:
        """Try cells once more, or record why they have no verdict."""
        if failure.retry and failure.address and failure.address not in self._broken:
            self._broken.add(failure.address)
            if len(self._names) > 1:
                self._view.say(f"what failed on {failure.member} is tried on another member first, if there is one that can run it")
        if failure.retry and job.attempt < ATTEMPTS:
            self._view.say(f"{job.name}: {failure.error().message}; {len(left)} of its {len(job.cells)} cells are tried again")
            self._start(job.name, left, job.batch, attempt=job.attempt + 1)
            return
        if failure.retry:
            failure = dataclasses.replace(failure, message=f"{failure.message}; tried {ATTEMPTS} times")
        error = failure.error()
        infrastructure.record(self._folder.shards, self._plan, job.target, left, error_type="infrastructure", message=str(error))
        self._failed.setdefault(job.target, error)

    def _store(self, archive: bytes) -> None:
        """Check an archive of shards, put them into the run's folder, and show their cells.

        Raises:
            StoreError: it is not what a member sends.
        """
        with tempfile.TemporaryDirectory(dir=self._folder.path, prefix=".arrived-") as temporary:
            file = Path(temporary) / "shards.tar"
            file.write_bytes(archive)
            names = artifacts.unpack(file, self._folder.path, plan=self._plan)
        rows: list[dict[str, Any]] = []
        for name in names:
            with opened(self._folder.path / name) as connection:
                cursor = connection.execute(query("finished_events"))
                columns = [column[0] for column in cursor.description or ()]
                rows += [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
        rows.sort(key=itemgetter("started_at"))
        for row in {(row["role"], row["key"]): row for row in rows}.values():  # of a cell that was tried again, the last one
            self._done.add(row["key"])
            self._view.event(row["target"], row)

    def _show(self, event: tuple[float, dict[str, Any]]) -> None:
        """Show what a member sent. Dask calls it in a thread of its own."""
        message = event[1]
        if "begun" in message:
            self._begun[message["begun"]] += 1
            return
        if "say" in message:
            self._view.say(message["say"])
        else:
            self._view.event(_BUNDLES, message["event"])

    async def _show_members(self, event: tuple[float, dict[str, Any]]) -> None:
        """Show which workers came or went, from the scheduler's own messages."""
        address = event[1].get("worker", "")
        if event[1].get("action") == "remove-worker":
            self._view.say(f"{self._names.get(address, address)} died")
        if event[1].get("action") == "add-worker":
            scheduler: Any = self._client.scheduler
            workers = (await scheduler.identity(n_workers=-1))["workers"]
            self._names = {each: str(worker["name"]) for each, worker in workers.items()}
            self._view.say(f"{self._names.get(address, address)} joined")


_ALL: Final = "all"
"""Dask's own topic: which workers came and went."""
_BUNDLES: Final = "bundles"
_STOPS_WITHIN_S: Final = 30.0


async def _off_loop(function: Callable[..., _Result], *args: Any) -> _Result:
    """Call a function beside a worker's event loop, which must not be blocked."""
    return await asyncio.to_thread(function, *args)


def _on_each(client: Client, function: Callable[..., Any], *args: Any, workers: list[str] | None = None) -> dict[str, Any]:
    """Call a function on each worker. An exception is returned in the place of the result."""
    return dict(client.run(_off_loop, function, *args, workers=workers, on_error="return"))


def _unavailable(loaded: LoadedMatrix, members: Members) -> dict[str, str]:
    """The targets that no member can run, with the reasons and the machines that have them."""
    unavailable: dict[str, str] = {}
    for target, spec in loaded.spec.targets.items():
        if all(spec.backend in offer.absent for offer in members.offers.values()):
            hosts: dict[str, list[str]] = defaultdict(list)
            for offer in members.offers.values():
                hosts[offer.absent[spec.backend]].append(offer.host)
            unavailable[target] = "; ".join(f"{reason} (on {', '.join(dict.fromkeys(names))})" for reason, names in hosts.items())
    return unavailable


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
