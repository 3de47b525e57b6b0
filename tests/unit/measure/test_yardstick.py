"""The machine's own speed: a fixed computation between the samples of a cell."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hwmatrix.measure.latency import measure
from hwmatrix.measure.yardstick import NAME, Yardstick
from hwmatrix.records import MeasureRule

if TYPE_CHECKING:
    import pytest

MS = 1_000_000


class Machine:
    """A fake clock, on which the computation takes ``slow`` milliseconds from ``since`` on, and one before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, slow: int = 1, since: int = 0) -> None:
        self.now, self.slow, self.since, self.computed = 0, slow, since, 0
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now / 1e9)
        monkeypatch.setattr(np, "einsum", self.compute)

    def compute(self, *_operands: Any, **_options: Any) -> None:
        self.computed += 1
        self.now += MS * (self.slow if self.now >= self.since * MS else 1)

    def call(self) -> None:
        self.now += 5 * MS


def test_it_is_read_between_the_samples_and_is_no_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, yardstick = Machine(monkeypatch), Yardstick()
    rule = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.3, min_samples=30, max_s=3.0)
    timing = measure(machine.call, rule, between=yardstick.read)
    assert set(timing.wall_ns) == {5 * MS}
    assert 10 <= machine.computed < len(timing.wall_ns) * 3  # every 20 ms, not at every sample
    assert yardstick.ms == 1


def test_it_shows_a_disturbance_that_begins_after_the_first_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """One reading before the timing, and one after it, could both miss it."""
    machine, yardstick = Machine(monkeypatch, slow=2, since=20), Yardstick()
    rule = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.3, min_samples=30, max_s=3.0)
    measure(machine.call, rule, between=yardstick.read)
    assert yardstick.ms == 2


def test_a_reading_is_of_this_machine() -> None:
    yardstick = Yardstick()
    yardstick.read()
    assert 0 < yardstick.ms < 1000
    assert np.__version__ in NAME
