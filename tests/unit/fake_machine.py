"""A fake machine, whose hardware detectors replace this machine's."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from typing import TYPE_CHECKING, Any

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import api, cache, detector
from hwmatrix.records import Backend
from hwmatrix.records.backends import Descriptor, descriptor_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pytest

GPU = {
    "index": 0,
    "name": "B200",
    "uuid": "GPU-1",
    "compute_capability": "10.0",
    "memory_mb": 183359,
    "used_mb": 10,
    "free_mb": 183349,
    "processes": 1,
}


class Machine:
    """A machine with the hardware that a test chooses. It counts how often each kind is queried."""

    def __init__(self) -> None:
        self.here: dict[Backend, tuple[str, dict[str, Any]]] = {Backend.CPU: ("a CPU", {"available_memory_mb": 100})}
        self.asked: list[str] = []
        self.unprobed: set[Backend] = set()
        self.used_mb = 10

    def module(self, kind: Backend) -> types.ModuleType:
        module = types.ModuleType(f"detector of {kind.value}")

        def detect() -> tuple[str, dict[str, Any]]:
            self.asked.append(kind.value)
            if kind not in self.here:
                raise UnavailableError(f"no {kind.value}", error_type="x")
            return self.here[kind]

        def refreshed(facts: dict[str, Any]) -> dict[str, Any]:
            self.asked.append(f"{kind.value} again")
            if kind not in self.here:
                raise UnavailableError("gone", error_type="x")
            return facts | {"gpus": [gpu | {"used_mb": self.used_mb} for gpu in facts.get("gpus", [])]}

        def installed() -> tuple[str, dict[str, Any]]:
            if kind in self.unprobed:
                raise UnavailableError("not probed", error_type="x")
            return detect()

        module.detect, module.installed = detect, installed  # type: ignore[attr-defined]
        module.refreshed = refreshed  # type: ignore[attr-defined]
        return module

    def take(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


@contextlib.contextmanager
def installed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Machine]:
    """Replace this machine by a fake one, with a separate cache folder and without PyTorch."""
    machine = Machine()
    for kind in Backend:
        name = f"hwmatrix_test_detector_{kind.value}"
        monkeypatch.setitem(sys.modules, name, machine.module(kind))
    detected_by(monkeypatch, {kind: f"hwmatrix_test_detector_{kind.value}" for kind in Backend})
    monkeypatch.setattr(cache, "current_key", lambda: {"boot": "1", "machine": "m"})
    monkeypatch.setattr(api.torch_build, "torch_build", lambda: None)
    monkeypatch.setenv("HWMATRIX_CACHE", str(folder))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    api._shared.cache_clear()
    try:
        yield machine
    finally:
        api._shared.cache_clear()


def detected_by(monkeypatch: pytest.MonkeyPatch, modules: Mapping[str, str]) -> None:
    """Use these modules for detection, instead of those that the descriptors name."""

    def described(kind: str) -> Descriptor:
        found = descriptor_of(kind)
        module = modules.get(kind, found.hardware.detector)
        return dataclasses.replace(found, hardware=dataclasses.replace(found.hardware, detector=module))

    monkeypatch.setattr(detector, "descriptor_of", described)


def give(machine: Machine, *kinds: Backend) -> None:
    for kind in kinds:
        facts = {"gpus": [GPU], "driver": "610.43", "cuda": "13.3", "cudnn": "9.20.0.48"} if kind is Backend.CUDA else {}
        machine.here[kind] = (f"a {kind.value}", facts)
