"""What a cell keeps of the host's memory and of its device, as far as each tells."""

from __future__ import annotations

import types
from typing import Any

import pytest

pytest.importorskip("duckdb")

from hwmatrix.measure.memory import Resident
from hwmatrix.runner import cell
from hwmatrix.targets.protocol import DeviceUse

HOST = {"baseline_mb": 100.0, "load_peak_mb": 150.0, "peak_mb": 180.0, "delta_mb": 80.0, "uss_mb": 42.0}
GPU = DeviceUse(peak_mb=3.0, reserved_mb=4.0, other_processes=2)
METAL = DeviceUse(peak_mb=None, reserved_mb=5.0, other_processes=None)


@pytest.mark.parametrize(
    ("on_linux", "use", "memory", "processes"),
    [
        (True, None, {**HOST, "device_peak_mb": None, "device_reserved_mb": None}, None),
        (True, GPU, {**HOST, "device_peak_mb": 3.0, "device_reserved_mb": 4.0}, 2),
        (False, METAL, {**dict.fromkeys(HOST), "device_peak_mb": None, "device_reserved_mb": 5.0}, None),
        (False, None, None, None),
    ],
)
def test_what_is_kept(
    monkeypatch: pytest.MonkeyPatch,
    on_linux: bool,  # noqa: FBT001
    use: DeviceUse | None,
    memory: dict[str, float | None] | None,
    processes: int | None,
) -> None:
    monkeypatch.setattr(cell.memory, "resident", lambda: Resident(now_mb=120.0, peak_mb=180.0) if on_linux else None)
    monkeypatch.setattr(cell.memory, "unique_mb", lambda: 42.0)
    target: Any = types.SimpleNamespace(device_use=lambda: use)
    facts = cell.Facts(lambda _message: None)
    before, loaded = (Resident(now_mb=100.0, peak_mb=100.0), Resident(now_mb=110.0, peak_mb=150.0)) if on_linux else (None, None)
    cell._account(target, before, loaded, facts)
    assert facts.values["memory"] == memory
    assert facts.values["device_processes"] == processes
