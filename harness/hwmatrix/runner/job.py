"""What every cell's child has: its job, its progress, which the parent follows, and what it hands on at its end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hwmatrix.errors import TwinError, UnsupportedError
from hwmatrix.measure import cores, latency, yardstick
from hwmatrix.measure.verdict import Judgement
from hwmatrix.models.bundle import Bundle
from hwmatrix.models.onnx_export import is_kept
from hwmatrix.records import (
    CellPlan,
    Divergence,
    Dtype,
    Findings,
    MeasureRule,
    ModelPlan,
    Stage,
    Status,
    TargetPlan,
    Tolerance,
)
from hwmatrix.targets.protocol import Target

if TYPE_CHECKING:
    from hwmatrix.measure import memory
    from hwmatrix.models.learning.quality import Quality
    from hwmatrix.records import Settings
    from hwmatrix.targets.protocol import DeviceUse

    Send = Callable[[dict[str, Any]], None]


_Compared = TypeVar("_Compared")
_MEASURED_WITHIN: Final = 0.9
"""The share of a cell's time limit in which it measures."""


def reads_graph(target: TargetPlan, settings: Settings, bundle: Path) -> bool:
    """Whether a cell reads a graph that was made with its bundle, so that it needs no model of PyTorch. ``bundle`` is its folder."""
    if settings.new_tokens:
        return target.generation_export is not None
    return target.forward_export is not None and is_kept(bundle.name, bundle.parent, target.forward_export, graph=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellJob:
    """Everything a cell's child needs. Without a ``rule`` nothing is timed, and the cell ends after the comparison.

    ``tolerances`` are those of all precisions: which one applies may be known only once the runtime has chosen.
    """

    cell: CellPlan
    model: ModelPlan
    target: TargetPlan
    bundle: Path
    rule: MeasureRule | None
    tolerances: dict[Dtype, Tolerance]
    service: dict[str, Any] | None = None

    @property
    def model_classes(self) -> tuple[str, ...]:
        """The classes of models that the cell loads: none if it reads a graph."""
        return () if reads_graph(self.target, self.cell.settings, self.bundle) else (self.model.model_class,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """A cell whose verdict is known, and what is left to do: tracing a mismatch, or measuring.

    ``measure`` measures what is left, until a time of ``time.perf_counter``.
    """

    verdict: Judgement
    target: Target
    bundle: Bundle
    measure: Callable[[float], None]


class Progress:
    """The stage of a cell and its findings so far. Each stage's message and the verdict send all of them to the parent.

    ``begun`` is when the cell began, in seconds of ``time.perf_counter``.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = self._entered = time.perf_counter()
        self.stage: Stage | None = None
        self._stages: dict[Stage, float] = {}
        self._found = Findings()

    def found(self, **values: Any) -> None:
        """Keep findings, named by the fields of ``Findings``."""
        self._found = dataclasses.replace(self._found, **values)

    def enter(self, stage: Stage) -> None:
        """Begin a stage, which ends the previous one."""
        self._end_stage()
        self.stage = stage
        self._send({"stage": stage, "facts": self._facts()})

    def end(self, status: Status, *, error: dict[str, Any] | None = None, final: bool = True) -> None:
        """Send the verdict. If it is not final, another one replaces it, unless the process ends before."""
        self._end_stage()
        self._send({"verdict": status, "facts": self._facts(), "error": error, "final": final})

    def judged(self, verdict: Judgement, *, final: bool = True) -> None:
        """Send the verdict of a comparison, as :meth:`end` does."""
        problem = None
        if verdict.error_type is not None:
            problem = {"type": verdict.error_type, "message": verdict.message or "", "traceback": None}
        self.end(verdict.status, error=problem, final=final)

    def report(self) -> None:
        """Send what was measured after the verdict."""
        self._end_stage()
        self._send({"stage": self.stage, "facts": self._facts()})

    def diverges(self, where: Divergence) -> None:
        """Send where the difference begins, after the verdict."""
        self._send({"divergence": dataclasses.asdict(where)})

    def _facts(self) -> dict[str, Any]:
        found = dataclasses.asdict(self._found) | {"stages": dict(self._stages)}
        return {name: value for name, value in found.items() if value is not None}

    def _end_stage(self) -> None:
        now = time.perf_counter()
        if self.stage is not None:
            self._stages[self.stage] = self._stages.get(self.stage, 0.0) + (now - self._entered) * 1000
        self._entered = now


def measure(job: CellJob, judged: Judged, progress: Progress) -> None:
    """Measure a cell that has its verdict, as far as its time limit allows, and send the result. Nothing here changes the verdict."""
    try:
        judged.measure(progress.begun + _MEASURED_WITHIN * job.cell.limits.timeout_s)
        last = judged.target.device_use()
        progress.found(device_processes=last.other_processes if last else None)
    except Exception as failure:  # noqa: BLE001 - whatever a runtime raises
        progress.found(timing_detail=f"{type(failure).__name__}: {failure}")
    progress.report()


def take_samples(
    call: Callable[[], int | None], rule: MeasureRule, progress: Progress, *, deadline: float, took_s: float
) -> latency.Timing | None:
    """Time a call until the rule is met, and the CPU between its samples. CPU speed is not recorded for a device with its own clock.

    ``took_s`` is how long a call has taken before. None: it does not fit into the time that is left.
    """
    machine = yardstick.Yardstick()
    timing = latency.measure(call, rule, deadline=deadline, took_s=took_s, between=machine.read)
    if timing is None:
        progress.found(timing_detail=f"no time was left: one run takes {took_s:.3g} s")
        return None
    if timing.cpu_ns:
        progress.found(yardstick=yardstick.NAME, yardstick_ms=machine.ms)
    progress.found(
        cores=cores.described(),
        samples_wall_ns=tuple(timing.wall_ns),
        samples_cpu_ns=tuple(timing.cpu_ns),
        warmup_samples=timing.warmup_samples,
        converged=timing.converged,
    )
    return timing


def unless_it_fails(compare: Callable[[], _Compared], judged: Judgement, progress: Progress) -> _Compared | None:
    """Compare a target with its own rounded weights in float32; None if that fails: the row says why, even if it ends the process.

    This comparison is ours: whatever it raises is not the target's failure. Before it begins, the verdict without it is sent.
    """
    progress.found(kernel_detail="the same weights in float32 ended the process", **judged_found(judged))
    progress.judged(judged, final=False)
    try:
        compared = compare()
    except Exception as failure:  # noqa: BLE001 - whatever it raises is recorded
        reason = str(failure) if isinstance(failure, TwinError) else f"{type(failure).__name__}: {failure}"
        progress.found(kernel_detail=reason)
        return None
    progress.found(kernel_detail=None)
    return compared


def judged_found(judged: Judgement) -> dict[str, Any]:
    """What a verdict was made from, by the fields of ``Measured``."""
    return {
        "loss": judged.loss,
        "excess": judged.excess,
        "approximate": judged.approximate,
        "allowed_error": judged.allowed,
        "kernel_error": judged.kernel_error,
        "quality_kernel_error": judged.quality_kernel_error,
    }


def judged_in(job: CellJob, reported: Dtype | None) -> Dtype:
    """The precision by which a cell is judged: the one that its runtime reports, else the requested one.

    Raises:
        UnsupportedError: it is not the requested one, it is not reported, or matrix.yaml has no tolerance for it.
    """
    requested = job.cell.settings.dtype
    if requested is Dtype.DEFAULT and reported is None:
        why = "the runtime does not report the precision that it chooses by default"
    elif requested not in {Dtype.DEFAULT, reported or requested}:
        why = f"{requested.value} was requested, but the runtime computes in {reported} on this machine"
    elif (reported or requested) not in job.tolerances:
        why = f"the runtime computes in {reported or requested}, for which matrix.yaml has no tolerance"
    else:
        return reported or requested
    raise UnsupportedError(why, needs=(requested.value,), error_type="unsupported_dtype")


def memory_found(host: memory.HostUse, use: DeviceUse | None) -> dict[str, Any]:
    """The cell's host and device memory, as far as each is known, by the fields of ``Measured``."""
    return {
        "baseline_mb": host.baseline_mb,
        "load_peak_mb": host.load_peak_mb,
        "run_peak_mb": host.run_peak_mb,
        "peak_mb": host.peak_mb,
        "delta_mb": host.delta_mb,
        "uss_mb": host.uss_mb,
        "memory_detail": host.detail,
        "device_peak_mb": use.peak_mb if use else None,
        "device_reserved_mb": use.reserved_mb if use else None,
    }


def quality_found(found: Quality, detail: str) -> dict[str, Any]:
    """The quality on a task, by the fields of ``Measured``. ``detail`` says what was asked."""
    return {
        "quality_metric": found.metric,
        "quality": found.value,
        "quality_reference": found.reference,
        "quality_low": found.low,
        "quality_high": found.high,
        "quality_agreement": found.agreement,
        "quality_kl": found.kl,
        "quality_cosine": found.cosine,
        "quality_inputs": found.inputs,
        "quality_lost": found.lost,
        "quality_gained": found.gained,
        "quality_detail": detail,
    }


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and its milliseconds."""
    start = time.perf_counter()
    result = call()
    return result, (time.perf_counter() - start) * 1000
