"""The warm parent: imports the frameworks once, forks one child per cell, and stores each result immediately.

Cells run one after the other if they are timed or share a browser's device, since they would disturb each other. Otherwise workers
(``crew``) run as many in parallel as the order, the cores and a GPU's memory allow. Each worker has its own service (a browser) where cells
need one. Only the parent writes the shard.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pydantic

from hwmatrix.basics.clock import utc_now
from hwmatrix.basics.garbage import without_collection
from hwmatrix.errors import UnavailableError
from hwmatrix.faults.catalogue import catalogue
from hwmatrix.measure import memory
from hwmatrix.measure.cores import apart
from hwmatrix.measure.latency import median
from hwmatrix.models.canary import WRONG, canary_plans
from hwmatrix.models.factory.rules import overrides
from hwmatrix.records import (
    CellPlan,
    CellResult,
    Dtype,
    Execution,
    Isolation,
    Limits,
    MeasureRule,
    ModelKey,
    ModelPlan,
    Plan,
    Role,
    Settings,
    Stage,
    Status,
    TargetPlan,
    cell_command,
)
from hwmatrix.records.backends import FLOATING, Memory, descriptor_of
from hwmatrix.records.bundle_index import BundleEntry
from hwmatrix.records.results import NOTHING_TO_REWRITE
from hwmatrix.runner.cell import execute
from hwmatrix.runner.crew import Crew, Done, at_once
from hwmatrix.runner.detecting import detections
from hwmatrix.runner.events import emit
from hwmatrix.runner.forked import End, run_forked
from hwmatrix.runner.identity import shard_identity
from hwmatrix.runner.job import CellJob, reads_graph
from hwmatrix.runner.keeper import Keeper
from hwmatrix.runner.results import error_record, not_executed, result_of
from hwmatrix.runner.survey import classifications
from hwmatrix.store.shard import ShardWriter
from hwmatrix.targets.protocol import target_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hwmatrix.records import Detection
    from hwmatrix.targets.protocol import Service

_CANARY_LIMITS: Final = Limits(timeout_s=120.0, memory_mb=4096)
_CANARY_RULE: Final = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.0, min_samples=3, max_s=0.5)
"""Only a canary's verdict matters, so timing is kept to a minimum."""
_UNAVAILABLE: Final = "unavailable"
"""The key of a worker's answer for a cell whose service cannot be started."""
_END: Final = pydantic.TypeAdapter(End)
_CONTEXT_MB: Final = 1024
"""MiB of a GPU's memory for each process besides its cell's limit: the runtime's context and kernels, and the libraries' workspaces."""
_PERHAPS_THE_DEVICE: Final = frozenset({Status.OOM, Status.ERROR, Status.CRASH, Status.TIMEOUT})
"""What a cell's neighbours on a GPU may cause, or a GPU that is lost. Such a cell is run again alone, and the device is checked."""
_PROVES_NOTHING: Final = frozenset({Status.UNAVAILABLE, Status.FALLBACK, Status.UNSUPPORTED})
"""What a canary may end in without a verdict."""
_CANARY_WANTED: Final = {Role.CANARY_GOOD: Status.PASS, Role.CANARY_WRONG: Status.MISMATCH}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardOrder:
    """What one run of the parent must do, and what the host knows about where it runs.

    ``at_once`` is the number of parallel cells that memory allows.
    """

    plan: Plan
    target: TargetPlan
    cells: tuple[CellPlan, ...]
    bundles: dict[ModelKey, BundleEntry]
    cache: Path
    out: Path
    host: str
    image: str | None
    image_digest: str | None
    at_once: int = 1


def run_shard(order: ShardOrder) -> Path:
    """Run every cell of the order; return the sealed shard.

    Raises:
        StoreError: the shard cannot be written. Finished cells are kept in the partial file.
    """
    begin = time.perf_counter()
    preload(order.target.backend, _loaded(order))
    warm_up_ms = (time.perf_counter() - begin) * 1000
    identity = shard_identity(order, descriptor_of(order.target.backend).packages, warm_up_ms=warm_up_ms)
    service = target_class(order.target.backend).service(order.target.options)
    detected = detections()
    size = _parallel_cells(order, service, detected)
    work = _CellWork(order)
    crew = Crew(work, size=size, patience=work.patience, ending=work.end)
    with crew, ShardWriter(order.out, order.plan, identity) as shard, Keeper(service) as keeper:
        emit("shard", target=order.target.name, cells=len(order.cells), warm_up_ms=warm_up_ms)
        begin_mb = _resident_mb()
        shard.add_detections(detected)
        mine = {cell.model for cell in order.cells if cell.adaptation is None}
        shard.add_classifications(classifications(model for model in order.plan.models if model.name in mine or model.unbuildable))
        cells = _Cells(order, shard, keeper)
        canary_ok, canary_detail = cells.run_canaries()
        shard.set_canaries(ok=canary_ok, detail=canary_detail)
        cells.run_all(crew if size > 1 else None, canaries_failed=canary_detail if canary_ok is False else None)
        path = shard.seal()
    emit("parent", at_once=size, begin_mb=begin_mb, end_mb=_resident_mb())
    emit("sealed", shard=path.name)
    return path


def preload(backend: str, models: Iterable[ModelPlan]) -> None:
    """Import everything that the cells need, once. Nothing is computed here (see ``forked``). ``models`` are those that they load.

    What is imported is exempt from garbage collection: a child's first one would write to, and so copy, every page that it shares.
    """
    with without_collection():
        target_class(backend).preload(sorted({model.model_class for model in models}))
    gc.freeze()
    catalogue()
    overrides()


def _loaded(order: ShardOrder) -> Iterator[ModelPlan]:
    """The models of the cells, and the canaries, whose cells load a model and read no graph."""
    of_cells = ((order.plan.model_of(cell), _adapted(order.target, cell), cell.settings) for cell in order.cells)
    canaries = ((model, order.target, _canary_settings(model, Dtype.FLOAT32)) for model in canary_plans())
    for model, target, settings in (*of_cells, *canaries):
        entry = order.bundles.get(model.key)
        if entry is None or entry.key is None or not reads_graph(target, settings, order.cache / entry.key):
            yield model


def _parallel_cells(order: ShardOrder, service: Service | None, detected: list[Detection]) -> int:
    """How many cells run in parallel: one if they are timed or share a browser's device."""
    if order.plan.timing or (service is not None and service.shares_device):
        return 1
    most = at_once(order.at_once, max((cell.settings.threads for cell in order.cells), default=1))
    if descriptor_of(order.target.backend).memory is Memory.DEVICE:
        most = min(most, _fit_on_device(order, detected))
    return max(1, min(most, len(order.cells)))


def _fit_on_device(order: ShardOrder, detected: list[Detection]) -> int:
    """How many cells with the largest memory limit fit on the GPU with the least free memory; 0 if that is not known."""
    found = next((one.features for one in detected if one.hardware_type == order.target.backend), {})
    free = [gpu.get("free_mb") or 0 for gpu in found.get("gpus", ())]
    largest = max((cell.limits.memory_mb for cell in order.cells), default=0)
    return int(min(free, default=0) // (largest + _CONTEXT_MB))


class _CellWork:
    """The work of a crew: each worker has its own copy, with its own service."""

    def __init__(self, order: ShardOrder) -> None:
        self._order = order
        service = target_class(order.target.backend).service(order.target.options)
        self._start_s = service.start_s if service is not None else 0.0
        self._keeper = Keeper(service)

    def __call__(self, number: int, closing: tuple[int, ...]) -> dict[str, Any]:
        """Run the cell of this number in a child; return how the child ended, or why the cell's service is unavailable."""
        cell = self._order.cells[number]
        try:
            address = self._keeper.address()
        except UnavailableError as failure:
            return {_UNAVAILABLE: str(failure), "error_type": failure.error_type}
        end = _run(self._order, cell, self._order.plan.model_of(cell), service=address, closing=closing)
        return dataclasses.asdict(end)

    def patience(self, number: int) -> float:
        """How many seconds a cell may take: its time limit, twice where it may run again as it is, after the start of its service."""
        times = 2 if self._order.target.options.get("rewrite") else 1
        return self._start_s + times * self._order.cells[number].limits.timeout_s

    def end(self) -> None:
        """End the service of this worker."""
        self._keeper.stop()


def _run(order: ShardOrder, cell: CellPlan, model: ModelPlan, *, service: dict[str, Any] | None, closing: tuple[int, ...] = ()) -> End:
    """Run a cell in a child of this process. The option ``rewrite`` leaves a model with nothing to replace as it is."""
    target = _adapted(order.target, cell)
    end = _run_on(target, order, cell, model, service=service, closing=closing)
    last: dict[str, Any] = end.messages[-1] if end.messages else {}
    retried = cell.adaptation is not None and cell.adaptation.change.rewrite
    if retried or (last.get("error") or {}).get("type") != NOTHING_TO_REWRITE:
        return end
    plain = dataclasses.replace(target, options={**target.options, "rewrite": False})
    return _run_on(plain, order, cell, model, service=service, closing=closing)


def _run_on(
    target: TargetPlan, order: ShardOrder, cell: CellPlan, model: ModelPlan, *, service: dict[str, Any] | None, closing: tuple[int, ...]
) -> End:
    rule = order.plan.measure if model.role is Role.MODEL else _CANARY_RULE
    job = CellJob(
        cell=cell,
        model=model,
        target=target,
        bundle=order.cache / str(order.bundles[model.key].key),
        rule=rule if order.plan.timing else None,
        tolerances=order.plan.tolerances,
        service=service,
    )
    reserves = target_class(order.target.backend).reserves_address_space
    writable = () if order.plan.isolation_of(order.target.name) is Isolation.CONTAINER else None
    elsewhere = service is not None and "process" in service
    if elsewhere:  # the model runs in that process, whose memory a restricted child could not read
        writable = None
    cores = apart(cell.settings.threads) if order.plan.timing and not elsewhere else None  # on a GPU: those of its host's threads
    work = functools.partial(execute, job)
    return run_forked(work, limits=cell.limits, reserves_address_space=reserves, closing=closing, writable=writable, cores=cores)


def _adapted(target: TargetPlan, cell: CellPlan) -> TargetPlan:
    """The target for an adapted cell: with the option that makes the change, if the change is to the target."""
    change = cell.adaptation.change.data if cell.adaptation is not None else {}
    options = {name: value for name, value in change.items() if name in descriptor_of(target.backend).every_option}
    if not options:
        return target
    return dataclasses.replace(target, options={**target.options, **options}, forward_export=None)


def _canary_settings(model: ModelPlan, dtype: Dtype) -> Settings:
    return Settings(dtype=dtype, batch=model.batch, sequence_length=model.sequence_length, threads=1)


def _resident_mb() -> float | None:
    resident = memory.resident()
    return resident.now_mb if resident else None


class _Cells:
    """Runs cells, and stores each result immediately."""

    def __init__(self, order: ShardOrder, shard: ShardWriter, keeper: Keeper) -> None:
        self._order = order
        self._shard = shard
        self._keeper = keeper
        self._checks_with: Dtype | None = None
        """The precision in which the known-good model has passed on a device that may be lost."""
        self._lost: str | None = None
        self._distrusted: dict[Dtype, str] = {}
        """The reduced precisions in which the wrong model has passed, with the sentence that says so."""
        self._distrusted_generation: str | None = None

    def run_canaries(self) -> tuple[bool | None, str | None]:
        """Whether the known-good model passes and the wrong one is a mismatch, with the reason if not.

        None if they prove nothing: the target is unavailable, or the canary ran elsewhere (fallback). If this machine's device refuses a
        precision that the target supports, as a GPU without float16 does, they run in the next one.
        """
        results: list[CellResult] = []
        for dtype in self._canary_dtypes():
            results = self._canaries_in(dtype)
            if results[-1].status is not Status.UNSUPPORTED:
                break
        if results[-1].status in {Status.UNAVAILABLE, Status.FALLBACK}:
            return None, results[-1].error.message if results[-1].error else None
        problems = [_unlike(result) for result in results if result.status is not _CANARY_WANTED[result.role]]
        if not problems:
            self._check_reduced(ran_in=dtype)
            self._check_generation()
        self._checks_with = dtype if not problems and self._may_be_lost() else None
        return not problems, "; ".join(problems) or None

    def _canaries_in(self, dtype: Dtype) -> list[CellResult]:
        """The results of the canaries in a precision, up to the first that proves nothing."""
        results: list[CellResult] = []
        for model in canary_plans():
            results.append(self.run(self._canary_cell(model, dtype), model, canaries_failed=None))
            if results[-1].status in _PROVES_NOTHING:
                break
        return results

    def _check_reduced(self, *, ran_in: Dtype) -> None:
        """Run the wrong canary in each reduced precision of the cells: if it passes there, no cell in that precision can be trusted.

        The good one says nothing there: a kernel for rounded weights that is wrong on this processor is a finding about the target.
        """
        wrong = next(plan for plan in canary_plans() if plan.role is Role.CANARY_WRONG)
        for dtype in self._canary_dtypes():
            if dtype not in FLOATING and dtype is not ran_in:
                result = self.run(self._canary_cell(wrong, dtype), wrong, canaries_failed=None)
                if result.status is Status.PASS:
                    self._distrusted[dtype] = _unlike(result)

    def _check_generation(self) -> None:
        """Run the smallest cell that generates against wrong logits: if it passes, no cell that generates can be trusted."""
        found = [cell for cell in self._order.cells if cell.settings.new_tokens and cell.adaptation is None]
        made = [cell for cell in found if (entry := self._order.bundles.get(cell.model_key)) is not None and entry.key is not None]
        if made:
            cell = min(made, key=lambda each: each.limits.memory_mb)
            model = dataclasses.replace(self._order.plan.model_of(cell), role=Role.CANARY_WRONG)
            result = self.run(dataclasses.replace(cell, key=f"{WRONG}/{cell.key}"), model, canaries_failed=None)
            if result.status is Status.PASS:
                self._distrusted_generation = _unlike(result)

    def _distrust(self, settings: Settings) -> str | None:
        """Why no cell with these settings can be trusted; None if it can."""
        return self._distrusted.get(settings.dtype) or (self._distrusted_generation if settings.new_tokens else None)

    def _canary_cell(self, model: ModelPlan, dtype: Dtype) -> CellPlan:
        target = self._order.target.name
        settings = _canary_settings(model, dtype)
        key = f"{model.name}/{model.size.value}/{target}/{dtype.value}"
        return CellPlan(key=key, model=model.name, size=model.size, target=target, settings=settings, limits=_CANARY_LIMITS)

    def _may_be_lost(self) -> bool:
        """Whether cells compute on a device that can be gone while the machine goes on. A browser says so itself, and is started again."""
        descriptor = descriptor_of(self._order.target.backend)
        return not descriptor.in_browser and not descriptor.on_cpu(self._order.target.options)

    def _canary_dtypes(self) -> list[Dtype]:
        """The cells' precisions that the target supports, and its own first one: floating point first, each in their order.

        A target refuses every model, canaries too, in a precision that it lacks. That says nothing about its other verdicts. Nor does a
        kernel for rounded weights that is wrong on this processor: its cells say so themselves.
        """
        able = [dtype for dtype in descriptor_of(self._order.target.backend).precisions if dtype in self._order.plan.tolerances]
        wanted = [cell.settings.dtype for cell in self._order.cells]
        known = dict.fromkeys([*(dtype for dtype in wanted if dtype in able), *able[:1]])
        return sorted(known, key=lambda dtype: dtype not in FLOATING) or [Dtype.FLOAT32]

    def run_all(self, crew: Crew | None, *, canaries_failed: str | None) -> None:
        """Run all cells of the order: by the crew, or one after the other.

        A cell that fails beside others on a GPU, whose memory no limit divides, is run again alone.
        """
        models = [self._order.plan.model_of(cell) for cell in self._order.cells]
        pairs = list(zip(self._order.cells, models, strict=True))
        if crew is None:
            for cell, model in pairs:
                self.run(cell, model, canaries_failed=canaries_failed)
            return
        self._keeper.stop()  # workers have their own services
        early_results = {number: self._result_without_run(*pair, utc_now(), canaries_failed) for number, pair in enumerate(pairs)}
        begun: dict[int, str] = {}

        def started(number: int) -> None:
            cell, model = pairs[number]
            emit("cell_started", key=cell.key, role=_role(cell, model))
            begun[number] = utc_now()

        for number, result in early_results.items():
            if result is not None:
                started(number)
                self._keep(result, *pairs[number])
        on_device = descriptor_of(self._order.target.backend).memory is Memory.DEVICE
        crowded: list[int] = []
        for done in crew.do((number for number, result in early_results.items() if result is None), started):
            cell, model = pairs[done.number]
            result = self._worker_result(done, cell, model, begun[done.number])
            if on_device and result.status in _PERHAPS_THE_DEVICE:
                crowded.append(done.number)
            else:
                self._keep(self._checked(result, cell, model), cell, model)
        for number in crowded:
            self.run(*pairs[number], canaries_failed=None)

    def run(self, cell: CellPlan, model: ModelPlan, *, canaries_failed: str | None) -> CellResult:
        """Run one cell without the crew, store its result, and notify the host."""
        emit("cell_started", key=cell.key, role=_role(cell, model))
        started_at = utc_now()
        result = self._result_without_run(cell, model, started_at, canaries_failed) or self._execute(cell, model, started_at)
        self._keep(result, cell, model)
        return result

    def _keep(self, result: CellResult, cell: CellPlan, model: ModelPlan) -> None:
        plan = self._order.plan
        command = cell_command(model, cell, plan)
        self._shard.add_cell(result, command=command)
        emit(
            "cell",
            key=cell.key,
            role=result.role.value,
            status=result.status.value,
            stage=result.stage.value,
            wall_ms=result.wall_ms,
            p50_ms=_shown_ms(result),
            error=result.error.message if result.error else None,
        )

    def _result_without_run(self, cell: CellPlan, model: ModelPlan, started_at: str, canaries_failed: str | None) -> CellResult | None:
        """The result of a cell that cannot run, since its bundle is missing or the canaries failed; None if it can."""
        entry = self._order.bundles.get(model.key)
        log = entry.traceback if entry else None
        if entry is None or entry.key is None:
            status, stage = Status.FACTORY_ERROR, Stage.BUILD
            message = (entry.message if entry else None) or "no bundle was built for it"
            kind = (entry.error_type if entry else None) or "factory_failed"
        elif (failed := canaries_failed or self._distrust(cell.settings)) is not None and model.role is Role.MODEL:
            status, stage, kind = Status.INFRA_ERROR, Stage.LOAD, "canary_failed"
            message = f"not run, because the canaries failed and no verdict could be trusted: {failed}"
        elif self._lost is not None:
            status, stage, kind = Status.INFRA_ERROR, Stage.LOAD, "device_lost"
            message = f"not run, because the device is lost: {self._lost}"
        else:
            return None
        return self._not_executed(cell, model, started_at, status=status, stage=stage, kind=kind, message=message, traceback=log)

    def _execute(self, cell: CellPlan, model: ModelPlan, started_at: str) -> CellResult:
        try:
            address = self._keeper.address()
        except UnavailableError as failure:
            return self._not_available(cell, model, started_at, message=str(failure), kind=failure.error_type)
        end = _run(self._order, cell, model, service=address)
        result = result_of(end, cell=cell, model=model, target=self._order.target, started_at=started_at)
        return self._checked(result, cell, model) if model.role is Role.MODEL else result

    def _checked(self, result: CellResult, cell: CellPlan, model: ModelPlan) -> CellResult:
        """The result of a cell. If the cell failed, the known-good model runs again: a lost device is no verdict about a model."""
        if self._checks_with is None or result.status not in _PERHAPS_THE_DEVICE:
            return result
        good = next(plan for plan in canary_plans() if plan.role is Role.CANARY_GOOD)
        again = self._execute(self._canary_cell(good, self._checks_with), good, utc_now())
        if again.status is Status.PASS:
            return result
        self._lost = f"after {cell.key}, {_unlike(again)}"
        why = f": {result.error.message}" if result.error else ""
        message = f"the device was lost: {self._lost}; the cell itself ended as {result.status.value}{why}"
        log = result.error.traceback if result.error else None
        status, stage, kind = Status.INFRA_ERROR, Stage.LOAD, "device_lost"
        return self._not_executed(cell, model, result.started_at, status=status, stage=stage, kind=kind, message=message, traceback=log)

    def _worker_result(self, done: Done, cell: CellPlan, model: ModelPlan, started_at: str) -> CellResult:
        """The result of a cell that a worker ran. If the worker died, that is the harness's failure and not the model's."""
        if done.answer is not None and _UNAVAILABLE in done.answer:
            message, kind = done.answer[_UNAVAILABLE], done.answer["error_type"]
            return self._not_available(cell, model, started_at, message=message, kind=kind)
        problem = done.problem
        if done.answer is not None:
            try:
                end = _END.validate_python(done.answer)
                return result_of(end, cell=cell, model=model, target=self._order.target, started_at=started_at)
            except pydantic.ValidationError as error:
                problem = f"sent an invalid answer: {error.errors()[0]['msg']}"
        message = f"the worker that ran this cell {problem}"
        status, stage = Status.INFRA_ERROR, Stage.LOAD
        return self._not_executed(cell, model, started_at, status=status, stage=stage, kind="infrastructure", message=message)

    def _not_available(self, cell: CellPlan, model: ModelPlan, started_at: str, *, message: str, kind: str) -> CellResult:
        """The result of a cell whose service cannot be started."""
        status, stage = Status.UNAVAILABLE, Stage.LOAD
        return self._not_executed(cell, model, started_at, status=status, stage=stage, kind=kind, message=message)

    def _not_executed(
        self,
        cell: CellPlan,
        model: ModelPlan,
        started_at: str,
        *,
        status: Status,
        stage: Stage,
        kind: str,
        message: str,
        traceback: str | None = None,
    ) -> CellResult:
        target = self._order.target
        error = error_record(kind, message, hardware=target.backend, traceback=traceback)
        return not_executed(cell=cell, model=model, target=target, started_at=started_at, status=status, stage=stage, error=error)


def _unlike(canary: CellResult) -> str:
    """How a canary ended, and how it should have."""
    why = f": {canary.error.message}" if canary.error else ""
    return f"{canary.model} is {canary.status.value}, not {_CANARY_WANTED[canary.role].value}{why}"


def _role(cell: CellPlan, model: ModelPlan) -> str:
    return (model.role if cell.adaptation is None else Role.ADAPTED).value


def _shown_ms(result: CellResult) -> float | None:
    """The median for the live view. None for an emulator, whose times say nothing about the hardware's speed."""
    if not result.samples_wall_ns or result.execution is Execution.EMULATED:
        return None
    return median(sorted(result.samples_wall_ns)) / 1e6
