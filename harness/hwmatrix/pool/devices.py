"""Devices of the resource pool: what callers may request, what is available, and which GPU has room."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import TYPE_CHECKING, Any, Final, Protocol

import psutil

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.hardware.api import HardwareDetector
from hwmatrix.hardware.detector import detect
from hwmatrix.knowledge.priorities import backend_of
from hwmatrix.records import Backend, Detection
from hwmatrix.records.backends import descriptor_of, descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


HOST: Final = "host"
"""The host's memory, which every device without its own memory uses, Apple's GPUs included."""


class Detector(Protocol):
    """The interface of a detector: ``hwmatrix.hardware.api.HardwareDetector`` is one."""

    def detect(self) -> Mapping[str, Detection]:
        """The detected hardware, by hardware type."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """One device: a kind of hardware, and the index of the GPU if there may be several."""

    hardware: str
    index: int | None = None

    def __str__(self) -> str:
        return self.hardware if self.index is None else f"{self.hardware}:{self.index}"

    @property
    def torch_name(self) -> str | None:
        """PyTorch's name for it, or None if PyTorch does not support it."""
        name = descriptor_of(self.hardware).torch_device
        return name if name is None or self.index is None else f"{name}:{self.index}"

    @property
    def memory(self) -> str:
        """The memory it uses: its own, or the host's."""
        return str(self) if has_several(self.hardware) else HOST


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU's index and its memory in MiB; None if the driver does not report it."""

    index: int
    total_mb: float | None
    free_mb: float | None


def device_of(word: str) -> Device:
    """The device with a name such as ``cpu``, ``cuda`` or ``cuda:1``.

    Raises:
        ConfigError: there is no such device.
    """
    kind, colon, number = word.partition(":")
    backend = backend_of(kind)
    if not colon:
        return Device(hardware=backend.value)
    if not has_several(backend) or not (number.isascii() and number.isdigit()):
        several = [each.name for each in descriptors() if each.several]
        hint = f"use {', '.join(f'{each}:0' for each in sorted(several))} for the first GPU, or a kind alone"
        raise ConfigError([Problem(where="device", what=f"{word!r} is not a known device", hint=hint)])
    return Device(hardware=backend.value, index=int(number))


def has_several(hardware: str) -> bool:
    """Whether a machine may have several devices of this kind, by index, each with its own memory."""
    return descriptor_of(hardware).several


class Machine:
    """This machine: which hardware is available, from the detector; and the free memory of GPUs, queried each time.

    ``probe`` detects one kind of hardware now. The detector caches its answers, but free memory changes.
    """

    def __init__(self, detector: Detector | None = None, *, probe: Callable[[Backend], Detection] = detect) -> None:
        self._detector = detector
        self._probe = probe

    def absence(self, hardware: str) -> str | None:
        """Why this kind of hardware is not available, or None if it is. The CPU always is."""
        if hardware == Backend.CPU:
            return None
        if self._detector is None:
            self._detector = HardwareDetector()
        found = self._detector.detect().get(hardware)
        if found is None:
            return "the detector did not report it"
        return None if found.available else found.reason or "no reason is given"

    def gpus(self, hardware: str) -> tuple[Gpu, ...]:
        """The GPUs of a kind by PyTorch's indexes, with their free memory now. Empty if it is not known.

        If ``CUDA_VISIBLE_DEVICES`` hides or reorders GPUs, the driver's indexes differ from PyTorch's. So GPUs are matched by UUID.
        """
        facts = self._probe(Backend(hardware)).features.get("gpus") or []
        seen = _torch_uuids()
        if seen is None:
            return tuple(_gpu(index, gpu) for index, gpu in enumerate(facts))
        by_uuid = {uuid: gpu for gpu in facts for uuid in seen if uuid and str(gpu.get("uuid") or "").endswith(uuid)}
        same_count = len(seen) == len(facts)
        return tuple(_gpu(index, by_uuid.get(uuid) or (facts[index] if same_count else {})) for index, uuid in enumerate(seen))

    def total_mb(self, memory: str) -> float | None:
        """The size of a memory in MiB, or None if it is not known. For the host, a lower cgroup limit counts instead."""
        if memory != HOST:
            device = device_of(memory)
            return next((gpu.total_mb for gpu in self.gpus(device.hardware) if gpu.index == device.index), None)
        limit = self._probe(Backend.CPU).features.get("memory_limit_mb")
        total = psutil.virtual_memory().total / 2**20
        return min(total, float(limit)) if limit else total


def _gpu(index: int, facts: Mapping[str, Any]) -> Gpu:
    return Gpu(index=index, total_mb=facts.get("memory_mb"), free_mb=facts.get("free_mb"))


def _torch_uuids() -> list[str] | None:
    """The UUIDs of the GPUs that PyTorch sees, in its order; None if PyTorch is not installed or sees none."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    return [str(getattr(torch.cuda.get_device_properties(index), "uuid", "")) for index in range(torch.cuda.device_count())]
