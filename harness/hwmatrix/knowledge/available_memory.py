"""How much memory is free for a model here: of the host, within this container's limit, or of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwmatrix.knowledge.stand_ins import detect
from hwmatrix.records import Backend

if TYPE_CHECKING:
    from collections.abc import Mapping

DEVICES: Final = frozenset({Backend.CUDA, Backend.ROCM, Backend.MPS})
"""Backends whose tensors lie in a device's memory. Apple's GPUs share the host's."""


def memory_kind(backend: Backend) -> str:
    """Which memory a model's requirement is of: ``device`` or ``host``."""
    return "device" if backend in DEVICES else "host"


def available_memory_mb(backend: Backend) -> int | None:
    """MiB that a model could have here now; None where there is no such device, or it does not tell.

    Of several GPUs, the one with the most free memory counts.
    """
    if backend in {Backend.CUDA, Backend.ROCM}:
        return _of_gpus(detect(backend).features)
    if backend is Backend.MPS and not detect(backend).available:
        return None
    facts = detect(Backend.CPU).features
    known = [facts[name] for name in ("memory_left_mb", "available_memory_mb", "memory_limit_mb") if facts.get(name) is not None]
    return min(known, default=None)


def _of_gpus(features: Mapping[str, Any]) -> int | None:
    """What a GPU's driver tells: what is free, or what there is less what is used."""
    free = []
    for gpu in features.get("gpus", ()):
        total = gpu.get("memory_mb")
        left = gpu.get("free_mb", None if total is None else total - (gpu.get("used_mb") or 0))
        if left is not None:
            free.append(left)
    return max(free, default=None)
