"""Intermediate values of a graph on QNN, as far as requesting them does not change the error.

QNN prepares a graph as a whole: with other outputs, it is another graph, whose numbers may be wrong elsewhere, or right. So values are
believed where the model's own outputs are still what the cell had.
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
"""How many values are kept at one time where all are too many, evenly over the part of the graph in which the difference begins; fewer
where these are."""
_SESSIONS: Final = 24
_IN_VAIN: Final = 5
"""After so many sessions of which none could be believed, none will be: QNN reads memory that nothing wrote, and no two runs agree."""
_SECONDS: Final = 20.0
"""No further session is begun after so long: one takes a second, of a large model minutes."""
_SHARE: Final = 0.1
"""The share of the error looked for by which outputs may move as values are kept (float16 rounds otherwise in another graph), and beyond
which a value counts as wrong."""
_LARGEST: Final = 1e4
"""Numbers from here on are those with which masks say "never"."""
CHANGED: Final = "; with values kept, QNN gives other outputs than without"
"""What is said where only such values could be had."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Looked:
    """The values found by name, and whether the model's outputs were what the cell had meanwhile."""

    values: Mapping[str, Array]
    faithful: bool


def look(kept: AllValues, read: Read, *, had: Mapping[str, Array], expected: Mapping[str, Array]) -> Looked:
    """Have all values at once; where that changes the outputs, or QNN refuses, a few, ever closer to where the difference begins.

    Args:
        kept: which values there are.
        read: runs a graph that gives these values beside its own outputs, and gives both by name.
        had: what the cell had of the graph's own outputs, by their names in the graph.
        expected: what all values should be.

    Raises:
        TraceError: QNN gives no values at all.
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
    """Values that leave the outputs as they were: some of every part of the graph, and all that can be had where it begins to be wrong."""
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
    """Of what the first wrong value is made of, back to the values that are known: those that can be asked for."""
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
    """The largest relative L2 error of the values that both have; infinite where shapes differ."""
    return max((_relative(actual[name], expected[name]) for name in actual if name in expected), default=0.0)


def _relative(actual: Array, expected: Array) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    a, e = (np.clip(np.nan_to_num(each.astype(np.float64)), -_LARGEST, _LARGEST) for each in (actual, expected))
    never = (np.abs(e) == _LARGEST) & (a == e)
    distance, scale = float(np.linalg.norm((a - e)[~never])), float(np.linalg.norm(e[~never]))
    return distance / scale if scale else distance
