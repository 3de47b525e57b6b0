"""What a worker does before it registers."""

from __future__ import annotations

import os
import signal
import types
from typing import TYPE_CHECKING, Any

from hwmatrix.host.cluster import preload
from hwmatrix.host.cluster.offers import CORES_VARIABLE

if TYPE_CHECKING:
    import pytest


def test_a_worker_keeps_to_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.sched_getaffinity(0)
    monkeypatch.setenv(CORES_VARIABLE, str(max(mine)))
    monkeypatch.setattr(preload, "offer", lambda _: types.SimpleNamespace(resources={}))
    before = signal.getsignal(signal.SIGINT)
    try:
        preload.dask_setup(types.SimpleNamespace(state=types.SimpleNamespace(total_resources={}, available_resources={})))  # type: ignore[arg-type]
        assert os.sched_getaffinity(0) == {max(mine)}
    finally:
        os.sched_setaffinity(0, mine)
        signal.signal(signal.SIGINT, before)


def test_a_worker_announces_its_resources_and_outlives_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = types.SimpleNamespace(resources={"hwmatrix-turn": 1.0, "hwmatrix-target-cpu": 1.0})
    monkeypatch.setattr(preload, "offer", lambda _: offer)
    worker: Any = types.SimpleNamespace(state=types.SimpleNamespace(total_resources={"GPU": 1.0}, available_resources={"GPU": 1.0}))
    before = signal.getsignal(signal.SIGINT)
    try:
        preload.dask_setup(worker)
        os.kill(os.getpid(), signal.SIGINT)  # would raise KeyboardInterrupt
        assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert worker.state.total_resources == {"GPU": 1.0, "hwmatrix-turn": 1.0, "hwmatrix-target-cpu": 1.0}
    assert worker.state.available_resources == worker.state.total_resources
