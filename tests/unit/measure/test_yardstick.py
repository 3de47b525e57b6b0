"""The machine's own speed: a fixed computation, whose name ensures that only equal ones are compared."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hwmatrix.measure import yardstick
from hwmatrix.measure.yardstick import Yardstick


@pytest.mark.parametrize("threads", [1, 2])
def test_a_reading_s_name_has_everything_that_affects_it(threads: int) -> None:
    reading = yardstick.read(threads)
    assert reading.name == f"float32 96 x 96 einsum, numpy {np.__version__}, {threads} threads"
    assert 0 < reading.ms < 1000


@pytest.mark.parametrize("threads", [1, 3])
def test_it_computes_on_every_thread_including_this_one(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    together = threading.Barrier(threads)  # passes only if all threads are here at the same time
    seen: list[threading.Thread] = []

    def repeat() -> list[int]:
        together.wait(timeout=60)
        seen.append(threading.current_thread())
        return [5_000_000]

    monkeypatch.setattr(yardstick, "_repeat", repeat)
    assert yardstick.read(threads).ms == 5
    assert len(set(seen)) == threads
    assert threading.current_thread() in seen


def test_a_slower_computation_has_a_longer_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = yardstick.read(1)
    monkeypatch.setattr(yardstick, "_SIDE", 4 * yardstick._SIDE)
    assert yardstick.read(1).ms > 4 * quick.ms


def test_two_readings_represent_the_time_between_them() -> None:
    quick, disturbed = Yardstick(name="n", ms=0.2), Yardstick(name="n", ms=0.4)
    assert yardstick.between(quick, disturbed) == yardstick.between(disturbed, quick) == quick
