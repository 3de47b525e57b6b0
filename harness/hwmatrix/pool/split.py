"""Splits a PyTorch module over several GPUs with the library accelerate, if it fits on none of them alone.

Which layers go where is accelerate's to say (``infer_auto_device_map``), and so is moving what they give each other
(``dispatch_model``).
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from hwmatrix.pool.memory import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping


def can_split() -> bool:
    """Whether accelerate is installed."""
    return importlib.util.find_spec("accelerate") is not None


def plan_split(module: Any, room_mb: Mapping[int, float]) -> dict[str, int] | None:
    """The GPU of each part of a module, by the parts' names and PyTorch's numbers; None if all of them together have no room for it.

    ``room_mb`` is the room on each GPU in MiB. Blocks that the module itself wants whole (``_no_split_modules``) stay whole.
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
