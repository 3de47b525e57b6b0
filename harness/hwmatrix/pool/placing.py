"""A model on a device: how much memory it takes, moving it there, and spreading it over several GPUs."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Final

import psutil

from hwmatrix.errors import UnsupportedError
from hwmatrix.records import Backend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.pool.devices import Device

MIB: Final = 2**20


class Measure(enum.StrEnum):
    """How a model's memory was determined, the most reliable way first."""

    TENSORS = "tensors"  # the storage of its parameters and buffers: exact, but nothing else is counted
    GIVEN = "given"  # what the caller said
    RESIDENT = "resident"  # the growth of the process during construction: rough, because other threads allocate too
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Footprint:
    """A model's memory in MiB; None if it is not known, and then it is not counted."""

    mb: float | None
    measure: Measure


def footprint(model: object, *, given_mb: float | None, grown_mb: float | None) -> Footprint:
    """A model's memory, by the most reliable method available. ``grown_mb`` is the growth of the process during construction."""
    if is_module(model):
        return Footprint(mb=tensor_mb(model), measure=Measure.TENSORS)
    if given_mb is not None:
        return Footprint(mb=float(given_mb), measure=Measure.GIVEN)
    if grown_mb is not None and grown_mb > 0:
        return Footprint(mb=grown_mb, measure=Measure.RESIDENT)
    return Footprint(mb=None, measure=Measure.UNKNOWN)


def is_module(model: object) -> bool:
    """Whether it is a PyTorch module. PyTorch is not imported for this: if it is not loaded, nothing can be one."""
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


def resident_mb() -> float:
    """The resident memory of this process in MiB."""
    return float(psutil.Process().memory_info().rss) / MIB


def move(model: Any, device: Device) -> Any:
    """The model on a device: moved by its own method ``to``, if it has one and PyTorch supports the device; else unchanged.

    Raises:
        UnsupportedError: it is a PyTorch module, and PyTorch does not support the device: the module would silently run on the CPU.
    """
    if device.torch_name is None:
        if is_module(model):
            raise not_driven(device)
        return model
    to = getattr(model, "to", None)
    moved = to(device.torch_name) if callable(to) else None
    return model if moved is None else moved


def not_driven(device: Device) -> UnsupportedError:
    """Why a PyTorch module cannot be on a device."""
    message = f"PyTorch does not support {device.hardware}, and the constructor returned a PyTorch module"
    return UnsupportedError(message, needs=("PyTorch",))


def give_back(device: Device) -> None:
    """Release PyTorch's cached but unused GPU memory, so that others can use it."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and device.torch_name is not None and device.hardware != Backend.CPU:
        runtime = torch.mps if device.hardware == Backend.MPS else torch.cuda
        if runtime.is_available():
            runtime.empty_cache()


def can_split() -> bool:
    """Whether accelerate is installed: it assigns the layers of a split model to GPUs and moves them."""
    return importlib.util.find_spec("accelerate") is not None


def plan_split(module: Any, room_mb: Mapping[int, float]) -> dict[str, int] | None:
    """The GPU index of each part of a module, by the part's name; None if the module does not fit all GPUs together.

    ``room_mb`` is the room on each GPU in MiB. Blocks listed in the module's ``_no_split_modules`` are not split.
    """
    accelerate: Any = importlib.import_module("accelerate")
    limits = {index: int(mb * MIB) for index, mb in room_mb.items() if mb > 0}
    if not limits:
        return None
    whole = getattr(module, "_no_split_modules", None)
    found = accelerate.infer_auto_device_map(module, max_memory=limits, no_split_module_classes=sorted(whole) if whole else None)
    return found if all(place in limits for place in found.values()) else None


def split_mb(module: Any, planned: Mapping[str, int]) -> dict[int, float]:
    """What the parameters and buffers of a module take of each GPU, in MiB. Tied weights count once."""
    taken = dict.fromkeys(planned.values(), 0.0)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        part = max((part for part in planned if part in {"", name} or name.startswith(f"{part}.")), key=len)
        taken[planned[part]] += tensor.nbytes / MIB
    return taken


def split(module: Any, planned: Mapping[str, int]) -> Any:
    """The module, spread as planned."""
    accelerate: Any = importlib.import_module("accelerate")
    return accelerate.dispatch_model(module, device_map=dict(planned))
