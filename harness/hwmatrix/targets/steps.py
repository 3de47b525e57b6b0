"""How far rounded weights are from those that they were made from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundedWeight:
    """A rounded weight, and how many of its steps the farthest of its numbers is from the one that it was made from.

    Rounding to the nearest step takes at most half a step; at the ends of the range, where a number is clipped, up to a whole one.
    """

    name: str
    steps: float


def compared(name: str, restored: np.ndarray[Any, Any], original: np.ndarray[Any, Any], step: np.ndarray[Any, Any]) -> RoundedWeight:
    """Compare the numbers that a weight's integers stand for with the original's, of the same shape. ``step`` broadcasts to it."""
    apart = np.abs(restored.astype(np.float64) - original.astype(np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(apart > 0, apart / np.abs(step), 0.0)  # a group of zeros has a step of zero
    return RoundedWeight(name=name, steps=float(np.max(steps, initial=0.0)))


def farthest(weights: Iterable[RoundedWeight]) -> RoundedWeight | None:
    """The weight that is most steps away; None without any."""
    return max(weights, key=lambda weight: weight.steps, default=None)
