"""Which GPUs a program will see: environment variables hide and reorder them for CUDA and HIP, but not for their drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CUDA: Final = ("CUDA_VISIBLE_DEVICES",)
ROCM: Final = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""In the order in which they apply: the second variable's indices count the GPUs that the first has left."""
_HIP_ELSE: Final = "CUDA_VISIBLE_DEVICES"
"""The variable that HIP reads if HIP_VISIBLE_DEVICES is not set."""


def cuda_gpus(gpus: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> list[Mapping[str, Any] | None]:
    """Return the GPUs that CUDA shows, in its order; None for a part of a GPU (MIG), which the driver lists separately.

    The rules are those of NVIDIA's CUDA Programming Guide (5.2.1, CUDA_VISIBLE_DEVICES) and of ``torch.cuda``.
    """
    return _chosen(list(gpus), environment.get(CUDA[0]))


def rocm_gpus(gpus: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> list[Mapping[str, Any] | None]:
    """Return the GPUs that HIP shows, in its order (ROCm's documentation, "GPU isolation techniques")."""
    first, second = ROCM
    left = _chosen(list(gpus), environment.get(first))
    return _chosen(left, environment.get(second, environment.get(_HIP_ELSE)))


def _chosen(gpus: list[Any], variable: str | None) -> list[Any]:
    """Select GPUs by indices or UUID prefixes. The first invalid entry ends the list, and a repeated entry hides all GPUs."""
    if variable is None:
        return gpus
    found: list[Any] = []
    words = [word.strip() for word in variable.split(",")]
    if len(set(words)) < len(words):
        return []
    for word in words:
        if word.startswith("MIG-"):
            found.append(None)
        elif word.isdigit() and int(word) < len(gpus):
            found.append(gpus[int(word)])
        elif named := [gpu for gpu in gpus if word.startswith("GPU-") and str((gpu or {}).get("uuid")).startswith(word)]:
            found.append(named[0])
        else:
            break
    return found
