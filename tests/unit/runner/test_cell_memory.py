"""A cell's host and device memory: what the model used, without the harness's own memory."""

from __future__ import annotations

import sys
from typing import Any

import fake_target
import numpy as np
import pytest
from fake_target import FakeTarget

pytest.importorskip("duckdb")

from hwmatrix.measure.memory import HostUse
from hwmatrix.runner.job import memory_found
from hwmatrix.targets.protocol import DeviceUse

HOST = HostUse(baseline_mb=100.0, load_peak_mb=150.0, run_peak_mb=180.0, peak_mb=180.0, uss_mb=42.0)
TOLD = {
    "baseline_mb": 100.0,
    "load_peak_mb": 150.0,
    "run_peak_mb": 180.0,
    "peak_mb": 180.0,
    "delta_mb": 80.0,
    "uss_mb": 42.0,
    "memory_detail": None,
}
GPU = DeviceUse(peak_mb=3.0, reserved_mb=4.0, other_processes=2)
METAL = DeviceUse(peak_mb=None, reserved_mb=5.0, other_processes=None)
NOTHING = HostUse(detail="not measured: this system keeps no high-water mark of a process")


@pytest.mark.parametrize(
    ("host", "use", "device"),
    [(HOST, None, (None, None)), (HOST, GPU, (3.0, 4.0)), (HOST, METAL, (None, 5.0)), (NOTHING, METAL, (None, 5.0))],
)
def test_the_recorded_values(host: HostUse, use: DeviceUse | None, device: tuple[float | None, float | None]) -> None:
    wanted = TOLD if host is HOST else dict.fromkeys(TOLD) | {"memory_detail": NOTHING.detail}
    assert memory_found(host, use) == {**wanted, "device_peak_mb": device[0], "device_reserved_mb": device[1]}


class Target(FakeTarget):
    """A model that takes 8 MiB to run. The harness's processing of its outputs takes 256 MiB."""

    def run(self) -> Any:
        self.called("run")
        return np.ones(2 << 20, dtype=np.float32)

    def outputs(self, result: Any) -> dict[str, Any]:
        self.called("outputs")
        copies = [result.astype(np.float64) for _ in range(16)]
        return {"y": copies[-1][:2].astype(np.float32)}

    def device_use(self) -> DeviceUse:
        """The memory of a device, whose peak grows while the outputs are copied to the host."""
        return DeviceUse(peak_mb=8.0 + 100 * ("outputs" in self.calls), reserved_mb=8.0, other_processes=1 + ("outputs" in self.calls))


def executed(monkeypatch: pytest.MonkeyPatch, *, expected: float = 1.0) -> dict[str, Any]:
    """The findings of a cell of that target, executed in this process."""
    facts: dict[str, Any] = fake_target.executed(monkeypatch, Target, expected=expected)[-1]["facts"]
    return facts


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_processing_of_outputs_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = executed(monkeypatch)
    assert memory["device_peak_mb"] == 8.0
    assert memory["peak_mb"] - memory["baseline_mb"] < 100


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_small_cell_does_not_have_the_peak_of_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = np.ones(64 << 20, dtype=np.float32)
    del before
    memory = executed(monkeypatch)
    assert memory["peak_mb"] - memory["baseline_mb"] < 100


def test_a_mismatch_also_has_memory_and_other_processes_are_counted_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = executed(monkeypatch, expected=2.0)
    assert facts["relative_error"] == pytest.approx(0.5)
    assert facts["device_peak_mb"] == 8.0
    assert facts["device_processes"] == 2
