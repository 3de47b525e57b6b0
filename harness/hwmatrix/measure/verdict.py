"""The verdict on a target's outputs, from three numbers: the precision's error, the target's error, and the result on the model's task.

- ``loss`` is the noise floor of the precision: the error that rounding alone causes in this model, simulated on the CPU.
- ``excess`` is the target's error as a multiple of that floor. A wrong kernel or export has a large excess, a correct target about 1.
- The task's metric on held-out inputs, for models that were trained on a task.

Excess up to ``Tolerance.excess`` passes, unless the target does the task worse than the reference: then the precision costs too much
(``precision_loss``). Excess up to ``Tolerance.bound`` passes as approximate if the target does the task as well as the reference, with the
same answers. Higher excess is a mismatch, whatever the task says: a coarse metric must not hide a wrong kernel. That also holds for the
outputs on the held-out inputs together: one input does not show a mask that is ignored. If the floor is not known, only the largest error
of matrix.yaml decides; it also limits the error of a model without a task.

A target that rounds weights itself also runs the same graph with its rounded weights as float32 numbers (``Rounded``). Loss is then the
error of that graph, and excess the target's distance from it: the kernels' own error, as a multiple of the floor of float32
(``Tolerance.kernel_excess`` is allowed). Where that graph rounds the inputs of products as it runs, more is explained: up to ``TIPPED``
times what weights that differ by a few roundings change. If the loss is too large, the graph also runs as it was before its weights were
rounded: if that is wrong, the precision is not to blame (:func:`judge_before_rounding`). Nor is it if a weight is farther from the one that
it was made from than rounding explains (:func:`judge_rounding`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from hwmatrix.measure.parity import Comparison, compare
from hwmatrix.records import Dtype, NoiseFloor, OutputRecord, Placement, Status, Tolerance

if TYPE_CHECKING:
    from hwmatrix.measure.parity import Array

SAME_ANSWERS: Final = 0.99
"""The share of answers that must equal the reference's for an approximate pass."""
TIPPED: Final = 2
"""By how many times what nudged weights change a target may differ: which inputs become another step is chance."""
DRAWS: Final = 4
"""How often weights are nudged, each time by other numbers, until that explains a difference: what one draw changes is chance, too."""
A_STEP: Final = 1 + 255 * 2.0**-11
"""The most steps that rounding takes, where a number is clipped: one, and what 255 steps differ by if their size is rounded to float16."""
LEAST_FLOOR: Final[Mapping[Dtype, float]] = {
    Dtype.FLOAT32: 2.0**-24,
    Dtype.FLOAT16: 2.0**-11,
    Dtype.BFLOAT16: 2.0**-8,
    Dtype.A16W8: 2.0**-9,
    Dtype.A8W8: 2.0**-9,
    Dtype.INT8_DYNAMIC: 2.0**-24,
    Dtype.INT8: 2.0**-24,
    Dtype.INT4: 2.0**-24,
    Dtype.INT4_FLOAT16: 2.0**-11,
}
"""The least noise floor: half a unit in the last place, the relative error of one rounding. A simulated error may be smaller by chance."""


class Task(Protocol):
    """A target's result on a task (:class:`hwmatrix.models.learning.quality.Quality`), as shares of examples or answers."""

    @property
    def metric(self) -> str:
        """The name of the metric."""

    @property
    def value(self) -> float:
        """The share that the target gets right."""

    @property
    def reference(self) -> float | None:
        """The share that the reference gets right; None where its own answers count as right."""

    @property
    def high(self) -> float:
        """The upper end of the 95 % interval of ``value``."""

    @property
    def agreement(self) -> float:
        """The share with the same answer as the reference."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict. ``error_type`` and ``message`` say why it is not a pass; ``loss`` and ``excess`` are None if the floor is not known.

    ``allowed`` is the relative L2 error that was allowed between the target and its own rounded weights in float32, of a mismatch there.
    """

    status: Status
    error_type: str | None = None
    message: str | None = None
    loss: float | None = None
    excess: float | None = None
    approximate: bool | None = None
    allowed: float | None = None

    @property
    def computes_right(self) -> bool:
        """Whether the target is right, even if its precision costs the model too much. Only then does its time say anything."""
        return self.status in {Status.PASS, Status.FALLBACK} or self.error_type == "precision_loss"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Allowance:
    """How much outputs may differ: the target's precision, the tolerance of matrix.yaml for it, and the model's noise floor.

    ``floor`` is None if the bundle has none.
    """

    dtype: Dtype
    tolerance: Tolerance
    floor: NoiseFloor | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounded:
    """A target's outputs compared with those of the same graph with its rounded weights as float32 numbers.

    ``loss`` compares the outputs of that graph with the reference's. ``floor`` are the floors of ``Dtype.kernels_in``, by output.
    ``tipped`` and ``tipped_held_out`` are by how much, on the same inputs and at most on one batch of held-out inputs, nudged weights
    change each output (:class:`hwmatrix.targets.protocol.InFloat`): empty if the graph rounds nothing as it runs, or if nothing is left
    to explain.
    """

    kernel: Comparison
    loss: Comparison
    floor: Mapping[str, float]
    held_out: Comparison | None = None
    tipped: Mapping[str, float] = dataclasses.field(default_factory=dict)
    tipped_held_out: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernels:
    """How far a target is from its own rounded weights in float32, as relative L2 errors, and how much of it nudged weights explain.

    ``kernel_error`` is that of the output whose excess is given, ``nudged_error`` the most that nudged weights move this output by; None if
    none ran. The other two are the same for the held-out inputs of a task, and for the output with the largest excess there.
    """

    kernel_error: float | None = None
    nudged_error: float | None = None
    quality_kernel_error: float | None = None
    quality_nudged_error: float | None = None


def kernels(rounded: Rounded, allowance: Allowance) -> Kernels:
    """The distances that decide, and what explains them, of outputs that were compared with those of the rounded weights in float32."""
    here = _Noise.of(rounded.kernel, rounded.floor, allowance.dtype.kernels_in).output
    found = Kernels(kernel_error=_error(here), nudged_error=rounded.tipped.get(here.name))
    if rounded.held_out is None:
        return found
    there = _Noise.of(rounded.held_out, rounded.floor, allowance.dtype.kernels_in).output
    return dataclasses.replace(found, quality_kernel_error=_error(there), quality_nudged_error=rounded.tipped_held_out.get(there.name))


def judge(
    comparison: Comparison,
    placement: Placement,
    allowance: Allowance,
    task: Task | None = None,
    held_out: Comparison | None = None,
    *,
    rounded: Rounded | None = None,
) -> Judgement:
    """Judge outputs that were compared with the reference.

    Placement is checked first: a model that ran elsewhere proves nothing about this target.

    Args:
        comparison: the outputs, from :func:`hwmatrix.measure.parity.compare`.
        placement: where the model ran.
        allowance: how much the outputs may differ.
        task: the target's result on the model's task; None for a model without one.
        held_out: the outputs on the task's held-out inputs, all examples as one array.
        rounded: the outputs compared with those of the rounded weights in float32; None: the target does not run these.
    """
    if placement.on_target <= 0:
        return Judgement(status=Status.FALLBACK, error_type="fallback", message=f"nothing ran on the target: {placement.detail}")
    problem = _unusable_outputs(comparison, allowance) or (
        _unusable_outputs(held_out, allowance, " on held-out inputs") if held_out else None
    )
    if problem is not None:
        return problem
    floor, tolerance = allowance.floor, allowance.tolerance
    worst = _worst_output(comparison)
    if tolerance.excess is not None and rounded is not None:
        return _by_rounded(rounded, worst, allowance, task)
    if tolerance.excess is not None and floor is not None and floor.outputs:
        noise = _Noise.of(comparison, floor.outputs, allowance.dtype)
        judged = _by_floor(noise, worst, tolerance, task)
        beyond = _beyond_bound(held_out, floor.outputs, allowance) if held_out and judged.error_type != "mismatch" else None
        return _mismatch("mismatch", beyond, noise) if beyond else judged
    for compared, where in ((comparison, ""), (held_out, " on held-out inputs")):
        if compared is not None and _error(_worst_output(compared)) > tolerance.relative_error:
            return _mismatch("mismatch", _difference(_worst_output(compared), f"exceeds {tolerance.relative_error:.3g}{where}"))
    return Judgement(status=Status.PASS)


def _by_rounded(rounded: Rounded, worst: OutputRecord, allowance: Allowance, task: Task | None) -> Judgement:
    noise, allowed = _Noise.of_rounded(rounded, allowance.dtype), allowance.tolerance.of_kernels
    nudged = rounded.tipped.get(noise.output.name)
    judged = _by_floor(noise, worst, allowed, task, tips=_tips(rounded.kernel, rounded.tipped), nudged=nudged)
    if judged.error_type == "mismatch":
        return dataclasses.replace(judged, allowed=max((allowed.excess or 0.0) * noise.floor, TIPPED * (nudged or 0.0)))
    tips = rounded.held_out is not None and _tips(rounded.held_out, rounded.tipped_held_out)
    apart = None if tips else rounded.held_out
    of_kernels = Allowance(dtype=allowance.dtype.kernels_in, tolerance=allowed)
    beyond = _beyond_bound(apart, rounded.floor, of_kernels, rounded.tipped_held_out) if apart else None
    return _mismatch("mismatch", beyond, noise) if beyond else judged


def explained(rounded: Rounded, allowance: Allowance) -> bool:
    """Whether :func:`judge` needs no more nudged weights: no output differs by more than the noise floor or these explain.

    Args:
        rounded: the outputs compared with those of the rounded weights in float32; each can be compared.
        allowance: how much the outputs may differ.
    """
    allowed = allowance.tolerance.of_kernels
    if allowance.tolerance.excess is None:  # the fixed limit decides
        return True
    if not _is_near(rounded.kernel, rounded, allowed.excess or 0.0, allowance) and not _tips(rounded.kernel, rounded.tipped):
        return False
    held_out = rounded.held_out
    return held_out is None or _is_near(held_out, rounded, allowed.hard_bound, allowance) or _tips(held_out, rounded.tipped_held_out)


def _is_near(apart: Comparison, rounded: Rounded, most: float, allowance: Allowance) -> bool:
    return _Noise.of(apart, rounded.floor, allowance.dtype.kernels_in).excess <= most


def judge_before_rounding(judged: Judgement, comparison: Comparison, allowance: Allowance) -> Judgement:
    """The verdict on a precision that costs too much (``judged``), once the same graph has run in float32 before it was rounded.

    If that is wrong already, no precision is to blame: a mismatch. The bound counts, as there is no task to tell more.

    Args:
        judged: a ``precision_loss``.
        comparison: the outputs of the graph before its weights were rounded, compared with the reference's.
        allowance: that of float32.
    """
    least = dataclasses.replace(allowance.tolerance, excess=None if allowance.tolerance.excess is None else allowance.tolerance.hard_bound)
    before = judge(comparison, Placement(on_target=1.0, detail=""), dataclasses.replace(allowance, tolerance=least))
    if before.status is Status.PASS or before.error_type == "precision_loss":
        return judged
    message = f"the graph is wrong before its weights are rounded: {before.message}"
    return dataclasses.replace(judged, error_type=before.error_type, message=message)


def judge_rounding(judged: Judgement, weight: str, steps: float) -> Judgement:
    """The verdict on a precision that costs too much (``judged``), once its weights were compared with those that they were made from.

    If one is more than a step away, it is the rounding that is wrong, and not the precision that costs too much: a mismatch.

    Args:
        judged: a ``precision_loss``.
        weight: the name of the weight that is farthest away.
        steps: how many of its own steps that is. Rounding takes at most half a step, and a whole one where a number is clipped.
    """
    if steps <= A_STEP:
        return judged
    message = f"a weight is rounded wrong: {weight} is {steps:.3g} of its steps away from the one that it was made from"
    return dataclasses.replace(judged, error_type="mismatch", message=message)


def misjudged(expected: Mapping[str, Array], placement: Placement, allowance: Allowance) -> str | None:
    """Why verdicts with this allowance cannot be trusted; None if they can.

    The expected outputs themselves are judged twice: shifted by a third of the allowed error, which must pass, and by three times as much,
    which must be a mismatch.
    """
    for factor, wanted in ((1 / 3, Status.PASS), (3.0, Status.MISMATCH)):
        shifted = {name: _shifted(array, factor * _allowed_error(name, allowance)) for name, array in expected.items()}
        found = judge(compare(shifted, expected), placement, allowance)
        if found.status is not wanted:
            return f"outputs with {factor:.2g} times the allowed error are judged {found.status.value}, not {wanted.value}"
    return None


def _shifted(array: Array, error: float) -> Array:
    """An array with this relative L2 error (absolute for an array of zeros): every second element up, the others down. Integers stay."""
    if not np.issubdtype(array.dtype, np.floating) or not array.size:
        return array
    wide = array.astype(np.float64)
    size = float(np.linalg.norm(wide)) or 1.0
    signs = np.where(np.arange(array.size) % 2, -1.0, 1.0).reshape(array.shape)
    return wide + signs * (error * size / math.sqrt(array.size))


def differs(output: OutputRecord, allowance: Allowance) -> bool:
    """Whether an output cannot be compared, or differs from the reference by more than is allowed without a look at the task."""
    return output.parity is None or output.parity.relative_error > _allowed_error(output.name, allowance)


def _allowed_error(name: str, allowance: Allowance) -> float:
    """The largest relative L2 error of an output that passes without a task."""
    tolerance, floor = allowance.tolerance, allowance.floor
    if tolerance.excess is None or floor is None or not floor.outputs:
        return tolerance.relative_error
    return min(tolerance.relative_error, tolerance.excess * max(floor.outputs.get(name, 0.0), LEAST_FLOOR[allowance.dtype]))


def _unusable_outputs(comparison: Comparison, allowance: Allowance, where: str = "") -> Judgement | None:
    """The verdict on outputs that cannot be compared; None if they can. ``where`` ends the message."""
    problem = incomparable(comparison)
    if problem is None:
        return None
    if problem.error_type == "non_finite_output" and allowance.floor is not None and allowance.floor.overflows:
        return _mismatch("precision_loss", f"{problem.message}{where}; the same happens in {allowance.dtype.value} on the CPU")
    return dataclasses.replace(problem, message=f"{problem.message}{where}")


def _beyond_bound(
    held_out: Comparison, floors: Mapping[str, float], allowance: Allowance, tipped: Mapping[str, float] | None = None
) -> str | None:
    """Why the outputs on held-out inputs are wrong although those that are judged first are not; None if they are not wrong."""
    noise, bound = _Noise.of(held_out, floors, allowance.dtype), allowance.tolerance.hard_bound
    if noise.excess <= bound:
        return None
    more = _or_nudged((tipped or {}).get(noise.output.name))
    return _difference(noise.output, f"on held-out inputs {_times(noise)}; at most {bound:g} times is allowed{more}")


def _or_nudged(error: float | None) -> str:
    """What else is allowed where nudged weights cause this error."""
    return "" if error is None else f", or {TIPPED} times the {error:.3g} by which nudged weights move the output"


def _tips(apart: Comparison, tipped: Mapping[str, float]) -> bool:
    """Whether no output differs by more than inputs of products that are rounded to the neighboring step explain."""
    return all(_error(output) <= TIPPED * tipped.get(output.name, 0.0) for output in apart.outputs)


def incomparable(comparison: Comparison) -> Judgement | None:
    """Why the outputs cannot be compared at all; None if they can."""
    if comparison.not_finite:
        return _mismatch("non_finite_output", f"NaN or infinity in {', '.join(comparison.not_finite)}")
    if comparison.missing:
        return _mismatch("missing_output", f"the target did not return {', '.join(comparison.missing)}")
    if comparison.reshaped:
        return _mismatch("missing_output", f"other shapes than the reference: {'; '.join(comparison.reshaped)}")
    if comparison.worst is None:
        return _mismatch("missing_output", "no output could be compared with the reference")
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Noise:
    """The output with the largest excess, its noise floor (``floor``, of ``unit``), and the largest floor of all outputs (``loss``).

    ``dtype`` is the precision under test, ``unit`` that of the floor.
    """

    dtype: Dtype
    unit: Dtype
    loss: float
    excess: float
    output: OutputRecord
    floor: float
    against: str = ""

    @classmethod
    def of(cls, comparison: Comparison, floors: Mapping[str, float], dtype: Dtype) -> _Noise:
        def floor(output: OutputRecord) -> float:
            return max(floors.get(output.name, 0.0), LEAST_FLOOR[dtype])

        compared = [output for output in comparison.outputs if output.parity is not None]
        worst = max(compared, key=lambda output: _error(output) / floor(output))
        loss = max(floors.values(), default=0.0)
        return cls(dtype=dtype, unit=dtype, loss=loss, excess=_error(worst) / floor(worst), output=worst, floor=floor(worst))

    @classmethod
    def of_rounded(cls, rounded: Rounded, dtype: Dtype) -> _Noise:
        noise = cls.of(rounded.kernel, rounded.floor, dtype.kernels_in)
        loss = _error(_worst_output(rounded.loss))
        return dataclasses.replace(noise, dtype=dtype, loss=loss, against="from its own rounded weights in float32 ")


def _by_floor(
    noise: _Noise, worst: OutputRecord, tolerance: Tolerance, task: Task | None, *, tips: bool = False, nudged: float | None = None
) -> Judgement:
    """``tips``: the neighboring step explains the excess. ``nudged``: the error that it explains in the output with the largest excess."""
    allowed = tolerance.excess or 0.0
    if noise.excess <= allowed or tips:
        reason = _unusable_precision(noise, worst, tolerance, task)
        if reason is not None:
            return _mismatch("precision_loss", reason, noise)
        return Judgement(status=Status.PASS, loss=noise.loss, excess=noise.excess, approximate=False)
    if noise.excess <= tolerance.hard_bound and task is not None and _done_as_well(task) and task.agreement >= SAME_ANSWERS:
        return Judgement(status=Status.PASS, loss=noise.loss, excess=noise.excess, approximate=True)
    how = f"{_times(noise)}; {allowed:g} times is allowed{_or_nudged(nudged)}"
    return _mismatch("mismatch", _difference(noise.output, how), noise)


def _times(noise: _Noise) -> str:
    return f"{noise.against}is {noise.excess:.3g} times the noise floor of {noise.unit.value} ({noise.floor:.2g})"


def _unusable_precision(noise: _Noise, worst: OutputRecord, tolerance: Tolerance, task: Task | None) -> str | None:
    """Why the precision is too low for this model although the target computes correctly; None if it is not too low."""
    same = f"the error is normal for {noise.dtype.value} ({noise.excess:.2g} times its noise floor on the CPU), so the target is not wrong"
    if noise.against:
        same = f"the rounded graph has an error of {noise.loss:.2g} in float32, too, so the kernels are not wrong"
    if task is None:
        over = _error(worst) > tolerance.relative_error
        return f"{_difference(worst, f'exceeds {tolerance.relative_error:.3g}')}; {same}" if over else None
    if _done_as_well(task):
        return None
    beside = f"the reference's is {task.reference:.3g}" if task.reference is not None else f"at least {SAME_ANSWERS:g} is required"
    return f"{task.metric.replace('_', ' ')} is {task.value:.3g}, {beside}; {same}"


def _done_as_well(task: Task) -> bool:
    """Whether the target does the task as well as the reference."""
    return task.agreement >= SAME_ANSWERS if task.reference is None else task.reference <= task.high


def _worst_output(comparison: Comparison) -> OutputRecord:
    return max((output for output in comparison.outputs if output.parity is not None), key=_error)


def _error(output: OutputRecord) -> float:
    return output.parity.relative_error if output.parity else 0.0


def _difference(output: OutputRecord, how: str) -> str:
    parity = output.parity
    more = f" (largest difference {parity.max_error:.3g}, cosine {parity.cosine:.6f})" if parity else ""
    return f"relative L2 error {_error(output):.3g} of {output.name} {how}{more}"


def _mismatch(error_type: str, message: str, noise: _Noise | None = None) -> Judgement:
    return Judgement(
        status=Status.MISMATCH,
        error_type=error_type,
        message=message,
        loss=noise.loss if noise else None,
        excess=noise.excess if noise else None,
    )
