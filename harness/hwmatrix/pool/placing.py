"""A model on a device: how much memory it takes, and moving it there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import UnsupportedError
from hwmatrix.pool.devices import HOST
from hwmatrix.records import Backend

if TYPE_CHECKING:
    from hwmatrix.pool.devices import Device

MIB: Final = 2**20


def is_module(model: object) -> bool:
    """Whether it is a PyTorch module. PyTorch is not imported for this: if it is not loaded, nothing can be one."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def is_spread(model: object) -> bool:
    """Whether its constructor placed it with ``device_map``, which transformers and accelerate record in the model."""
    return hasattr(model, "hf_device_map")


def tensor_mb(module: Any, hardware: str) -> dict[str, float]:
    """The storage of a module's parameters and buffers in MiB, by memory. Storage that several of them share (tied weights) counts once.

    ``hardware`` is the kind of the GPUs: PyTorch calls those of ROCm ``cuda`` too. A tensor on the meta device takes no memory.
    """
    storages: dict[tuple[str, int], int] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        place = tensor.device
        if place.type != "meta":
            memory = f"{hardware}:{place.index}" if place.type == "cuda" else HOST
            try:
                storage = tensor.untyped_storage()
                storages[memory, storage.data_ptr()] = storage.nbytes()
            except (RuntimeError, NotImplementedError):  # sparse tensors and some subclasses have no storage of their own
                dense = tensor.coalesce().values() if tensor.is_sparse else tensor
                storages[memory, -id(tensor)] = dense.numel() * dense.element_size()
    sizes: dict[str, float] = {}
    for (memory, _), size in storages.items():
        sizes[memory] = sizes.get(memory, 0.0) + size / MIB
    return sizes


def move(model: Any, device: Device) -> Any:
    """The model on a device: moved by its own method ``to``, if it has one and PyTorch supports the device; else unchanged.

    A model that its constructor spread over devices is left there.

    Raises:
        UnsupportedError: it is a PyTorch module, and PyTorch does not support the device: the module would silently run on the CPU.
    """
    if device.torch_name is None and is_module(model):
        message = f"PyTorch does not support {device.hardware}, and the constructor returned a PyTorch module"
        raise UnsupportedError(message, needs=("PyTorch",))
    to = getattr(model, "to", None)
    if device.torch_name is None or is_spread(model) or not callable(to):
        return model
    moved = to(device.torch_name)
    return model if moved is None else moved


def give_back(device: Device) -> None:
    """Release PyTorch's cached but unused GPU memory, so that others can use it."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and device.torch_name is not None and device.hardware != Backend.CPU:
        runtime = torch.mps if device.hardware == Backend.MPS else torch.cuda
        if runtime.is_available():
            runtime.empty_cache()
