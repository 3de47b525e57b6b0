"""The speed of the machine itself while a cell is timed: the time of a fixed computation, repeated between the cell's samples.

A machine's speed changes because of neighbors on the same host, heat and the CPU clock: on a virtual machine with two cores by 2 to 5 %
within minutes, and by 1.6 times for seconds while another machine uses the other half of the core. So the computation is timed during the
whole timing, and runs are compared only where it took about as long in both (``report/comparing.py``).
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np

_SIDE: Final = 96
"""Rows and columns: 0.9 million multiplications that stay in a core's own cache, about 0.1 ms."""
_PAUSE_NS: Final = 20_000_000
"""From one reading to the next: it takes about 2 % of the time."""
_REPETITIONS: Final = 3
"""Of a reading. The first one, which brings its matrices back into the cache, does not count."""
_QUICKEST: Final = 0.25
"""The lower quartile, as for the samples: short disturbances hardly affect the fastest quarter of the readings."""
NAME: Final = f"float32 {_SIDE} x {_SIDE} einsum between samples, numpy {np.__version__}"
"""What is computed: only readings with equal names can be compared."""


class Yardstick:
    """Readings beside the samples of a cell, on the thread that calls it. It uses numpy's own loop, which has no threads."""

    def __init__(self) -> None:
        self._left = ((np.arange(_SIDE * _SIDE, dtype=np.float32) % 7 - 3) / 7).reshape(_SIDE, _SIDE)
        self._result = np.empty_like(self._left)
        self._next = 0
        self._taken: list[int] = []

    def read(self) -> None:
        """Take a reading, unless the last one was a moment ago."""
        clock = time.perf_counter_ns
        if clock() < self._next:
            return
        for repetition in range(_REPETITIONS):
            start = clock()
            np.einsum("ij,kj->ik", self._left, self._left, out=self._result)
            if repetition:
                self._taken.append(clock() - start)
        self._next = clock() + _PAUSE_NS

    @property
    def ms(self) -> float:
        """The lower quartile of the readings so far, in milliseconds."""
        return float(np.quantile(self._taken, _QUICKEST)) / 1e6
