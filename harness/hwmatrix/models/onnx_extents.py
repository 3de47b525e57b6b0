"""Holds inputs that describe sizes (patch grids, image sizes, audio lengths) constant while a model is traced.

Models read such inputs as Python numbers, to slice and to loop, and a graph can hold neither where the numbers are data. The shapes of
an export are fixed in any case, and these inputs say nothing but shapes: with their values known, whatever follows from them alone is
computed at the export, and the graph begins behind it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

_EXTENTS: Final = re.compile(r"(?:^|_)(?:grid_thw|grid_hws|sizes?|shapes?|lens|lengths)$")
"""How transformers (5.23) names inputs that tell extents: ``image_grid_thw``, ``target_sizes``, ``spatial_shapes``, ``feature_lens``."""


def extents(inputs: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """The inputs that tell extents, by their names; only whole numbers do."""
    return tuple(name for name, value in inputs.items() if _EXTENTS.search(name) and not value.is_floating_point())


@contextlib.contextmanager
def held(model: torch.nn.Module, fixed: Mapping[str, Any]) -> Iterator[None]:
    """Within it the model is called without these inputs, and gets them with the values that are given here.

    What is computed from them alone is computed, also while the model is traced.
    """
    forward = model.forward
    own = {name: _copied(value) for name, value in fixed.items()}  # here, not while a tracer looks on; a model may change them in place

    @functools.wraps(forward)
    def with_extents(*args: Any, **kwargs: Any) -> Any:
        with _computing(own):
            return forward(*args, **kwargs, **own)

    signature = inspect.signature(forward)
    left = [parameter for name, parameter in signature.parameters.items() if name not in own]
    with_extents.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
    model.forward = with_extents
    try:
        yield
    finally:
        model.forward = forward


def _copied(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def _computing(fixed: Mapping[str, Any]) -> Any:
    """A mode of torch in which functions of nothing but known tensors are computed, and their results are known as well.

    Raises (within it):
        RuntimeError: a known tensor would get values that are not known: it has left the graph.
    """
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils._pytree import tree_leaves

    def tensors(tree: Any) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]

    class Computing(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.known = {id(tensor): tensor for tensor in tensors(list(fixed.values()))}  # kept, so that no identity is used twice

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            taken = tensors((args, kwargs or {}))
            if taken and all(id(tensor) in self.known for tensor in taken):
                with _disable_current_modes(), torch._C.DisableTorchFunction():  # noqa: SLF001 - as torch's own modes do
                    result = func(*args, **(kwargs or {}))
                self.known.update({id(tensor): tensor for tensor in tensors(result)})
                return result
            if _changes(func) and taken and id(taken[0]) in self.known:
                # No TypeError: Python would take that of an operator as a reason to try another.
                raise RuntimeError(f"{func.__name__} changes a tensor that follows from extents alone by one that does not")
            return func(*args, **(kwargs or {}))

    return Computing()


def _changes(func: Any) -> bool:
    """Whether a function of torch changes its first argument: ``add_``, ``__setitem__``, ``__iadd__``."""
    name = str(getattr(func, "__name__", ""))
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in {"__index__", "__int__", "__invert__"})
    return name.endswith("_")
