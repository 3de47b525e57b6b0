"""Functions that ExecuTorch computes incorrectly or lacks, in terms of others, with the same results up to rounding.

They change a model, so only the retry of a failed cell uses them (docs/preparation.md).
"""

from __future__ import annotations

import inspect
import math
import operator
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Tensor = torch.Tensor


class Replacing(TorchFunctionMode):
    """Traces models with the functions below instead of PyTorch's, and adds the names of those that it replaces to ``replaced``."""

    def __init__(self, replaced: set[str]) -> None:
        super().__init__()
        self._replaced = replaced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the replacement if there is one for these arguments."""
        options = kwargs or {}
        replacement = _REPLACED.get(func)
        if replacement is None or not _takes(replacement, args, options):
            return func(*args, **options)
        made = replacement(*args, **options)
        if made is NotImplemented:
            return func(*args, **options)
        self._replaced.add(str(replacement.__name__).lstrip("_"))
        return made


def _takes(replacement: Callable[..., Any], args: Any, options: Any) -> bool:
    """Whether a replacement knows these arguments: PyTorch's functions have others too, such as ``input``, ``other`` and ``out``."""
    try:
        inspect.signature(replacement).bind(*args, **options)
    except TypeError:
        return False
    return True


def _conv3d(  # noqa: PLR0917 - the arguments of PyTorch's function
    values: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """A convolution of volumes as a sum of convolutions of their slices. ExecuTorch's kernel knows one and two dimensions only (0x12)."""
    if values.dim() != 5 or (isinstance(padding, str) and padding != "valid"):  # noqa: PLR2004 - batch, channels, three dimensions
        return NotImplemented
    step, pad, spread = _three(stride), _three(0 if isinstance(padding, str) else padding), _three(dilation)
    values = functional.pad(values, (0, 0, 0, 0, pad[0], pad[0])) if pad[0] else values
    rows, channels, depth, height, width = values.shape
    deep = weight.shape[2]
    made = (depth - spread[0] * (deep - 1) - 1) // step[0] + 1
    total: Tensor | None = None
    for place in range(deep):
        begin = place * spread[0]
        slices = values[:, :, begin : begin + step[0] * (made - 1) + 1 : step[0]].transpose(1, 2)
        flat = slices.reshape(rows * made, channels, height, width)
        part = functional.conv2d(flat, weight[:, :, place], None, step[1:], pad[1:], spread[1:], groups)
        total = part if total is None else total + part
    assert total is not None  # noqa: S101 - a kernel has at least one slice
    result = total.reshape(rows, made, *total.shape[1:]).transpose(1, 2)
    return result if bias is None else result + bias.reshape(1, -1, 1, 1, 1)


def _three(value: Any) -> Sequence[int]:
    """A size of each of three dimensions."""
    return (value,) * 3 if isinstance(value, int) else tuple(value) * (3 // len(value))


def _gelu(values: Tensor, *, approximate: str = "none") -> Any:
    """The approximation of GELU by tanh, written out. XNNPACK's delegate (ExecuTorch 1.5) computes the exact GELU instead (1.4e-4)."""
    if approximate != "tanh":
        return NotImplemented
    return 0.5 * values * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (values + 0.044715 * values * values * values)))


def _remainder(values: Any, divisor: Any) -> Any:
    """The remainder of whole numbers, with the sign of the divisor. ExecuTorch's kernel (1.5) gives it that of the number: -7 % 5 is -2."""
    if any((isinstance(each, torch.Tensor) and each.is_floating_point()) or isinstance(each, float) for each in (values, divisor)):
        return NotImplemented
    return values - torch.div(values, divisor, rounding_mode="floor") * divisor


def _max(values: Tensor, dim: Any = None, keepdim: Any = None) -> Any:
    """The largest values along an axis, which becomes the last one, is kept, and then removed.

    XNNPACK's partitioner (ExecuTorch 1.5) takes a maximum along any axis of four, and its own serializer then refuses those along the first
    two, and those that remove their axis.
    """
    if not isinstance(dim, int) or keepdim:
        return NotImplemented
    kept = torch.max(values.movedim(dim, -1), values.dim() - 1, keepdim=True)  # it refuses negative axes, too
    return torch.return_types.max((kept.values.squeeze(-1), kept.indices.squeeze(-1)))


def _sort(values: Tensor, dim: int = -1, descending: Any = None, *, stable: Any = None) -> Any:
    """All values as the largest or smallest ones in order: ExecuTorch (1.5) has a kernel for ``topk``, and none for ``sort``.

    Equal values may be in any order, as in a sort that is not stable; a stable one stays as it is.
    """
    length = values.shape[dim] if values.dim() else None
    if stable or not isinstance(length, int):
        return NotImplemented
    found = torch.topk(values, length, dim=dim, largest=bool(descending), sorted=True)
    return torch.return_types.sort((found.values, found.indices))


def _argsort(values: Tensor, dim: int = -1, descending: Any = None, *, stable: Any = None) -> Any:
    """Where these values are."""
    found = _sort(values, dim, descending, stable=stable)
    return found if found is NotImplemented else found.indices


def drop_shifts(module: torch.fx.GraphModule, replaced: set[str]) -> None:
    """Take the softmax of values instead of the values less their maximum, which is the same. Add its name to ``replaced`` if there is one.

    XNNPACK's delegate (ExecuTorch 1.5) computes the maximum, the difference and the softmax right, each by itself, and something else
    together: a relative error of 2.8.
    """
    kinds = (torch.ops.aten.softmax.int, torch.ops.aten._softmax.default)  # noqa: SLF001 - the operator's name
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in kinds:
            given = node.args[0]
            if _is_shifted(given, node.args[1]):
                node.replace_input_with(given, given.args[0])
                replaced.add("softmax of differences")


def _is_shifted(node: torch.fx.Node, axis: int) -> bool:
    """Whether a node is a value less its own maximum along an axis."""
    if node.target is not torch.ops.aten.sub.Tensor:
        return False
    value, part = node.args[0], node.args[1]
    if not isinstance(value, torch.fx.Node) or not isinstance(part, torch.fx.Node) or part.target is not operator.getitem:
        return False
    maximum, place = part.args
    if place != 0 or not isinstance(maximum, torch.fx.Node) or maximum.target is not torch.ops.aten.max.dim:
        return False
    own, along, *kept = maximum.args
    rank = value.meta["val"].dim()
    return own is value and isinstance(along, int) and along % rank == axis % rank and kept == [True]


_REPLACED: Final[dict[Any, Callable[..., Any]]] = {
    torch.conv3d: _conv3d,
    functional.gelu: _gelu,
    torch.remainder: _remainder,
    torch.Tensor.remainder: _remainder,
    torch.Tensor.__mod__: _remainder,
    torch.max: _max,
    torch.Tensor.max: _max,
    torch.sort: _sort,
    torch.Tensor.sort: _sort,
    torch.argsort: _argsort,
    torch.Tensor.argsort: _argsort,
}
