"""The speed of the machine itself while a cell is timed: the time of a fixed computation, measured before and after.

A machine's speed drifts because of neighbors on the same host, heat and the CPU clock. On a virtual machine with two cores it changed by
2 to 5 % within minutes, and the latency of models on PyTorch and OpenVINO with it. Runs are therefore compared in units of this
computation: for unchanged code, false positives (slower or faster) fell from 22 % to 0.4 % of cells (docs/gate.md).
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
"""The lower quartile: short disturbances hardly affect the fastest quarter of the samples, but a slower machine does."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Yardstick:
    """A reading. ``name`` says what was computed: only readings with equal names can be compared. ``ms`` is its time in milliseconds."""

    name: str
    ms: float


def read(threads: int) -> Yardstick:
    """Repeat the computation for 30 ms on each of ``threads`` threads in parallel, as a model with so many threads would.

    It uses numpy's own loop (``einsum``), because a BLAS library would choose its own number of threads. The calling thread takes part,
    because the model ran there: other threads may be on other cores, which other work slows down.
    """
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        others = [pool.submit(_repeat) for _ in range(threads - 1)]
        samples = _repeat() + [sample for other in others for sample in other.result()]
    name = f"float32 {_SIDE} x {_SIDE} einsum, numpy {np.__version__}, {threads} threads"
    return Yardstick(name=name, ms=float(np.quantile(samples, _QUICKEST)) / 1e6)


def between(before: Yardstick, after: Yardstick) -> Yardstick:
    """The reading for the time between two readings: the faster one, since a disturbance may last as long as a reading."""
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
