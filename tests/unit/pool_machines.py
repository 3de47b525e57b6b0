"""Fake machines, models and clocks for tests of the resource pool."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from hwmatrix.pool.devices import Gpu, Machine
from hwmatrix.pool.pool import ResourcePool
from hwmatrix.records import Detection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.pool.settings import PoolSettings


class Model:
    """A model that records where it was moved with ``to``, and may refuse a device."""

    def __init__(self, part: Any = None, refuses: Mapping[str, Exception] | None = None) -> None:
        self.part = part
        self.moves: list[str] = []
        self._refuses = dict(refuses or {})

    def to(self, device: str) -> Model:
        """Like the ``to`` of a PyTorch module."""
        self.moves.append(device)
        if device in self._refuses:
            raise self._refuses[device]
        return self


@dataclasses.dataclass
class Clock:
    """A clock that a test sets."""

    minutes: float = 0.0

    def __call__(self) -> float:
        return self.minutes * 60


def detection(hardware: str, *, reason: str | None = None, **features: Any) -> Detection:
    """The detection of a kind of hardware; with ``reason``, it is unavailable."""
    here = reason is None
    return Detection(
        hardware_type=hardware,
        available=here,
        name="a test's" if here else None,
        features=features,
        reason=reason,
        detected_at="2026-01-01",
    )


class FakeMachine(Machine):
    """A machine with GPUs of given memory (MiB), of which other programs use ``used``, and with other kinds of hardware."""

    def __init__(self, *, cuda: Sequence[float | None] = (), others: Sequence[str] = (), host_mb: float = 10_000.0) -> None:
        self.total = {"cuda": list(cuda)}
        self.used: dict[int, float] = {}
        self.host_mb = host_mb
        self.here = {"cpu", *others, *(["cuda"] if cuda else [])}
        self.asked: list[str] = []
        super().__init__(self)

    def detect(self) -> dict[str, Detection]:
        """Detect its hardware: the machine is its own detector."""
        self.asked.append("detect")
        kinds = ("cpu", "cuda", "rocm", "mps", "openvino", "qnn", "webgpu", "webnn", "onnxruntime")
        return {kind: detection(kind, reason=None if kind in self.here else f"no {kind} here") for kind in kinds}

    def gpus(self, hardware: str) -> tuple[Gpu, ...]:
        """The GPUs of the test."""
        self.asked.append(hardware)
        return tuple(
            Gpu(index=index, total_mb=total, free_mb=None if total is None else total - self.used.get(index, 0.0))
            for index, total in enumerate(self.total.get(hardware, ()))
        )

    def total_mb(self, memory: str) -> float | None:
        """The host's memory, or a GPU's."""
        return self.host_mb if memory == "host" else super().total_mb(memory)


def pool_of(machine: Machine | None = None, settings: PoolSettings | None = None, clock: Clock | None = None) -> ResourcePool:
    """A pool on the given machine, by default one without a GPU."""
    return ResourcePool(settings, machine=machine or FakeMachine(), clock=clock or Clock())
