"""Intermediate values of a graph on QNN, as far as requesting them does not change the error.

QNN prepares a graph as a whole. With more outputs it is a different graph, whose values may be wrong elsewhere, or right. So values are
trusted only if the model's own outputs still match those of the cell.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.errors import TraceError
from hwmatrix.targets.onnx import trace as onnx_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwmatrix.targets.onnx.trace import AllValues

    Array = np.ndarray[Any, np.dtype[Any]]
    Read = Callable[[Sequence[str]], dict[str, Array]]

_AT_ONCE: Final = 8
"""The number of values requested at once if requesting all of them changes the outputs. They are spread evenly over the part of the graph
where the difference begins. The number shrinks if even these change the outputs."""
_SESSIONS: Final = 24
_IN_VAIN: Final = 5
"""Give up after this many sessions without a trusted one: then QNN reads uninitialized memory, and no two runs agree."""
_SECONDS: Final = 20.0
"""Start no new session after this time. One takes a second, or minutes for a large model."""
_SHARE: Final = 0.1
"""A share of the error under study: outputs may move this much when values are requested (float16 rounds differently in another graph), and
a value beyond it counts as wrong."""
_LARGEST: Final = 1e4
"""Numbers of at least this magnitude are those that masks use for "never"."""
CHANGED: Final = "; with values kept, QNN gives other outputs than without"
"""Appended to the description of the reference if only such values were found."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Looked:
    """The values found by name, and whether the model's outputs still matched those of the cell."""

    values: Mapping[str, Array]
    faithful: bool


def look(kept: AllValues, read: Read, *, had: Mapping[str, Array], expected: Mapping[str, Array]) -> Looked:
    """Request all values at once. If that changes the outputs, or QNN refuses, request a few at a time, narrowing down the difference.

    Args:
        kept: the graph's values and steps.
        read: runs the graph with these values as extra outputs, and returns them and its own outputs by name.
        had: the cell's values of the graph's own outputs, by their names in the graph.
        expected: the expected values, all by name.

    Raises:
        TraceError: QNN returns no values at all.
    """
    wrong = _SHARE * _distance(had, expected)
    values, refusal = _read_or_failure(read, [name for name in kept.names if name not in kept.results])
    if values is not None and _distance(values, had) <= wrong:
        return Looked(values=values, faithful=True)
    believed = _search(kept, read, had=had, expected=expected, wrong=wrong)
    if len(believed) > len(had):
        return Looked(values=believed, faithful=True)
    if values is None:
        assert refusal is not None  # noqa: S101 - one of them is there
        raise refusal
    return Looked(values=values, faithful=False)


def _search(kept: AllValues, read: Read, *, had: Mapping[str, Array], expected: Mapping[str, Array], wrong: float) -> dict[str, Array]:
    """Find values that leave the outputs unchanged: some from each part of the graph, and all available ones where the error begins."""
    believed, refused, at_once = dict(had), set[str](), _AT_ONCE
    until = time.monotonic() + _SECONDS
    for count in range(_SESSIONS):
        part = _next_names(kept, believed, refused, expected, wrong)
        part = [part[(number + 1) * len(part) // (at_once + 1)] for number in range(at_once)] if len(part) > at_once else part
        if not part or time.monotonic() > until or (count >= _IN_VAIN and len(believed) == len(had)):
            break
        found, _ = _read_or_failure(read, part)
        if found is not None and _distance(found, had) <= wrong:
            believed |= {name: found[name] for name in part if name in found}
            refused.update(name for name in part if name not in found)
        elif len(part) > 1:
            at_once = max(1, len(part) // 4)
        else:
            refused.update(part)
    return believed


def _next_names(
    kept: AllValues, believed: Mapping[str, Array], refused: set[str], expected: Mapping[str, Array], wrong: float
) -> list[str]:
    """The unknown values that can be requested between the first wrong value and the known values before it."""
    for step in onnx_trace.joined(kept.steps, believed.keys() & expected.keys()):
        if _distance({name: believed[name] for name in step.outputs if name in believed}, expected) > wrong:
            return [name for name in onnx_trace.behind(kept.steps, step, believed) if name in expected and name not in refused]
    return []


def _read_or_failure(read: Read, names: Sequence[str]) -> tuple[dict[str, Array] | None, TraceError | None]:
    try:
        return read(names), None
    except TraceError as failure:
        return None, failure


def _distance(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest relative L2 error over the values that both have; infinite if shapes differ."""
    return max((_relative(actual[name], expected[name]) for name in actual if name in expected), default=0.0)


def _relative(actual: Array, expected: Array) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    a, e = (np.clip(np.nan_to_num(each.astype(np.float64)), -_LARGEST, _LARGEST) for each in (actual, expected))
    never = (np.abs(e) == _LARGEST) & (a == e)
    distance, scale = float(np.linalg.norm((a - e)[~never])), float(np.linalg.norm(e[~never]))
    return distance / scale if scale else distance
