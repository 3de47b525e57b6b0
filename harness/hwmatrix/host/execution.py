"""A run, step by step: prepares, then for each wave makes bundles and runs one job per target, and handles failures."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from hwmatrix.basics.clock import now
from hwmatrix.basics.text import plural
from hwmatrix.errors import HwmatrixError, NoTargetAvailableError, StoreError
from hwmatrix.faults.catalogue import match
from hwmatrix.hardware.detector import machine_identity
from hwmatrix.host import adapting, infrastructure
from hwmatrix.host.bundle_jobs import make_bundles, prepare_reference, refused
from hwmatrix.host.cache_limit import keep_under
from hwmatrix.host.executors import Job, follow
from hwmatrix.host.run_order import RunOrder, RunOutcome
from hwmatrix.host.sharing import at_once, core_sets
from hwmatrix.host.stale import StaleRule, stale
from hwmatrix.host.timing_turn import timing_turn
from hwmatrix.host.waves import Pace, Wave, waves
from hwmatrix.models.canary import canary_plans
from hwmatrix.records.bundle_index import INDEX, read_index
from hwmatrix.store.freshness import made_with

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.host.console import View
    from hwmatrix.records import CellPlan, ModelPlan

_NO_TOOLKIT: Final = "container_toolkit_missing"
"""The one engine fault that the catalogue recognizes by its message and that has its own advice."""


def run(order: RunOrder, view: View) -> RunOutcome:
    """Run every cell of the plan that has no verdict yet or a stale one. However the run ends, started shards are saved.

    Raises:
        HwmatrixError: the reference image cannot be built, or the bundles cannot be made, so that nothing can run.
        NoTargetAvailableError: no target of the plan can run here. The message has the reason for each.
    """
    todo = _to_do(order, order.folder.settled() if order.stale is None else set())
    for cell in adapting.pending(order.plan, order.folder):
        todo.setdefault(cell.target, ())
    if not todo and all(target.unavailable for target in order.plan.targets):
        reasons = "\n".join(f"{target.name}: {target.unavailable}" for target in order.plan.targets)
        raise NoTargetAvailableError(
            f"no requested target can run here:\n{reasons}", advice="See docs/images.md, or choose other --targets."
        )
    if not todo:
        elsewhere = any(target.unavailable for target in order.plan.targets)
        view.say("nothing is missing that can run here" if elsewhere else "nothing is missing: every cell has a verdict")
        return RunOutcome(failed={})
    failed = _prepare(order, todo, view)
    runnable = {target: cells for target, cells in todo.items() if target not in failed}
    if runnable:
        try:
            for target, error in _Waves(order, runnable, view).work_off().items():
                failed.setdefault(target, error)
        except BaseException:
            order.executor.stop()  # however the run ends, none of its jobs keeps running
            raise
    return RunOutcome(failed=failed)


class _Waves:
    """Executes a run: for each wave of models makes their bundles, runs their cells on all targets, then frees disk space."""

    def __init__(self, order: RunOrder, todo: dict[str, tuple[CellPlan, ...]], view: View) -> None:
        self._order = order
        self._todo = todo
        self._view = view
        self._failed: dict[str, HwmatrixError] = {}
        self._given: Counter[str] = Counter()
        self._bundles = 0
        self._adapted: set[str] = set()
        self._reference_is_ready = not _all_handed_over(order, todo)
        self._pace = Pace(sum(len(cells) for cells in todo.values()))

    def work_off(self) -> dict[str, HwmatrixError]:
        """Execute all waves. Return the first error of each target that failed as a whole."""
        planned = waves(self._order.plan, self._todo) if any(self._todo.values()) else []
        canaries = len(canary_plans())  # each job of bundles reports them
        self._bundles = sum(len(models) + canaries for wave in planned if (models := self._to_make(wave)))
        for wave in planned:
            if wave.of > 1:
                self._view.say(f"wave {wave.number} of {wave.of}: {plural(len(wave.models), 'model')}; {self._pace.tell()}")
            self._make_bundles(self._order, self._to_make(wave))
            self._run(self._still_wanted(wave.cells))
            self._ask_other_exporters(wave)
            self._adapt()
            if wave.of > 1:  # a run with a single wave keeps its bundles for the next run
                told = keep_under(self._order.cache_limit_gb, self._order.cache, wave.later)
                if told is not None:
                    self._view.say(told)
            self._pace.done(sum(len(cells) for cells in wave.cells.values()))
        if not planned:
            self._adapt()
        return self._failed

    def _to_make(self, wave: Wave) -> list[ModelPlan]:
        """The models of a wave whose bundles were not made elsewhere."""
        return [model for model in wave.models if model.key not in self._order.handed_over]

    def _still_wanted(self, cells: dict[str, tuple[CellPlan, ...]]) -> dict[str, tuple[CellPlan, ...]]:
        """Select the cells of a wave to run: without targets whose shards cannot be written, and only stale ones if requested."""
        cells = {target: listed for target, listed in cells.items() if not isinstance(self._failed.get(target), StoreError)}
        rule = self._order.stale
        return cells if rule is None else _to_do_anew(self._order, rule, cells, self._view)

    def _ask_other_exporters(self, wave: Wave) -> None:
        """Call the other exporter for models whose first graph a target rejected, and run those cells again."""
        again = refused(self._order, wave.cells)
        if not again:
            return
        names = {cell.model_key for cells in again.values() for cell in cells}
        self._view.say(f"{', '.join(again)} rejected the first export of {plural(len(names), 'model')}: trying another")
        models = [model for model in wave.models if model.key in names]
        if self._made_more(self._order, models, every_exporter=True):
            self._run(again)

    def _adapt(self) -> None:
        """Retry failed cells with changes, until each has passed or nothing that could help is left."""
        while cells := [cell for cell in self._to_adapt() if cell.target in self._todo and cell.target not in self._failed]:
            self._view.say(f"retrying {len(cells)} of the failed cells with one setting changed (matrix.yaml: adapt)")
            self._adapted |= {cell.key for cell in cells}
            plan = adapting.round_of(self._order.plan, cells)
            order = dataclasses.replace(self._order, plan=plan, folder=adapting.lay_down(self._order.folder, plan), stale=None)
            if not self._made_more(order, plan.models, every_exporter=any(map(_other_export, cells))):
                continue
            todo = {target.name: tuple(cell for cell in cells if cell.target == target.name) for target in plan.targets}
            for target, error in _run_targets(order, todo, self._view, {target: self._given[target] for target in todo}).items():
                self._failed.setdefault(target, error)

    def _made_more(self, order: RunOrder, models: Sequence[ModelPlan], *, every_exporter: bool) -> bool:
        """Make bundles for an optional step: if that fails, it says so, and the verdicts without the step stand."""
        self._bundles += len(models) + len(canary_plans())
        try:
            self._make_bundles(order, models, every_exporter=every_exporter)
        except HwmatrixError as error:
            self._view.say(f"not retried: {error}")
            return False
        return True

    def _make_bundles(self, order: RunOrder, models: Sequence[ModelPlan], *, every_exporter: bool = False) -> None:
        """Make bundles and exports, once the reference image is there. It is not prepared at first if all bundles were made elsewhere."""
        if not models:
            return
        if not self._reference_is_ready:
            prepare_reference(order)
            self._reference_is_ready = True
        make_bundles(order, models, self._view, total=self._bundles, every_exporter=every_exporter)

    def _to_adapt(self) -> tuple[CellPlan, ...]:
        return adapting.pending(self._order.plan, self._order.folder, besides=self._adapted)

    def _run(self, cells: dict[str, tuple[CellPlan, ...]]) -> None:
        self._given.update({target: len(listed) for target, listed in cells.items()})
        totals = {target: max(self._given[target], 0 if self._order.stale else len(self._todo[target])) for target in cells}
        for target, error in _run_targets(self._order, cells, self._view, totals).items():
            self._failed.setdefault(target, error)


def _other_export(cell: CellPlan) -> bool:
    return cell.adaptation is not None and cell.adaptation.change.export is not None


def _to_do(order: RunOrder, finished: set[str]) -> dict[str, tuple[CellPlan, ...]]:
    """The unfinished cells by target. Cells that cannot run are left out: the merge takes them from the plan."""
    todo: dict[str, tuple[CellPlan, ...]] = {}
    for target in order.plan.targets:
        cells = tuple(
            cell
            for cell in order.plan.cells
            if cell.target == target.name and cell.key not in finished and order.plan.model_of(cell).unbuildable is None
        )
        if cells and target.unavailable is None:
            todo[target.name] = cells
    return todo


def _to_do_anew(order: RunOrder, rule: StaleRule, todo: dict[str, tuple[CellPlan, ...]], view: View) -> dict[str, tuple[CellPlan, ...]]:
    """Select the cells without a verdict or with a stale one, given the images and bundles that would be used now."""
    made = made_with(sorted(order.folder.shards.glob("*.duckdb")))
    reasons = stale(
        (cell for cells in todo.values() for cell in cells),
        made,
        rule,
        images={target: order.executor.identity(target)[1] for target in todo},
        bundles={model: entry.digest for model, entry in read_index(order.folder.bundles / INDEX).items()},
        now=now(),
    )
    settled = order.folder.settled()
    anew = {
        target: chosen
        for target, cells in todo.items()
        if (chosen := tuple(cell for cell in cells if cell.key in reasons or cell.key not in settled))
    }
    told = ", ".join(f"{count} {reason}" for reason, count in Counter(reasons.values()).most_common())
    view.say(f"stale: {told}" if told else "nothing is stale")
    return anew


def _all_handed_over(order: RunOrder, todo: Mapping[str, Sequence[CellPlan]]) -> bool:
    """Whether every cell's bundle was made elsewhere."""
    return bool(order.handed_over) and all(cell.model_key in order.handed_over for cells in todo.values() for cell in cells)


def _prepare(order: RunOrder, todo: dict[str, tuple[CellPlan, ...]], view: View) -> dict[str, HwmatrixError]:
    """Build the images. Without the reference image nothing can run, unless all bundles are there; without another, only its own cells."""
    reference = () if _all_handed_over(order, todo) else (order.reference,)
    failed = order.executor.prepare(list(dict.fromkeys((*reference, *todo))))
    if order.reference in failed and reference:
        raise failed[order.reference]
    for target, error in failed.items():
        view.say(f"{target}: {error}")
        finished = order.folder.finished()  # an existing verdict stands until there is a newer one
        cells = tuple(cell for cell in todo[target] if cell.key not in finished)
        _record_failure(order, target, cells, "image_build_failed", str(error))
    return failed


def _run_targets(order: RunOrder, todo: dict[str, tuple[CellPlan, ...]], view: View, totals: Mapping[str, int]) -> dict[str, HwmatrixError]:
    """Run ``workers`` targets at a time, each on its own cores, so that they do not disturb each other's timing.

    If speed is measured, no other run on this machine measures at the same time. ``totals`` are the numbers of cells per target in all
    waves.
    """
    failed: dict[str, HwmatrixError] = {}
    if not todo:
        return failed
    free = core_sets(min(order.workers, len(todo)))
    jobs = len(free)
    stopping = threading.Event()

    turn = timing_turn(view.say, stopping) if order.plan.timing else contextlib.nullcontext()

    def one(target: str) -> HwmatrixError | None:
        cores = free.pop()
        try:
            share = _Share(cores=cores, jobs=jobs, total=totals[target])
            return _run_target(order, target, todo[target], share=share, view=view, stopping=stopping)
        finally:
            free.append(cores)

    with turn, concurrent.futures.ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="target") as pool:
        futures = {target: pool.submit(one, target) for target in todo}
        try:
            for target, future in futures.items():
                error = future.result()
                if error is not None:
                    failed[target] = error
        except BaseException:
            stopping.set()
            for future in futures.values():
                future.cancel()
            order.executor.stop()
            raise
    return failed


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Share:
    """The share of the machine for one of ``jobs`` parallel jobs, and the total number of cells of its target in the run."""

    cores: str | None
    jobs: int
    total: int

    def at_once(self, order: RunOrder, cells: tuple[CellPlan, ...]) -> int:
        """The number of cells that can run at the same time; 1 if they are timed."""
        if order.plan.timing:
            return 1
        return at_once(
            threads=max(cell.settings.threads for cell in cells),
            memory_mb=max(cell.limits.memory_mb for cell in cells),
            cores=None if self.cores is None else self.cores.count(",") + 1,
            jobs=self.jobs,
            total_mb=order.memory_mb,
        )


def _run_target(
    order: RunOrder, target: str, cells: tuple[CellPlan, ...], *, share: _Share, view: View, stopping: threading.Event
) -> HwmatrixError | None:
    """Run one target's cells. If the target fails, its remaining cells are recorded as our failure; if stopped, they are just not run."""
    image, digest = order.executor.identity(target)
    order.folder.write_cells(target, [cell.key for cell in cells])
    pieces = share.at_once(order, cells)
    arguments = ["--target", target, "--cells", target, "--host", machine_identity(), "--at-once", str(pieces)]
    arguments += ["--image", image] if image else []
    arguments += ["--image-digest", digest] if digest else []
    job = Job(
        target=target,
        work="run",
        plan_dir=order.folder.path,
        cache=order.cache,
        out=order.folder.shards,
        arguments=tuple(arguments),
        memory_mb=max(cell.limits.memory_mb for cell in cells),
        at_once=pieces,
        cpuset=share.cores,
    )
    view.begin(target, share.total)
    try:
        ended = follow(order.executor, job, view, target)
    except HwmatrixError as error:
        if stopping.is_set():
            return None
        _record_unfinished(order, target, cells, str(error))
        return error
    if stopping.is_set():
        return None
    if ended.code != 0:
        failure = infrastructure.failure(target, "the runner ended before all cells were done", ended)
        view.say(str(failure))
        if isinstance(failure, StoreError):  # the disk is full, so nothing can be recorded: missing cells count as not run
            order.folder.salvage(target)
        else:
            _record_unfinished(order, target, cells, str(failure))
        return failure
    view.end(target)
    return None


def _record_unfinished(order: RunOrder, target: str, cells: tuple[CellPlan, ...], message: str) -> None:
    """Keep what the shard has, and record the other cells as an infrastructure failure, not as the models'."""
    order.folder.salvage(target)
    finished = order.folder.finished()
    known = match(message, hardware=order.plan.target(target).backend).type
    error_type = known if known == _NO_TOOLKIT else "infrastructure"
    _record_failure(order, target, tuple(cell for cell in cells if cell.key not in finished), error_type, message)


def _record_failure(order: RunOrder, target: str, cells: tuple[CellPlan, ...], error_type: str, message: str) -> None:
    if cells:
        infrastructure.record(order.folder.shards, order.plan, target, cells, error_type=error_type, message=message)
