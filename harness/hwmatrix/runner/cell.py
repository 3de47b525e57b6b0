"""One cell in its forked child: load, prepare, run, verify placement, compare, measure; on a mismatch, find where it begins.

The child announces every stage to the parent before it begins, with all facts known so far: the parent then knows how far a crashed
cell got and what it had measured. The verdict is sent before the search for a mismatch's origin begins.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from hwmatrix.basics.garbage import without_collection
from hwmatrix.errors import FactoryError, TraceError, chain_of
from hwmatrix.faults.catalogue import classify, text_of
from hwmatrix.measure import divergence, memory, parity, verdict
from hwmatrix.models import bundle as bundles
from hwmatrix.models.learning import quality
from hwmatrix.records import Divergence, Origin, Placement, Role, Stage, Status
from hwmatrix.records.backends import descriptor_of
from hwmatrix.runner import generating
from hwmatrix.runner.job import (
    CellJob,
    Judged,
    Progress,
    judged_found,
    judged_in,
    measure,
    memory_found,
    quality_found,
    take_samples,
    timed,
    unless_it_fails,
)
from hwmatrix.targets.protocol import Target, target_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.records import Dtype
    from hwmatrix.runner.job import Send
    from hwmatrix.targets.protocol import Arrays, Compiling, Rounding

_WRONG_NUMBERS: Final = frozenset({"mismatch", "non_finite_output", "missing_output"})
"""Error types whose origin between the model's inputs and outputs can be traced."""


def execute(job: CellJob, send: Send) -> None:
    """Run the cell and send its outcome. Whatever a model raises is caught and sent."""
    progress = Progress(send)
    try:
        judged = generating.run(job, progress) if job.cell.settings.new_tokens else _run_stages(job, progress)
    except Exception as failure:  # noqa: BLE001 - a failing model is data, whatever it raises
        _free_frames(failure)
        # The reference image built and loaded this bundle: what fails as it is loaded here is the target's.
        cause = failure.__cause__ if isinstance(failure, FactoryError) else None
        status, error = failed(cause or failure, hardware=job.target.backend, stage=progress.stage)
        progress.end(status, error=error)
    else:
        progress.judged(judged.verdict)
        measure(job, judged, progress)
        traceable = judged.verdict.error_type in _WRONG_NUMBERS and not job.cell.settings.new_tokens
        if traceable and job.model.role is Role.MODEL:
            _locate(progress, judged)


def _locate(progress: Progress, judged: Judged) -> None:
    """Send where the difference begins, or why that is unknown."""
    try:
        trace = judged.target.trace(judged.bundle)
        if trace is not None:
            found = divergence.locate(trace, judged.bundle.expected_arrays(), judged.verdict.allowed, same_graph=judged.verdict.by_twin)
            progress.diverges(found)
    except Exception as failure:  # noqa: BLE001 - a failed search does not change the verdict
        reason = str(failure) if isinstance(failure, TraceError) else f"{type(failure).__name__}: {failure}"
        progress.diverges(Divergence(origin=Origin.UNKNOWN, detail=reason))


def _free_frames(failure: BaseException) -> None:
    """Free what a failure's frames hold: after a failed allocation there may be too little memory left to report it."""
    for each in chain_of(failure):
        traceback.clear_frames(each.__traceback__)


def failed(failure: BaseException, *, hardware: str, stage: Stage | None) -> tuple[Status, dict[str, Any]]:
    """The status of a cell that raises an exception, and the error as a message to the parent.

    The child classifies it, because the parent gets neither the full text nor the exception's base classes; the parent asks the catalogue
    only about a child that ended without a verdict.
    """
    found = classify(failure, hardware=hardware, stage=stage)
    needs = getattr(failure, "needs", ()) if found.status is Status.UNSUPPORTED else ()
    return found.status, {
        "type": found.type,
        "severity": found.severity,
        "message": text_of(failure),
        "traceback": "".join(traceback.format_exception(failure)),
        "needs": list(needs),
    }


def _run_stages(job: CellJob, progress: Progress) -> Judged:
    kind = target_class(job.target.backend)
    with without_collection():
        kind.preload(job.model_classes)  # a forked child inherits this from its parent; a spawned one does not
    meter = memory.Meter((job.service or {}).get("process"))
    progress.enter(Stage.LOAD)
    target = kind(settings=job.cell.settings, options=job.target.options, service=job.service)
    target.check()
    if job.rule is not None and _compiles(job):
        cast("Compiling", target).start_cold()
    bundle = bundles.verify(job.bundle)
    progress.found(bundle=bundle.digest, inputs=bundle.kinds, text_path=bundle.text_path)
    parameters, load_ms = timed(lambda: target.load(bundle))
    progress.found(parameters=parameters, load_ms=load_ms)

    inputs = bundle.input_arrays()
    progress.enter(Stage.PREPARE)
    prepared, prepare_ms = timed(lambda: target.prepare(inputs))
    reported = target.precision()
    progress.found(**dataclasses.asdict(prepared), prepare_ms=prepare_ms, precision=reported)
    _found_compiled(job, target, progress, again=False)
    dtype = judged_in(job, reported)
    meter.loaded()

    progress.enter(Stage.RUN)
    result, first_ms = timed(target.run)
    use = target.device_use()
    progress.found(first_ms=first_ms, **memory_found(meter.ran(), use))  # before our own processing of the outputs
    outputs = target.outputs(result)
    placement = target.placement()
    progress.found(on_target=placement.on_target, placement_detail=placement.detail)

    progress.enter(Stage.COMPARE)
    allowance = verdict.Allowance(dtype=dtype, tolerance=job.tolerances[dtype], floor=bundle.floor(dtype))
    judged = _judged(job, target, bundle, outputs, placement, allowance, progress)
    rule = job.rule if judged.computes_right else None

    def call() -> int | None:
        target.run()
        return target.elapsed_ns()

    def measure_rest(deadline: float) -> None:
        if rule is not None:
            progress.enter(Stage.MEASURE)
            take_samples(call, rule, progress, deadline=deadline, took_s=first_ms / 1000)
        _found_compiled(job, target, progress, again=rule is not None)

    return Judged(verdict=judged, target=target, bundle=bundle, measure=measure_rest)


def _judged(  # noqa: PLR0917 - what a cell has at this point
    job: CellJob,
    target: Target,
    bundle: bundles.Bundle,
    outputs: dict[str, Any],
    placement: Placement,
    allowance: verdict.Allowance,
    progress: Progress,
) -> verdict.Judgement:
    """Compare the outputs with the reference's, run the task, and judge."""
    comparison = parity.compare(outputs, bundle.expected_arrays())
    progress.found(outputs=tuple(comparison.outputs), **(dataclasses.asdict(comparison.worst) if comparison.worst else {}))
    task = held_out = answers = None
    most = math.ceil(descriptor_of(job.target.backend).held_out / job.model.batch)
    if verdict.incomparable(comparison) is None and bundle.task_detail is not None:
        answers = _answers(lambda given: _fed(target, given), bundle, most)
        task, held_out = _quality(answers, bundle, most)
        progress.found(**_task_findings(task, held_out, bundle.task_detail))
        target.feed(bundle.input_arrays())
    judged = verdict.judge(comparison, placement, allowance, task, held_out)
    if verdict.incomparable(comparison) is None and allowance.dtype in descriptor_of(job.target.backend).rounds:
        rounding = cast("Rounding", target)
        found = unless_it_fails(lambda: _twins(rounding, bundle, outputs, answers, most, allowance.dtype), judged, progress)
        if found is not None:
            judged = verdict.judge(comparison, placement, allowance, task, held_out, twin=found[0], held_out_twin=found[1])
    if judged.status is Status.PASS and job.model.role is Role.CANARY_GOOD:
        reason = verdict.misjudged(bundle.expected_arrays(), placement, allowance)
        if reason is not None:
            judged = verdict.Judgement(status=Status.MISMATCH, error_type="verdict_unreliable", allowed=judged.allowed, message=reason)
    progress.found(**judged_found(judged))
    return judged


def _found_compiled(job: CellJob, target: Target, progress: Progress, *, again: bool) -> None:
    """Send how a model was compiled, of a target that compiles."""
    if _compiles(job):
        found = cast("Compiling", target).compilation(again=again)
        progress.found(**dataclasses.asdict(found if job.rule is not None else dataclasses.replace(found, compile_ms=None)))


def _compiles(job: CellJob) -> bool:
    return descriptor_of(job.target.backend).compiling(job.target.options)


def _fed(target: Target, inputs: Arrays) -> dict[str, Any]:
    """The target's outputs for other inputs."""
    target.feed(inputs)
    return target.outputs(target.run())


def _answers(outputs_of: Callable[[Arrays], dict[str, Any]], bundle: bundles.Bundle, most: int) -> dict[str, Any] | None:
    """The outputs that hold the answers to at most ``most`` batches of held-out examples, as one array each; None without a task."""
    held_out = bundle.held_out()
    if held_out is None:
        return None
    answers: dict[str, list[Any]] = {name: [] for name in held_out.answers.outputs}
    for number in range(min(most, len(held_out.labels))):
        outputs = outputs_of({name: array[number] for name, array in held_out.inputs.items()})
        for name, kept in answers.items():
            kept.append(outputs[name])
    return {name: np.concatenate(kept) for name, kept in answers.items()}


def _twins(  # noqa: PLR0917 - what a cell has at this point
    target: Rounding, bundle: bundles.Bundle, outputs: dict[str, Any], answers: dict[str, Any] | None, most: int, dtype: Dtype
) -> tuple[verdict.Twin, verdict.Twin | None]:
    """The outputs, and the answers to held-out examples, compared with those of the rounded weights in float32.

    Raises:
        TwinError: these cannot run, or their outputs cannot be compared.
    """
    in_float, floor = target.in_float(), bundle.floor(dtype.kernels_in).outputs
    twin = verdict.twin(outputs, in_float.outputs(bundle.input_arrays()), bundle.expected_arrays(), floor)
    there = None if answers is None else _answers(in_float.outputs, bundle, most)
    return twin, None if answers is None or there is None else verdict.twin(answers, there, _expected_answers(bundle, most), floor)


def _expected_answers(bundle: bundles.Bundle, most: int) -> dict[str, Any]:
    """The reference's outputs on at most ``most`` batches of held-out examples."""
    held_out = bundle.held_out()
    return {} if held_out is None else {name: np.concatenate(array[:most]) for name, array in held_out.expected.items()}


def _quality(actual: dict[str, Any] | None, bundle: bundles.Bundle, most: int) -> tuple[quality.Quality | None, parity.Comparison | None]:
    """The task's metric on held-out examples, in at most ``most`` batches, and their outputs compared with the reference's.

    Without a task, both are None; without outputs that can be compared, there is no metric.
    """
    held_out = bundle.held_out()
    if held_out is None or actual is None:
        return None, None
    count = min(most, len(held_out.labels))
    expected = _expected_answers(bundle, most)
    compared = parity.compare(actual, expected)
    if verdict.incomparable(compared) is not None:
        return None, compared
    weights = None if held_out.weights is None else np.concatenate(held_out.weights[:count])
    return quality.quality(held_out.answers, actual, expected, np.concatenate(held_out.labels[:count]), weights), compared


def _task_findings(found: quality.Quality | None, compared: parity.Comparison | None, detail: str) -> dict[str, Any]:
    """The quality on the task, by the fields of ``Measured``; or why there is none."""
    if found is None:
        return {"quality_detail": "its outputs on held-out inputs cannot be compared" if compared else detail}
    worst = compared.worst if compared else None
    return quality_found(found, detail) | {"quality_error": worst.relative_error if worst else None}
