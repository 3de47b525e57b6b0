"""Whether the time between tokens changes with their position: a step, as when a buffer is full, or a drift, as attention has more to read.

A mean hides both. The times of one generation are noisy, so a change is told only if it is large, in itself and beside the differences that
it leaves between positions, and if each half of the repetitions shows it.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]

_LEAST_POSITIONS: Final = 4
_LEAST_REPETITIONS: Final = 6
SMALLEST: Final = 0.1
"""The smallest change that is told, as a share of the median time between tokens."""
_DEVIATIONS: Final = 3.0
"""The smallest change that is told, in standard deviations of what it leaves (1.4826 times their median absolute deviation)."""
_FIRST_TOKEN: Final = 2
"""The token, counted from 1, whose time since the one before is the first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """By how many milliseconds the time between tokens changes; negative: tokens get faster.

    ``token`` (counted from 1) is the first that takes the new time. None: it is a drift, and ``ms`` is from the first to the last.
    """

    ms: float
    token: int | None = None


def change(gaps_ms: Array) -> Change | None:
    """The change by position in ``gaps_ms`` (repetitions, positions), the milliseconds between one token and the next; None: there is none.

    A drift is the Theil-Sen line through the medians by position, a step the two levels with the smallest sum of absolute deviations. The
    one that leaves less deviation is told. Both withstand single slow tokens.
    """
    repetitions, positions = gaps_ms.shape
    if repetitions < _LEAST_REPETITIONS or positions < _LEAST_POSITIONS:
        return None
    medians = np.median(gaps_ms, axis=0)
    step = min(range(1, positions), key=lambda at: _deviation(medians, _levels(medians, at)))
    candidates: list[tuple[Callable[[Array], Array], int | None]] = [
        (lambda values: _levels(values, step), step + _FIRST_TOKEN),
        (_line, None),
    ]
    fit, token = min(candidates, key=lambda each: _deviation(medians, each[0](medians)))
    whole = _rise(fit(medians))
    if abs(whole) < _DEVIATIONS * 1.4826 * float(np.median(np.abs(medians - fit(medians)))):
        return None
    halves = (np.median(half, axis=0) for half in (gaps_ms[: repetitions // 2], gaps_ms[repetitions // 2 :]))
    least = min(_rise(fit(half)) * np.sign(whole) for half in halves)
    if min(abs(whole), least) < SMALLEST * float(np.median(medians)):
        return None
    return Change(ms=whole, token=token)


def _levels(values: Array, at: int) -> Array:
    """One level before a position, another from it on."""
    return np.concatenate([np.full(at, np.median(values[:at])), np.full(len(values) - at, np.median(values[at:]))])


def _line(values: Array) -> Array:
    """The Theil-Sen line: its slope is the median of those between all pairs of positions."""
    slope = np.median([(values[b] - values[a]) / (b - a) for a, b in itertools.combinations(range(len(values)), 2)])
    places = np.arange(len(values))
    line: Array = slope * places + np.median(values - slope * places)
    return line


def _rise(fitted: Array) -> float:
    return float(fitted[-1] - fitted[0])


def _deviation(values: Array, fitted: Array) -> float:
    return float(np.abs(values - fitted).sum())
