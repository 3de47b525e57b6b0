"""The verdict on a target's outputs, from three numbers: what the precision itself costs, what the target adds, how well the task is done.

- ``loss`` is the noise floor of the precision: the error that rounding alone causes in this model, simulated on the CPU.
- ``excess`` is the target's error as a multiple of that floor. A wrong kernel or export has a large one, a correct target about 1.
- the task's own metric on held-out inputs, of a model that has learned one.

Excess within ``Tolerance.excess`` passes, unless the task is done worse than by the reference: then the precision costs too much
(``precision_loss``). Excess up to ``Tolerance.bound`` passes as approximate if the task is done as well as by the reference, with the same
answers. Anything above is a mismatch, whatever the task says: a coarse metric must not hide a wrong kernel. Where the floor is not known,
the largest error of matrix.yaml decides alone; it also limits the loss of a model without a task.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, Protocol

from hwmatrix.records import Dtype, NoiseFloor, OutputRecord, Status, Tolerance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.measure.parity import Comparison
    from hwmatrix.records import Placement

SAME_ANSWERS: Final = 0.99
"""The share of the reference's answers that an approximate pass needs."""
LEAST_FLOOR: Final[Mapping[Dtype, float]] = {
    Dtype.FLOAT32: 2.0**-24,
    Dtype.FLOAT16: 2.0**-11,
    Dtype.BFLOAT16: 2.0**-8,
    Dtype.A16W8: 2.0**-9,
    Dtype.A8W8: 2.0**-9,
}
"""Half a unit in the last place: the relative error of a single rounding. By chance, a simulated error may be smaller."""


class Task(Protocol):
    """How a task was done (:class:`hwmatrix.models.learning.quality.Quality`). All are shares of examples."""

    @property
    def metric(self) -> str:
        """The name of the metric."""

    @property
    def value(self) -> float:
        """What the target gets right."""

    @property
    def reference(self) -> float:
        """What the reference gets right."""

    @property
    def high(self) -> float:
        """The upper end of the 95 % interval of ``value``."""

    @property
    def agreement(self) -> float:
        """The answers that are the reference's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict. ``error_type`` and ``message`` say why it is no pass; ``loss`` and ``excess`` are None if the floor is not known."""

    status: Status
    error_type: str | None = None
    message: str | None = None
    loss: float | None = None
    excess: float | None = None
    approximate: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Allowance:
    """What outputs may differ by: the precision that the target computes in, matrix.yaml's tolerance for it, the model's noise floor.

    ``floor`` None: the bundle has none.
    """

    dtype: Dtype
    tolerance: Tolerance
    floor: NoiseFloor | None = None


def judge(comparison: Comparison, placement: Placement, allowance: Allowance, task: Task | None = None) -> Judgement:
    """Judge outputs that were compared with the reference.

    A model that ran elsewhere proves nothing about this target, so placement is checked first.

    Args:
        comparison: the outputs, from :func:`hwmatrix.measure.parity.compare`.
        placement: where the model ran.
        allowance: what the outputs may differ by.
        task: how the target did the model's task; None for a model without one.
    """
    if placement.on_target <= 0:
        return Judgement(status=Status.FALLBACK, error_type="fallback", message=f"nothing ran on the target: {placement.detail}")
    floor, tolerance = allowance.floor, allowance.tolerance
    problem = incomparable(comparison)
    if problem is not None:
        if problem.error_type == "non_finite_output" and floor is not None and floor.overflows:
            return _mismatch("precision_loss", f"{problem.message}: so it is in {allowance.dtype.value} on the CPU, too")
        return problem
    worst = _largest_error(comparison)
    if tolerance.excess is not None and floor is not None and floor.outputs:
        return _by_floor(_Noise.of(comparison, floor.outputs, allowance.dtype), worst, tolerance, task)
    if _error(worst) > tolerance.relative_error:
        return _mismatch("mismatch", _difference(worst, f"exceeds {tolerance.relative_error:.3g}"))
    return Judgement(status=Status.PASS)


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
    """The output that exceeds its noise floor by the largest multiple, its floor, and the largest floor of all outputs."""

    dtype: Dtype
    loss: float
    excess: float
    output: OutputRecord
    floor: float

    @classmethod
    def of(cls, comparison: Comparison, floors: Mapping[str, float], dtype: Dtype) -> _Noise:
        def floor(output: OutputRecord) -> float:
            return max(floors.get(output.name, 0.0), LEAST_FLOOR[dtype])

        compared = [output for output in comparison.outputs if output.parity is not None]
        worst = max(compared, key=lambda output: _error(output) / floor(output))
        return cls(dtype=dtype, loss=max(floors.values()), excess=_error(worst) / floor(worst), output=worst, floor=floor(worst))


def _by_floor(noise: _Noise, worst: OutputRecord, tolerance: Tolerance, task: Task | None) -> Judgement:
    allowed = tolerance.excess or 0.0
    bound = allowed if tolerance.bound is None else tolerance.bound
    if noise.excess <= allowed:
        reason = _costs_too_much(noise, worst, tolerance, task)
        if reason is not None:
            return _mismatch("precision_loss", reason, noise)
        return Judgement(status=Status.PASS, loss=noise.loss, excess=noise.excess, approximate=False)
    if noise.excess <= bound and task is not None and task.reference <= task.high and task.agreement >= SAME_ANSWERS:
        return Judgement(status=Status.PASS, loss=noise.loss, excess=noise.excess, approximate=True)
    how = f"is {noise.excess:.3g} times the noise floor of {noise.dtype.value} ({noise.floor:.2g}); {allowed:g} times is allowed"
    return _mismatch("mismatch", _difference(noise.output, how), noise)


def _costs_too_much(noise: _Noise, worst: OutputRecord, tolerance: Tolerance, task: Task | None) -> str | None:
    """Why a target that is right in its precision is of no use to this model; None if it is."""
    same = f"{noise.dtype.value} alone costs that on the CPU ({noise.excess:.2g} times its noise floor), so the target is not wrong"
    if task is None:
        over = _error(worst) > tolerance.relative_error
        return f"{_difference(worst, f'exceeds {tolerance.relative_error:.3g}')}; {same}" if over else None
    if task.reference > task.high:
        return f"{task.metric.replace('_', ' ')} is {task.value:.3g} where the reference has {task.reference:.3g}; {same}"
    return None


def _largest_error(comparison: Comparison) -> OutputRecord:
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
