"""How much memory a model uses, and how that was measured."""

from __future__ import annotations

import dataclasses
import enum
import sys
from typing import TYPE_CHECKING, Any, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

HOST: Final = "host"
"""The memory of this machine, which every device without memory of its own uses: also Apple's GPUs."""
MIB: Final = 2**20


class Measure(enum.StrEnum):
    """How a model's memory is known, the most reliable first."""

    TENSORS = "tensors"  # the storage of its parameters and buffers: exact for these, and nothing else
    GIVEN = "given"  # what the caller said
    RESIDENT = "resident"  # by how much the process grew while it was constructed: see Footprint
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Footprint:
    """A model's memory in MiB; None if it is not known, and then it is counted nowhere.

    ``resident`` is a rough figure: whatever else the process allocated meanwhile is in it, also for other models that were being
    constructed; memory that was free before and used again is not, and neither are pages of a file that were not read yet.
    """

    mb: float | None
    measure: Measure


def is_module(model: object) -> bool:
    """Whether it is a PyTorch module. PyTorch is not imported for the question: without it nothing can be one."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def tensor_mb(model: Any) -> float:
    """The storage of a module's parameters and buffers in MiB. Storage that several of them share (tied weights) counts once."""
    storages: dict[tuple[str, int], int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "meta":
            continue  # it has a shape and no memory
        storage = tensor.untyped_storage()
        storages[str(tensor.device), storage.data_ptr()] = storage.nbytes()
    return sum(storages.values()) / MIB


def footprint(model: object, *, given_mb: float | None, grown_mb: float | None) -> Footprint:
    """A model's memory by the most reliable way there is."""
    if is_module(model):
        return Footprint(mb=tensor_mb(model), measure=Measure.TENSORS)
    if given_mb is not None:
        return Footprint(mb=float(given_mb), measure=Measure.GIVEN)
    if grown_mb is not None and grown_mb > 0:
        return Footprint(mb=grown_mb, measure=Measure.RESIDENT)
    return Footprint(mb=None, measure=Measure.UNKNOWN)


def grown(construct: Callable[[], Any], resident_mb: Callable[[], float]) -> tuple[Any, float]:
    """Construct something; give it, and by how many MiB the process grew meanwhile."""
    before = resident_mb()
    model = construct()
    return model, resident_mb() - before


def resident_mb() -> float:
    """The resident memory of this process in MiB."""
    return float(psutil.Process().memory_info().rss) / MIB
