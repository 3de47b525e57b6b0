"""Holds inputs that describe sizes (patch grids, image sizes, audio lengths) constant while a model is traced.

Models read such inputs as Python numbers, for slices and loops. A graph can express neither if the numbers are data. An export has fixed
shapes anyway, and these inputs only describe shapes. With their values known, everything that depends on them alone is computed during
the export and left out of the graph.
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

_EXTENTS: Final = re.compile(r"(?:^|_)(?:grid_thw|grid_hws|sizes?|shapes?|lens|lengths|(?:features?|pixel)_(?:attention_)?mask)$")
"""Names of size inputs in transformers (5.23): ``image_grid_thw``, ``target_sizes``, ``spatial_shapes``, ``feature_lens``; and of masks
from which models compute sizes: ``feature_attention_mask``."""


def extents(inputs: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """The names of the inputs that describe sizes. Only integer inputs can."""
    return tuple(name for name, value in inputs.items() if _EXTENTS.search(name) and not value.is_floating_point())


@contextlib.contextmanager
def held(model: torch.nn.Module, fixed: Mapping[str, Any]) -> Iterator[None]:
    """Call the model without the ``fixed`` inputs; it gets the values given here.

    What depends on them alone is really computed, even while the model is traced.
    """
    forward = model.forward
    own = {name: _clone_of(value) for name, value in fixed.items()}  # cloned outside the trace; a model may change them in place

    @functools.wraps(forward)
    def with_extents(*args: Any, **kwargs: Any) -> Any:
        with _precomputing(own):
            return forward(*args, **kwargs, **own)

    signature = inspect.signature(forward)
    left = [parameter for name, parameter in signature.parameters.items() if name not in own]
    with_extents.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
    model.forward = with_extents
    try:
        yield
    finally:
        model.forward = forward


def _clone_of(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def _precomputing(fixed: Mapping[str, Any]) -> Any:
    """A torch mode that computes functions of known tensors only, and then knows their results as well; also what numbers alone make.

    Raises (within it):
        RuntimeError: a known tensor would be overwritten in place with unknown values.
    """
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils._pytree import tree_leaves

    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    beginnings = (torch.arange, torch.tensor)  # others, such as zeros, make buffers that models write unknown values into

    def tensors(tree: Any) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]

    class Computing(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.known = {id(tensor): tensor for tensor in tensors(list(fixed.values()))}  # kept alive, so that no id is reused

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            taken = tensors((args, kwargs or {}))
            begins = func in beginnings and not any(isinstance(leaf, symbols) for leaf in tree_leaves((args, kwargs)))
            if all(id(tensor) in self.known for tensor in taken) if taken else begins:
                with _disable_current_modes(), torch._C.DisableTorchFunction():  # noqa: SLF001 - as torch's own modes do
                    result = func(*args, **(kwargs or {}))
                self.known.update({id(tensor): tensor for tensor in tensors(result)})
                return result
            if _is_in_place(func) and taken and id(taken[0]) in self.known:
                # Not a TypeError: if an operator raises one, Python tries the reflected operator.
                raise RuntimeError(f"{func.__name__} writes unknown values into a tensor that depends on input sizes alone")
            return func(*args, **(kwargs or {}))

    return Computing()


def _is_in_place(func: Any) -> bool:
    """Whether a torch function changes its first argument in place: ``add_``, ``__setitem__``, ``__iadd__``."""
    name = str(getattr(func, "__name__", ""))
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in {"__index__", "__int__", "__invert__"})
    return name.endswith("_")
