"""Finds where a wrong result begins: the first step whose output is wrong although its inputs are right."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.measure.parity import parity_of
from hwmatrix.records import Divergence, Origin
from hwmatrix.records.traces import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.records.traces import Trace

    Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

_STANDS_OUT: Final = 5.0
"""A step is reported as the cause if its output error exceeds its input error by this factor."""
_ROUNDING: Final = 0.05
"""The minimum input error, as a share of the tolerance. Without it, a first step that merely rounds exact inputs would stand out."""
_SHARES: Final = (1.0, 0.3)
"""Shares of the tolerance used as limits in the search: the step that causes an error may stay below the tolerance itself."""
_FLOAT16_MAX: Final = 65504.0
"""The largest float16 number. Attention masks use the lowest number of a precision, or minus infinity: clipping makes them equal."""
_MASK_FACTOR: Final = 20.0
"""The lowest number is taken for a mask value if its magnitude exceeds all others by this factor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Found:
    """A step that may cause the error: the error of its worst output (``error``) and of its worst input (``given``)."""

    step: Step
    error: float
    given: float

    def stands_out(self, tolerance: float) -> bool:
        return self.error > _STANDS_OUT * max(self.given, _ROUNDING * tolerance)


def locate(trace: Trace, expected: Mapping[str, Array], allowed: float, *, same_graph: bool = False) -> Divergence:
    """Walk back from the wrong outputs to the first step with correct inputs and wrong outputs.

    Args:
        trace: a run of the target with all intermediate values, and the same values from a reference runtime.
        expected: the model's reference outputs by name.
        allowed: the largest relative L2 error that counts as equal: what the verdict allowed.
        same_graph: it was allowed between the target and the reference runtime, for a graph with rounded weights. They compute the same
            graph, which itself may be far from the model's outputs. Then no output of that graph is compared with ``expected``.
    """
    compared = {} if same_graph else trace.results
    graph = _worst({name: _distance(trace.expected.get(value), expected.get(name)) for name, value in compared.items()})
    if graph is not None and graph[1] > allowed:
        name, error = graph
        detail = f"{name} differs from the reference by {error:.3g} there too"
        return Divergence(origin=Origin.GRAPH, relative_error=_finite(error), against=trace.against, detail=detail)
    off = {name: _distance(trace.values.get(value), trace.expected.get(value)) for name, value in trace.results.items()}
    worst = _worst(off)
    if worst is None:
        return Divergence(origin=Origin.UNKNOWN, against=trace.against, detail="no output could be compared")
    kept = _worst({name: _distance(trace.values.get(value), expected.get(name)) for name, value in trace.results.items()}) or worst
    if worst[1] <= allowed and (same_graph or kept[1] <= allowed):
        detail = f"with all intermediate values kept, {worst[0]} differs by only {worst[1]:.3g}"
        return Divergence(origin=Origin.FUSED, relative_error=worst[1], against=trace.against, detail=detail)
    errors = _errors(trace)
    found = [each for share in _SHARES if (each := _first(trace, errors, _wrong(trace, off, share * allowed), share * allowed)) is not None]
    if not found and worst[1] <= allowed:
        detail = f"{worst[0]} differs by {worst[1]:.3g} from the output of that graph, and by {kept[1]:.3g} from the reference"
        return Divergence(origin=Origin.GRADUAL, relative_error=worst[1], against=trace.against, detail=detail)
    if not found:
        return Divergence(origin=Origin.UNKNOWN, relative_error=_finite(worst[1]), against=trace.against, detail="no step was found")
    best = next((each for each in found if each.stands_out(allowed)), None)
    return _described(trace, best or found[0], Origin.STEP if best else Origin.GRADUAL)


def _described(trace: Trace, found: _Found, origin: Origin) -> Divergence:
    reasons = [_incomparable(trace.values.get(name), trace.expected.get(name)) for name in found.step.outputs]
    return Divergence(
        origin=origin,
        at=found.step.name,
        operator=found.step.operator,
        relative_error=_finite(found.error),
        inputs_error=_finite(found.given),
        against=trace.against,
        detail=next((reason for reason in reasons if reason), None),
    )


def _errors(trace: Trace) -> dict[str, float]:
    """The error of every value. A value that is missing in one of the runs gets the error of its step's worst input."""
    errors: dict[str, float] = {}
    for step in trace.steps:
        given = max((_error(errors, trace, name) for name in step.inputs), default=0.0)
        for name in step.outputs:
            own = _distance(trace.values.get(name), trace.expected.get(name))
            errors[name] = given if own is None else own
    return errors


def _error(errors: dict[str, float], trace: Trace, name: str) -> float:
    """The error of a step's input. A value that no step in the trace produced (a model input, for example) is compared here."""
    if name not in errors:
        errors[name] = _distance(trace.values.get(name), trace.expected.get(name)) or 0.0
    return errors[name]


def _first(trace: Trace, errors: Mapping[str, float], begin: list[str], limit: float) -> _Found | None:
    """The first step without wrong inputs, found by walking back from the wrong outputs through wrong values only."""
    made_by = {name: number for number, step in enumerate(trace.steps) for name in step.outputs}
    seen: set[int] = set()
    open_values = list(begin)
    first: int | None = None
    while open_values:
        number = made_by.get(open_values.pop())
        if number is None or number in seen:
            continue
        seen.add(number)
        wrong = [name for name in trace.steps[number].inputs if errors.get(name, 0.0) > limit]
        open_values += wrong
        if not wrong and (first is None or number < first):
            first = number
    if first is None:
        return None
    step = trace.steps[first]
    return _Found(
        step=step,
        error=max(errors[name] for name in step.outputs),
        given=max((errors.get(name, 0.0) for name in step.inputs), default=0.0),
    )


def _wrong(trace: Trace, off: Mapping[str, float | None], limit: float) -> list[str]:
    """The names of the values behind outputs whose error exceeds the limit."""
    return [trace.results[name] for name, error in off.items() if error is not None and error > limit]


def _worst(errors: Mapping[str, float | None]) -> tuple[str, float] | None:
    known = {name: error for name, error in errors.items() if error is not None}
    return max(known.items(), key=lambda item: item[1]) if known else None


def _distance(actual: Array | None, expected: Array | None) -> float | None:
    """Relative L2 error; infinite if the values cannot be compared, None if one of them is missing."""
    if actual is None or expected is None:
        return None
    if _incomparable(actual, expected) is not None:
        return math.inf
    a, e = (np.clip(np.nan_to_num(each.astype(np.float64)), -_FLOAT16_MAX, _FLOAT16_MAX) for each in (actual, expected))
    ordinary = ~_masked(e)
    if not ordinary.all() and np.array_equal(ordinary, ~_masked(a)):
        a, e = a[ordinary], e[ordinary]
    return parity_of(a, e, logits=False).relative_error


def _masked(array: Array) -> Array:
    """The positions of mask values: numbers near the lowest one, if that is far below all others.

    Mask values (-65504, or -100 in a quantized graph) dominate the norm and would hide errors of all other values.
    """
    least = array.min(initial=0.0)
    low: Array = array < least / 2
    return low if np.abs(array[~low]).max(initial=0.0) * _MASK_FACTOR < -least else np.zeros(array.shape, dtype=bool)


def _incomparable(actual: Array | None, expected: Array | None) -> str | None:
    """Why two values cannot be compared: different shapes, or NaN where a number is expected."""
    if actual is None or expected is None:
        return None
    if actual.shape != expected.shape:
        return f"{list(actual.shape)} instead of {list(expected.shape)}"
    lost = int(np.sum(_nan(actual) & ~_nan(expected)))
    return f"NaN in {lost} of {actual.size} values" if lost else None


def _nan(array: Array) -> Array:
    return np.isnan(array) if np.issubdtype(array.dtype, np.inexact) else np.zeros(array.shape, dtype=bool)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
