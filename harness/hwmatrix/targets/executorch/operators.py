"""Functions that ExecuTorch cannot execute, in terms of others that it can, with the same results up to rounding."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    Tensor = torch.Tensor


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """Trace models with the functions below instead of PyTorch's."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for place, name, make in _REPLACED:
            original = getattr(place, name)
            before.append((place, name, original))
            setattr(place, name, make(original))
        yield
    finally:
        for place, name, original in reversed(before):
            setattr(place, name, original)


def _conv3d(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A convolution of volumes as a sum of convolutions of their slices: ExecuTorch's kernel knows one and two dimensions only (0x12)."""

    def conv3d(  # noqa: PLR0917 - the arguments of PyTorch's function
        values: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if values.dim() != 5 or (isinstance(padding, str) and padding != "valid"):  # noqa: PLR2004 - batch, channels, three dimensions
            return original(values, weight, bias, stride, padding, dilation, groups)
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

    return conv3d


def _three(value: Any) -> Sequence[int]:
    """A size of each of three dimensions."""
    return (value,) * 3 if isinstance(value, int) else tuple(value) * (3 // len(value))


_REPLACED: Final = ((functional, "conv3d", _conv3d),)
"""Where a function is, its name, and what makes its replacement."""
