"""The warm parent: imports the frameworks once, forks a child a cell, writes each result before the next cell begins."""

from __future__ import annotations

import dataclasses
import importlib
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.advice.catalogue import catalogue
from hwmatrix.hardware.detector import detect_all
from hwmatrix.models.canary import canary_plans
from hwmatrix.records import (
    Backend,
    CellPlan,
    CellResult,
    Detection,
    Dtype,
    Limits,
    MeasureRule,
    ModelPlan,
    Plan,
    Role,
    Settings,
    Size,
    Stage,
    Status,
    TargetPlan,
    Tolerance,
    cell_command,
)
from hwmatrix.runner.bundles import BundleEntry
from hwmatrix.runner.cell import CellJob, execute
from hwmatrix.runner.events import emit
from hwmatrix.runner.forked import run_forked
from hwmatrix.runner.identity import interpreter, packages
from hwmatrix.runner.results import error_record, not_executed, result_of
from hwmatrix.store.shard import ShardIdentity, ShardWriter, utc_now
from hwmatrix.targets.table import target_class

if TYPE_CHECKING:
    from collections.abc import Callable


_CANARY_LIMITS: Final = Limits(timeout_s=120.0, memory_mb=4096)
_CANARY_RULE: Final = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.0, min_samples=3, max_s=0.5)
"""A canary is there for its verdict: timing it would only take time."""
_CANARY_WANTED: Final = {Role.CANARY_GOOD: Status.PASS, Role.CANARY_WRONG: Status.MISMATCH}
_DETECT_LIMITS: Final = Limits(timeout_s=60.0, memory_mb=8192)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardOrder:
    """What one run of the parent is to do, and what the host knows about the place it runs in."""

    plan: Plan
    target: TargetPlan
    cells: tuple[CellPlan, ...]
    bundles: dict[tuple[str, Size], BundleEntry]
    cache: Path
    out: Path
    host: str
    image: str | None
    image_digest: str | None


def run_shard(order: ShardOrder) -> Path:
    """Run every cell of the order; give the sealed shard.

    Raises:
        StoreError: the shard cannot be written. Cells that were finished are kept in the partial file.
    """
    begin = time.perf_counter()
    preload(order.target.backend, [order.plan.model(cell.model, cell.size) for cell in order.cells])
    warm_up_ms = (time.perf_counter() - begin) * 1000
    installed = packages()
    needed = ("hwmatrix", *target_class(order.target.backend).packages)
    identity = ShardIdentity(
        shard_id=uuid.uuid4().hex[:12],
        target=order.target.name,
        image=order.image,
        image_digest=order.image_digest,
        host=order.host,
        interpreter=interpreter(),
        versions={name: installed[name] for name in needed if name in installed},
        packages=installed,
        warm_up_ms=warm_up_ms,
    )
    with ShardWriter(order.out, order.plan, identity) as shard:
        emit("shard", target=order.target.name, cells=len(order.cells), warm_up_ms=warm_up_ms)
        shard.add_detections(detections())
        canary_ok, canary_detail = _run_canaries(order, shard)
        shard.set_canaries(ok=canary_ok, detail=canary_detail)
        for cell in order.cells:
            failed = canary_detail if canary_ok is False else None
            _run_and_keep(order, shard, cell, order.plan.model(cell.model, cell.size), canaries_failed=failed)
        path = shard.seal()
    emit("sealed", shard=path.name)
    return path


def preload(backend: Backend, models: list[ModelPlan]) -> None:
    """Import all that the cells need, once. Torch stays at one thread here and computes nothing: see ``forked``."""
    import torch  # noqa: PLC0415 - not in every image
    import transformers  # noqa: PLC0415

    from hwmatrix.models import bundle, inputs  # noqa: F401, PLC0415

    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    target_class(backend).preload()
    catalogue()
    for model_class in sorted({model.model_class for model in (*models, *canary_plans())}):
        _import_class(model_class)


def detections() -> list[Detection]:
    """What the machine has, asked in a child, since asking starts runtimes."""
    found: list[Detection] = []

    def work(send: Callable[[dict[str, Any]], None]) -> None:
        for detection in detect_all():
            send(dataclasses.asdict(detection))

    end = run_forked(work, limits=_DETECT_LIMITS)
    found = [Detection(**message) for message in end.messages]
    asked = {detection.hardware_type for detection in found}
    how = "took too long" if end.timed_out else f"ended the process (signal {end.signal}, exit code {end.exit_code})"
    for kind in Backend:
        if kind.value not in asked:
            reason = f"asking for it {how}"
            found.append(Detection(hardware_type=kind.value, available=False, name=None, features={}, reason=reason, detected_at=utc_now()))
    return found


def _import_class(name: str) -> None:
    """Transformers imports a model's module when the class is first asked for: in the parent, that is paid once."""
    transformers = importlib.import_module("transformers")
    try:
        getattr(transformers, name)
    except (AttributeError, ImportError, RuntimeError):
        return  # the cell itself meets the same error, and there it is data


def _run_canaries(order: ShardOrder, shard: ShardWriter) -> tuple[bool | None, str | None]:
    """The known-good model must pass and the wrong one must be found out. None where the target is not here at all."""
    dtype = next((cell.settings.dtype for cell in order.cells), Dtype.FLOAT32)
    problems: list[str] = []
    for model in canary_plans():
        settings = Settings(dtype=dtype, batch=model.batch, sequence_length=model.sequence_length, threads=1)
        key = f"{model.name}/{model.size.value}/{order.target.name}/{dtype.value}"
        cell = CellPlan(key=key, model=model.name, size=model.size, target=order.target.name, settings=settings, limits=_CANARY_LIMITS)
        result = _run_and_keep(order, shard, cell, model, canaries_failed=None)
        wanted = _CANARY_WANTED[model.role]
        if result.status is Status.UNAVAILABLE:
            return None, result.error.message if result.error else None
        if result.status is not wanted:
            why = f": {result.error.message}" if result.error else ""
            problems.append(f"{model.name} is {result.status.value} and must be {wanted.value}{why}")
    return not problems, "; ".join(problems) or None


def _run_and_keep(order: ShardOrder, shard: ShardWriter, cell: CellPlan, model: ModelPlan, *, canaries_failed: str | None) -> CellResult:
    emit("cell_started", key=cell.key, role=model.role.value)
    result = _run_cell(order, cell, model, canaries_failed=canaries_failed)
    shard.add_cell(result, command=cell_command(model, cell, order.plan.isolation))
    p50 = sorted(result.samples_wall_ns)[len(result.samples_wall_ns) // 2] / 1e6 if result.samples_wall_ns else None
    emit(
        "cell",
        key=cell.key,
        role=model.role.value,
        status=result.status.value,
        stage=result.stage.value,
        wall_ms=result.wall_ms,
        p50_ms=p50,
        error=result.error.message if result.error else None,
    )
    return result


def _run_cell(order: ShardOrder, cell: CellPlan, model: ModelPlan, *, canaries_failed: str | None) -> CellResult:
    started_at = utc_now()
    common: dict[str, Any] = {"cell": cell, "model": model, "target": order.target, "started_at": started_at}
    hardware = order.target.backend.value
    entry = order.bundles.get((model.name, model.size))
    if entry is None or entry.key is None:
        message = (entry.message if entry else None) or "no bundle was built for it"
        status, kind = Status.FACTORY_ERROR, entry.error_type if entry else "factory_failed"
        error = error_record(
            message, hardware=hardware, status=status, stage=Stage.BUILD, error_type=kind, traceback=entry.traceback if entry else None
        )
        return not_executed(**common, status=status, stage=Stage.BUILD, error=error)
    if canaries_failed is not None:
        message = f"not tried, since no verdict could be believed: {canaries_failed}"
        error = error_record(message, hardware=hardware, status=Status.INFRA_ERROR, stage=Stage.LOAD, error_type="canary_failed")
        return not_executed(**common, status=Status.INFRA_ERROR, stage=Stage.LOAD, error=error)
    is_model = model.role is Role.MODEL
    job = CellJob(
        cell=cell,
        model=model,
        target=order.target,
        bundle=order.cache / entry.key,
        rule=order.plan.measure if is_model else _CANARY_RULE,
        tolerance=order.plan.tolerances.get(cell.settings.dtype) or Tolerance(relative_error=1e-3, reason="canary"),
    )
    end = run_forked(lambda send: execute(job, send), limits=cell.limits)
    return result_of(end, **common)
