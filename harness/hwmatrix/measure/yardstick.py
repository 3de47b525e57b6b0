"""The speed of the machine itself while a cell is timed: the time of a fixed computation, before and after.

A machine's speed drifts: a neighbor on the same host, heat, the clock of the processor. On a virtual machine of two cores it moved
by 2 to 5 % within minutes, and models on PyTorch and OpenVINO moved with it. Two runs are compared in units of this computation: of the
same code, 0.4 % of cells were then called slower or faster instead of 22 % (docs/gate.md).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from typing import Final

import numpy as np

_SIDE: Final = 96
"""Rows and columns: 0.9 million multiplications that stay in a core's own cache, about 0.1 ms."""
_WINDOW_NS: Final = 30_000_000
_QUICKEST: Final = 0.25
"""The lower quartile: what disturbs for a moment reaches the quickest quarter last, and a slower machine reaches it at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Yardstick:
    """``name`` says what was computed: only equal names can be compared. ``ms`` is what it took, in milliseconds."""

    name: str
    ms: float


def read(threads: int) -> Yardstick:
    """Compute it again and again for 30 ms on so many threads at once, each for itself, as a model on so many would.

    It is numpy's own loop (``einsum``): a BLAS library would choose its threads itself. This thread is one of them, since it is where the
    model ran: another one may find itself on another core, beside other work.
    """
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        others = [pool.submit(_repeat) for _ in range(threads - 1)]
        samples = _repeat() + [sample for other in others for sample in other.result()]
    name = f"float32 {_SIDE} x {_SIDE} einsum, numpy {np.__version__}, {threads} threads"
    return Yardstick(name=name, ms=float(np.quantile(samples, _QUICKEST)) / 1e6)


def between(before: Yardstick, after: Yardstick) -> Yardstick:
    """What stands for the time between two readings: the quicker one, since a disturbance may last as long as a reading."""
    return min(before, after, key=lambda reading: reading.ms)


def _repeat() -> list[int]:
    left = ((np.arange(_SIDE * _SIDE, dtype=np.float32) % 7 - 3) / 7).reshape(_SIDE, _SIDE)
    result = np.empty_like(left)
    clock = time.perf_counter_ns
    taken: list[int] = []
    end = clock() + _WINDOW_NS
    while (start := clock()) < end:
        np.einsum("ij,kj->ik", left, left, out=result)
        taken.append(clock() - start)
    return taken
