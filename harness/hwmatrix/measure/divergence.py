"""Where a wrong result begins: the first step whose output is wrong although its inputs are right."""

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
"""How many times the error of what it was given a step's own must be for the step to be named as the one that makes it."""
_ROUNDING: Final = 0.05
"""The share of the tolerance that counts as given in any case: a first step rounds what is exact, and stands out for no reason."""
_SHARES: Final = (1.0, 0.3)
"""Shares of the tolerance at which a step is looked for: one that stands out may stay below it, until a later one exceeds it."""
_NEVER: Final = 65504.0
"""The largest number of float16. Masks say "never" with the least number that a precision has, or with infinity: beyond this, all of them
mean the same."""
_FAR: Final = 20.0
"""How many times as large as any other number the least must be to be taken for a mask's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Found:
    """A step that makes a difference: the error of its worst output, and of the worst value that it was given."""

    step: Step
    error: float
    given: float

    def stands_out(self, tolerance: float) -> bool:
        return self.error > _STANDS_OUT * max(self.given, _ROUNDING * tolerance)


def locate(trace: Trace, expected: Mapping[str, Array], tolerance: float) -> Divergence:
    """Walk back from the outputs that are wrong to the first step that is given right values and gives wrong ones.

    Args:
        trace: a run of the target with its values kept, beside those of a reference runtime.
        expected: the model's reference outputs by name.
        tolerance: the largest relative L2 error that counts as the same.
    """
    graph = _worst({name: _distance(trace.expected.get(value), expected.get(name)) for name, value in trace.results.items()})
    if graph is not None and graph[1] > tolerance:
        name, error = graph
        detail = f"{name} differs from the reference by {error:.3g} there too"
        return Divergence(origin=Origin.GRAPH, relative_error=_finite(error), against=trace.against, detail=detail)
    off = {name: _distance(trace.values.get(value), trace.expected.get(value)) for name, value in trace.results.items()}
    worst = _worst(off)
    if worst is None:
        return Divergence(origin=Origin.UNKNOWN, against=trace.against, detail="no output could be compared")
    kept = _worst({name: _distance(trace.values.get(value), expected.get(name)) for name, value in trace.results.items()}) or worst
    if kept[1] <= tolerance and worst[1] <= tolerance:
        detail = f"with the values of all steps kept, {worst[0]} differs by {worst[1]:.3g} alone"
        return Divergence(origin=Origin.FUSED, relative_error=worst[1], against=trace.against, detail=detail)
    errors = _errors(trace)
    found = [
        each for share in _SHARES if (each := _first(trace, errors, _wrong(trace, off, share * tolerance), share * tolerance)) is not None
    ]
    if not found and worst[1] <= tolerance:
        detail = f"{worst[0]} differs by {worst[1]:.3g} from what the graph gives there, and by {kept[1]:.3g} from the reference"
        return Divergence(origin=Origin.GRADUAL, relative_error=worst[1], against=trace.against, detail=detail)
    if not found:
        return Divergence(origin=Origin.UNKNOWN, relative_error=_finite(worst[1]), against=trace.against, detail="no step was found")
    best = next((each for each in found if each.stands_out(tolerance)), None)
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
    """The error of every value. One that cannot be compared has that of what it was made of."""
    errors: dict[str, float] = {}
    for step in trace.steps:
        given = max((_error(errors, trace, name) for name in step.inputs), default=0.0)
        for name in step.outputs:
            own = _distance(trace.values.get(name), trace.expected.get(name))
            errors[name] = given if own is None else own
    return errors


def _error(errors: dict[str, float], trace: Trace, name: str) -> float:
    """The error of a value that a step is given: no step made it where it is an input, or was only seen as it was handed over."""
    if name not in errors:
        errors[name] = _distance(trace.values.get(name), trace.expected.get(name)) or 0.0
    return errors[name]


def _first(trace: Trace, errors: Mapping[str, float], begin: list[str], limit: float) -> _Found | None:
    """The first step in order, of those that wrong outputs lead back to through wrong values alone, which was given no wrong one."""
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
    """The values of the outputs that are off by more than a limit."""
    return [trace.results[name] for name, error in off.items() if error is not None and error > limit]


def _worst(errors: Mapping[str, float | None]) -> tuple[str, float] | None:
    known = {name: error for name, error in errors.items() if error is not None}
    return max(known.items(), key=lambda item: item[1]) if known else None


def _distance(actual: Array | None, expected: Array | None) -> float | None:
    """Relative L2 error, infinite where values cannot be compared; None where one of them is not there."""
    if actual is None or expected is None:
        return None
    if _incomparable(actual, expected) is not None:
        return math.inf
    a, e = (np.clip(np.nan_to_num(each.astype(np.float64)), -_NEVER, _NEVER) for each in (actual, expected))
    ordinary = ~_masked(e)
    if not ordinary.all() and np.array_equal(ordinary, ~_masked(a)):
        a, e = a[ordinary], e[ordinary]
    return parity_of(a, e, logits=False).relative_error


def _masked(array: Array) -> Array:
    """Where a mask says "never": numbers near the least, if that is far below all others.

    Beside such numbers (-65504, or -100 where a graph is quantized) no error of the others would show in a relative one.
    """
    least = array.min(initial=0.0)
    low: Array = array < least / 2
    return low if np.abs(array[~low]).max(initial=0.0) * _FAR < -least else np.zeros(array.shape, dtype=bool)


def _incomparable(actual: Array | None, expected: Array | None) -> str | None:
    """Why two values cannot be compared: other shapes, or NaN where the other has numbers."""
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
