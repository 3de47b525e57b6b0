"""Weights that differ by a few roundings of float32: how far a graph that rounds as it runs may move, whoever computes it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

_NUDGE: Final = np.float32(2.0**-21)
"""The relative change of a nudged weight: eight roundings, about twice what kernels that add in another order differ by."""


def nudge(values: np.ndarray[Any, Any], random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Float32 numbers, each a little larger or smaller. One that would become infinite stays: a mask is the lowest finite number."""
    with np.errstate(over="ignore"):
        other = values * factors(values.shape, random)
    return np.where(np.isfinite(other), other, values)


def factors(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray[Any, Any]:
    """What numbers are multiplied by to become a little larger or smaller."""
    return np.asarray(1 + _NUDGE * random.choice(np.array([-1, 1], np.float32), shape))  # a single number is an array, too
