"""Noise floors: how much a precision alone changes a model's outputs, simulated by PyTorch on the CPU.

The floor of float32 is the relative L2 error of float32 against float64. The floor of every other precision is the error of the simulated
precision against float32. float16 and bfloat16 are simulated by casting the model, 8 and 16 bits by rounding the weights and the result of
every operator to an integer grid over its own range. A target that computes correctly in a precision has an error near the floor; a much
larger error comes from the target.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.records import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

_Tensors: TypeAlias = "dict[str, torch.Tensor]"
Run: TypeAlias = "Callable[[torch.nn.Module, _Tensors], _Tensors]"
_CAST: Final = {Dtype.FLOAT32: "float64", Dtype.FLOAT16: "float16", Dtype.BFLOAT16: "bfloat16"}
"""The type that the model is cast to for each precision. float32 itself is compared with float64."""
_BITS: Final = {Dtype.A16W8: 16, Dtype.A8W8: 8}
"""Bits of the activations; weights have 8."""
_WEIGHT_BITS: Final = 8
MOST_PARAMETERS: Final = 300_000_000
"""No floors are computed for larger models."""
SIMULATED: Final = (*_CAST, *_BITS)
"""The precisions that have floors."""
_NEVER: Final = -1e9
"""Masks exclude positions by values below this. They do not count for a tensor's range: every runtime that quantizes replaces them."""


def noise_floors(
    model: torch.nn.Module, runs: Sequence[_Tensors], *, outputs: Run | None = None, dtypes: Sequence[Dtype] = SIMULATED
) -> dict[str, dict[str, Any]]:
    """The floor of each precision, as JSON: ``{"outputs": {name: relative L2 error}}``, or ``{"reason": why there is none}``.

    A precision in which an output is not finite also has ``"overflows": true``.

    Args:
        model: in float32, on the CPU, in evaluation mode. It is not changed.
        runs: the inputs of some runs. The floor is the largest error over them.
        outputs: runs the model and returns the outputs to compare, by name; None: one forward pass.
        dtypes: the precisions to simulate.
    """
    import torch

    run = outputs or _outputs

    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MOST_PARAMETERS:
        reason = f"{parameters:,} parameters: floors are simulated up to {MOST_PARAMETERS:,}, since a copy in float64 takes 8 bytes each"
        return {dtype.value: {"reason": reason} for dtype in dtypes}
    with torch.no_grad():
        plain = [run(model, inputs) for inputs in runs]
        return {dtype.value: _floor(model, runs, run, plain, dtype) for dtype in dtypes}


def _floor(model: torch.nn.Module, runs: Sequence[_Tensors], run: Run, plain: Sequence[_Tensors], dtype: Dtype) -> dict[str, Any]:
    """The floor of one precision. If the model fails in that precision, the error becomes the reason."""
    try:
        if dtype in _CAST:
            return _relative_errors(_outputs_when_cast(model, runs, run, _CAST[dtype]), plain)
        return _relative_errors(_outputs_when_rounded(model, runs, run, _BITS[dtype]), plain)
    except Exception as error:  # noqa: BLE001 - a model's own code may raise anything; it becomes data
        return {"reason": f"{type(error).__name__}: {error}"[:300]}


def _outputs_when_cast(model: torch.nn.Module, runs: Sequence[_Tensors], run: Run, name: str) -> list[_Tensors]:
    import torch

    kind: torch.dtype = getattr(torch, name)
    cast = copy.deepcopy(model).to(kind)
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)  # for tensors that the model makes as it runs
    try:
        return [
            run(cast, {key: value.to(kind) if value.is_floating_point() else value for key, value in inputs.items()}) for inputs in runs
        ]
    finally:
        torch.set_default_dtype(before)


def _outputs_when_rounded(model: torch.nn.Module, runs: Sequence[_Tensors], run: Run, bits: int) -> list[_Tensors]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Rounds the results of every operator. A view is not rounded again."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = func(*args, **(kwargs or {}))
            if any(value.alias_info is not None and not value.alias_info.is_write for value in func._schema.returns):  # noqa: SLF001
                return given
            return tree_map_only(torch.Tensor, rounded_in_place, given)

    def rounded_in_place(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.copy_(_rounded(tensor, bits)) if tensor.dtype == torch.float32 else tensor

    rounded = copy.deepcopy(model)
    for parameter in rounded.parameters():
        if parameter.ndim > 1:  # every runtime keeps biases and the weights of norms in more bits
            parameter.data = _rounded(parameter.data, _WEIGHT_BITS)
    with Rounding():  # type: ignore[no-untyped-call]
        return [run(rounded, inputs) for inputs in runs]


def _rounded(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """Each element rounded to a grid of 2**bits values from the smallest to the largest, including zero.

    Infinity becomes the largest, since integers saturate. In RMSNorm, for example, a small variance can be rounded to zero.
    """
    import torch

    low, high = (float(end) for end in torch.aminmax(tensor)) if tensor.numel() else (0.0, 0.0)
    plain = low > _NEVER and math.isfinite(high)  # nothing to leave out (NaN makes both ends NaN): most tensors, and much faster
    if not plain:
        counted = tensor[(tensor > _NEVER) & torch.isfinite(tensor)]
        if counted.numel() == 0:
            return tensor
        low, high = float(counted.min()), float(counted.max())
    low, high = min(low, 0.0), max(high, 0.0)
    step = (high - low) / (2**bits - 1)
    if step == 0.0:
        return tensor
    grid: torch.Tensor = torch.round((tensor if plain else tensor.clamp(max=high)) / step) * step
    return grid if plain else torch.where(tensor > _NEVER, grid, tensor)


def _outputs(model: torch.nn.Module, inputs: _Tensors) -> _Tensors:
    return flatten_outputs(model(**inputs, **call_options(model)))


def _relative_errors(simulated: Sequence[_Tensors], plain: Sequence[_Tensors]) -> dict[str, Any]:
    import torch

    worst: dict[str, float] = {}
    for ours, theirs in zip(simulated, plain, strict=True):
        for name, reference in theirs.items():
            if not torch.isfinite(ours[name]).all():
                return {"reason": f"{name} has NaN or infinity in this precision", "overflows": True}
            wide, narrow = (tensor.double() for tensor in (reference, ours[name]))
            size = float(wide.norm())
            distance = float((wide - narrow).norm())
            worst[name] = max(worst.get(name, 0.0), distance / size if size else distance)
    return {"outputs": worst}
