"""The verdict on a target's outputs: one distance, one factor, and the result on the model's task.

- In float16, bfloat16, and on qnn, outputs are compared with the reference, and may differ by ``Tolerance.excess`` times the noise floor:
  what rounding alone changes, simulated on the CPU.
- Where a target quantizes weights, they are compared with those of its twin, the same graph with these weights as float32 numbers, and
  may differ by ``Tolerance.excess`` times the noise floor of float32.
- Where it also quantizes activations, as its twin then does, they may differ by ``TWO_ROUNDINGS`` times what rounding costs, the
  twin's own error in its worst output: sums in another order quantize some activations to the neighboring step, so that outputs differ as
  if they were rounded independently.

If the floor is not known, or ``excess`` is None, the distance from the reference may be ``Tolerance.relative_error``.

What differs by more is a ``mismatch``: a wrong kernel or export. What does not, but does the task worse than the reference, is a
``precision_loss``: the precision costs this model too much. Without a task, or with too few examples to tell, so is an error above
``relative_error``. Up to ``Tolerance.bound`` times the floor passes as approximate if the target does the task as well, with the same
answers; a coarse metric must not hide a wrong kernel. The outputs on held-out inputs may differ by ``bound`` times at most: one input does
not show a mask that is ignored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from hwmatrix.errors import TwinError
from hwmatrix.measure import paired
from hwmatrix.measure.parity import Comparison, compare
from hwmatrix.records import Dtype, NoiseFloor, OutputRecord, Placement, Status, Tolerance

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.measure.parity import Array

SAME_ANSWERS: Final = 0.99
"""The share of answers that must equal the reference's for an approximate pass."""
TWO_ROUNDINGS: Final = 1.5
"""By how many times what rounding costs two correct graphs may differ: errors that are independent add up to the root of 2 times one."""
LEAST_FLOOR: Final[Mapping[Dtype, float]] = {
    Dtype.FLOAT32: 2.0**-24,
    Dtype.FLOAT16: 2.0**-11,
    Dtype.BFLOAT16: 2.0**-8,
    Dtype.A16W8: 2.0**-9,
    Dtype.A8W8: 2.0**-9,
    Dtype.INT8_DYNAMIC: 2.0**-9,
}
"""The least noise floor: half a unit in the last place, the relative error of one rounding. A measured error may be smaller by chance."""


class Task(Protocol):
    """A target's result on a task (:class:`hwmatrix.models.learning.quality.Quality`), as shares and numbers of examples or answers."""

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
    def agreement(self) -> float:
        """The share with the same answer as the reference."""

    @property
    def lost(self) -> int:
        """How many answers only the reference gets right."""

    @property
    def gained(self) -> int:
        """How many answers only the target gets right."""

    @property
    def answered(self) -> int:
        """How many answers were compared."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict. ``error_type`` and ``message`` say why it is not a pass.

    ``allowed`` is the relative L2 error that the deciding output was allowed, ``by_twin`` whether from its twin, and ``failing`` are the
    outputs that differ by more. ``loss`` is what the precision costs and ``excess`` how many times the noise floor the target differs, None
    if the floor is not known. ``kernel_error`` is the deciding output's distance from the twin, ``quality_kernel_error`` the same on
    held-out inputs; None without a twin.
    """

    status: Status
    allowed: float
    by_twin: bool = False
    failing: tuple[str, ...] = ()
    error_type: str | None = None
    message: str | None = None
    loss: float | None = None
    excess: float | None = None
    approximate: bool | None = None
    kernel_error: float | None = None
    quality_kernel_error: float | None = None

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
class Twin:
    """A target's outputs compared with those of its twin: the same graph with its quantized weights as float32 numbers.

    ``loss`` compares the twin with the reference. ``floor`` are the floors of ``Dtype.kernels_in`` by output; None: not known.
    """

    apart: Comparison
    loss: Comparison
    floor: Mapping[str, float] | None = None


def twin(
    outputs: Mapping[str, Array], in_float: Mapping[str, Array], expected: Mapping[str, Array], floor: Mapping[str, float] | None
) -> Twin:
    """Compare a target's outputs with those of its twin, and these with the reference's.

    Raises:
        TwinError: the outputs of the twin cannot be compared.
    """
    made = Twin(apart=compare(outputs, in_float), loss=compare(in_float, expected), floor=floor)
    for compared in (made.loss, made.apart):
        problem = incomparable(compared)
        if problem is not None:
            raise TwinError(f"the rounded weights in float32: {problem[1]}")
    return made


def judge(
    comparison: Comparison,
    placement: Placement,
    allowance: Allowance,
    task: Task | None = None,
    held_out: Comparison | None = None,
    *,
    twin: Twin | None = None,
    held_out_twin: Twin | None = None,
) -> Judgement:
    """Judge outputs that were compared with the reference.

    Placement is checked first: a model that ran elsewhere proves nothing about this target.

    Args:
        comparison: the outputs, from :func:`hwmatrix.measure.parity.compare`.
        placement: where the model ran.
        allowance: how much the outputs may differ.
        task: the target's result on the model's task; None for a model without one.
        held_out: the outputs on the task's held-out inputs, all examples as one array.
        twin: the outputs compared with those of the twin; None: the target has none, or it tells nothing.
        held_out_twin: the same for the held-out inputs.
    """
    limit = allowance.tolerance.relative_error
    if placement.on_target <= 0:
        message = f"nothing ran on the target: {placement.detail}"
        return Judgement(status=Status.FALLBACK, allowed=limit, error_type="fallback", message=message)
    for compared, where in ((comparison, ""), (held_out, " on held-out inputs")):
        if compared is not None and (problem := incomparable(compared)) is not None:
            return _unusable(compared, *problem, allowance, where)
    noise = _Noise.of(comparison, allowance, twin)
    if noise is None:
        return _by_limit([(comparison, twin, ""), (held_out, held_out_twin, " on held-out inputs")], limit)
    judged = _by_noise(noise, comparison, allowance.tolerance, task)
    there = None if held_out is None else _Noise.of(held_out, allowance, held_out_twin)
    if there is None:
        return judged
    if there.by_twin:
        judged = dataclasses.replace(judged, quality_kernel_error=_error(there.output))
    if judged.error_type == "mismatch" or there.excess <= there.bound:
        return judged
    message = _difference(there.output, f"on held-out inputs {there.told}; at most {there.bound:g} times is allowed")
    wrong = dataclasses.replace(judged, status=Status.MISMATCH, error_type="mismatch", message=message, approximate=None)
    return dataclasses.replace(wrong, allowed=there.bound * there.floor(there.output.name), by_twin=there.by_twin, failing=())


def misjudged(expected: Mapping[str, Array], placement: Placement, allowance: Allowance) -> str | None:
    """Why verdicts with this allowance cannot be trusted; None if they can.

    The expected outputs themselves are judged twice: shifted by a third of the allowed error, which must pass, and by three times as much,
    which must be a mismatch.
    """
    tolerance, noise = allowance.tolerance, _Noise.of(compare(expected, expected), allowance, None)

    def allowed(name: str) -> float:
        return tolerance.relative_error if noise is None else min(tolerance.relative_error, noise.factor * noise.floor(name))

    for factor, wanted in ((1 / 3, Status.PASS), (3.0, Status.MISMATCH)):
        shifted = {name: _shifted(array, factor * allowed(name)) for name, array in expected.items()}
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


def incomparable(comparison: Comparison) -> tuple[str, str] | None:
    """Why the outputs cannot be compared at all, as the type of the error and its message; None if they can."""
    if comparison.not_finite:
        return "non_finite_output", f"NaN or infinity in {', '.join(comparison.not_finite)}"
    if comparison.missing:
        return "missing_output", f"the target did not return {', '.join(comparison.missing)}"
    if comparison.reshaped:
        return "missing_output", f"other shapes than the reference: {'; '.join(comparison.reshaped)}"
    if comparison.worst is None:
        return "missing_output", "no output could be compared with the reference"
    return None


def _unusable(comparison: Comparison, error_type: str, message: str, allowance: Allowance, where: str) -> Judgement:
    """The verdict on outputs that cannot be compared. ``where`` ends the message."""
    message += where
    if error_type == "non_finite_output" and allowance.floor is not None and allowance.floor.overflows:
        error_type, message = "precision_loss", f"{message}; the same happens in {allowance.dtype.value} on the CPU"
    limit = allowance.tolerance.relative_error
    failing = tuple(output.name for output in comparison.outputs if output.parity is None or _error(output) > limit)
    return Judgement(status=Status.MISMATCH, allowed=limit, failing=failing, error_type=error_type, message=message)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Noise:
    """The comparison that decides, the noise floor of each output, never less than ``least``, and which multiples of it are allowed.

    ``unit`` is what the floor is called, ``factor`` what passes, and ``bound`` what may pass with a task.
    """

    comparison: Comparison
    floors: Mapping[str, float]
    least: float
    unit: str
    factor: float
    bound: float
    loss: float
    by_twin: bool

    @classmethod
    def of(cls, comparison: Comparison, allowance: Allowance, twin: Twin | None) -> _Noise | None:
        """None if the floor is not known, or matrix.yaml has no multiple of it."""
        dtype, factor, bound = allowance.dtype, allowance.tolerance.excess, allowance.tolerance.hard_bound
        floors: Mapping[str, float] | None
        if twin is None:
            floors = None if allowance.floor is None else allowance.floor.outputs
            unit, least = f"the noise floor of {dtype.value}", LEAST_FLOOR.get(dtype, 0.0)
        elif dtype.quantizes_activations:
            floors = dict.fromkeys((output.name for output in twin.loss.outputs), _error(_worst_output(twin.loss)))
            unit, least, factor, bound = "what rounding costs", LEAST_FLOOR[dtype], TWO_ROUNDINGS, TWO_ROUNDINGS
        else:
            floors = twin.floor
            unit, least = f"the noise floor of {dtype.kernels_in.value}", LEAST_FLOOR[dtype.kernels_in]
        if not floors or factor is None:
            return None
        return cls(
            comparison=comparison if twin is None else twin.apart,
            floors=floors,
            least=least,
            unit=unit,
            factor=factor,
            bound=bound,
            loss=max(floors.values()) if twin is None else _error(_worst_output(twin.loss)),
            by_twin=twin is not None,
        )

    def floor(self, name: str) -> float:
        return max(self.floors.get(name, 0.0), self.least)

    @property
    def output(self) -> OutputRecord:
        """The output with the largest excess."""
        compared = [output for output in self.comparison.outputs if output.parity is not None]
        return max(compared, key=lambda output: _error(output) / self.floor(output.name))

    @property
    def excess(self) -> float:
        return _error(self.output) / self.floor(self.output.name)

    @property
    def told(self) -> str:
        against = "from its own rounded weights in float32 " if self.by_twin else ""
        return f"{against}is {self.excess:.3g} times {self.unit} ({self.floor(self.output.name):.2g})"


def _by_noise(noise: _Noise, comparison: Comparison, tolerance: Tolerance, task: Task | None) -> Judgement:
    judged = Judgement(
        status=Status.PASS,
        allowed=noise.factor * noise.floor(noise.output.name),
        by_twin=noise.by_twin,
        loss=noise.loss,
        excess=noise.excess,
        approximate=False,
        kernel_error=_error(noise.output) if noise.by_twin else None,
    )
    if noise.excess <= noise.factor:
        lost = _unusable_precision(noise, comparison, tolerance, task)
        if lost is None:
            return judged
        failing = _above(comparison, lambda _: tolerance.relative_error)
        wrong = dataclasses.replace(judged, status=Status.MISMATCH, error_type="precision_loss", message=lost, approximate=None)
        return dataclasses.replace(wrong, allowed=tolerance.relative_error, by_twin=False, failing=failing)
    if noise.excess <= noise.bound and task is not None and _as_well(task) and task.agreement >= SAME_ANSWERS:
        return dataclasses.replace(judged, approximate=True)
    failing = _above(noise.comparison, lambda name: noise.factor * noise.floor(name))
    message = _difference(noise.output, f"{noise.told}; {noise.factor:g} times is allowed")
    return dataclasses.replace(judged, status=Status.MISMATCH, error_type="mismatch", message=message, failing=failing, approximate=None)


def _by_limit(compared: list[tuple[Comparison | None, Twin | None, str]], limit: float) -> Judgement:
    """The verdict without a floor. ``compared`` are the outputs, and those on held-out inputs, each with its twin and where that is."""
    twin = compared[0][1]
    judged = Judgement(
        status=Status.PASS,
        allowed=limit,
        loss=None if twin is None else _error(_worst_output(twin.loss)),
        kernel_error=None if twin is None else _error(_worst_output(twin.apart)),
    )
    for comparison, beside, where in compared:
        if comparison is None or _error(_worst_output(comparison)) <= limit:
            continue
        worst, error_type, same = _worst_output(comparison), "mismatch", ""
        if beside is not None and _error(_worst_output(beside.apart)) <= limit:
            error_type, same = "precision_loss", f"; {_same(_error(_worst_output(beside.loss)))}"
        message = f"{_difference(worst, f'exceeds {limit:.3g}{where}')}{same}"
        failing = _above(comparison, lambda _: limit)
        return dataclasses.replace(judged, status=Status.MISMATCH, error_type=error_type, message=message, failing=failing)
    return judged


def _unusable_precision(noise: _Noise, comparison: Comparison, tolerance: Tolerance, task: Task | None) -> str | None:
    """Why the precision is too low for this model although the target computes correctly; None if it is not too low."""
    same = f"the error is normal for it ({noise.excess:.2g} times {noise.unit}), so the target is not wrong"
    if noise.by_twin:
        same = _same(noise.loss)
    as_well = None if task is None else _as_well(task)
    if as_well is None:
        worst = _worst_output(comparison)
        few = "" if task is None else f"; {_told(task)}, which does not tell whether it does the task as well"
        over = _error(worst) > tolerance.relative_error
        return f"{_difference(worst, f'exceeds {tolerance.relative_error:.3g}')}; {same}{few}" if over else None
    if as_well or task is None:
        return None
    beside = "" if task.reference is None else f", the reference's is {task.reference:.3g}"
    return f"{task.metric.replace('_', ' ')} is {task.value:.3g}{beside}: {_told(task)}; {same}"


def _same(loss: float) -> str:
    return f"the rounded graph has an error of {loss:.2g} in float32, too, so the kernels are not wrong"


def _as_well(task: Task) -> bool | None:
    return paired.as_well(lost=task.lost, gained=task.gained, count=task.answered)


def _told(task: Task) -> str:
    return f"of {task.answered} answers {task.lost} become wrong and {task.gained} right"


def _above(comparison: Comparison, allowed: Callable[[str], float]) -> tuple[str, ...]:
    """The outputs whose error exceeds what they are allowed, or that could not be compared."""
    return tuple(output.name for output in comparison.outputs if output.parity is None or _error(output) > allowed(output.name))


def _worst_output(comparison: Comparison) -> OutputRecord:
    return max((output for output in comparison.outputs if output.parity is not None), key=_error)


def _error(output: OutputRecord) -> float:
    return output.parity.relative_error if output.parity else 0.0


def _difference(output: OutputRecord, how: str) -> str:
    parity = output.parity
    more = f" (largest difference {parity.max_error:.3g}, cosine {parity.cosine:.6f})" if parity else ""
    return f"relative L2 error {_error(output):.3g} of {output.name} {how}{more}"
