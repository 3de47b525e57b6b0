"""Linear layers with 8-bit integers: torchao's, and the same in float32.

PyTorch's own ``torch.ao.quantization.quantize_dynamic`` is deprecated in favour of torchao, which is maintained with PyTorch.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import torch

from hwmatrix.errors import UnsupportedError
from hwmatrix.records import Dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIGURATIONS: Final = {
    Dtype.INT8: "Int8WeightOnlyConfig",
    Dtype.INT8_DYNAMIC: "Int8DynamicActivationInt8WeightConfig",
}
"""What torchao calls each precision."""
_NO_OPERATOR: Final = re.compile(r"Int8Tensor dispatch: attempting to run unimplemented operator/function: func=<OpOverload\(op='([\w.]+)'")
_STEPS: Final = 127.5
"""Half of the 255 steps from -128 to 127, to which torchao scales the largest magnitude of a row."""
_LEAST_SCALE: Final = torch.finfo(torch.float32).eps


def round_weights(model: torch.nn.Module, dtype: Dtype) -> int:
    """Let torchao replace the weights of all linear layers by integers with a scale per output channel. Return the number of layers.

    ``dtype`` is one of :data:`CONFIGURATIONS`. In ``int8_dynamic`` the layers also round their inputs.

    Raises:
        UnsupportedError: torchao is missing (``missing_package``), or there is no linear layer (``nothing_to_quantize``).
    """
    try:
        torchao: Any = importlib.import_module("torchao.quantization")
    except ImportError as failure:
        message = (
            f"torchao, which rounds weights for PyTorch, cannot be imported ({failure}): pip install torchao; bfloat16 needs no quantizer"
        )
        raise UnsupportedError(message, needs=("torchao",), error_type="missing_package") from failure
    # By default this would change settings of torch.compile for the whole process.
    options = {"set_inductor_config": False} if dtype is Dtype.INT8 else {}
    torchao.quantize_(model, getattr(torchao, CONFIGURATIONS[dtype])(**options))
    count = len(_rounded(model))
    if not count:
        message = "torchao rounds the weights of torch.nn.Linear, and the model has none; bfloat16 works"
        raise UnsupportedError(message, needs=("torch.nn.Linear",), error_type="nothing_to_quantize")
    return count


@contextlib.contextmanager
def naming_what_is_missing() -> Iterator[None]:
    """Raise the typed failure where a model does something else with a rounded weight than multiply by it.

    Raises:
        UnsupportedError: torchao has no such operator for its weights; the message names it.
    """
    try:
        yield
    except NotImplementedError as failure:
        found = _NO_OPERATOR.search(str(failure))
        if found is None:
            raise
        message = f"torchao has no {found[1]} for weights of 8 bits, which the model calls outside of a linear layer; bfloat16 works"
        raise UnsupportedError(message, needs=(found[1],)) from failure


def told(model: torch.nn.Module) -> str:
    """How many layers have weights of which type."""
    kinds = Counter(str(layer.weight.qdata.dtype).removeprefix("torch.") for layer in _rounded(model).values())
    plain = sum(type(module) is torch.nn.Linear for module in model.modules()) - kinds.total()
    return ", ".join([*(f"{count} linear layers of {kind} weights" for kind, count in kinds.items()), f"{plain} of float32 weights"])


class InFloat32:
    """A model with :class:`RoundedLinear` in place of its rounded layers, but only while :meth:`swapped` is open.

    The model's own layers are measured before and after that.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._layers = {name: (layer, RoundedLinear(layer)) for name, layer in _rounded(model).items()}

    @contextlib.contextmanager
    def swapped(self) -> Iterator[torch.nn.Module]:
        """Swap the layers, and swap them back at the end."""
        try:
            for name, (_, in_float) in self._layers.items():
                self._put(name, in_float)
            yield self._model
        finally:
            for name, (layer, _) in self._layers.items():
                self._put(name, layer)

    def _put(self, name: str, layer: torch.nn.Module) -> None:
        parent, _, own = name.rpartition(".")
        setattr(self._model.get_submodule(parent), own, layer)


class RoundedLinear(torch.nn.Module):
    """A linear layer with the numbers that another one's integers stand for.

    If that one rounds its inputs, so does this: each row to 8 bits, as numbers. float64 holds the products of such numbers exactly,
    whatever the order of summation.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        weight = layer.weight
        numbers, scale = weight.qdata.float() - weight.zero_point.float(), weight.scale.float().flatten()
        self._rounds_inputs = weight.act_quant_kwargs is not None
        self.weight = torch.nn.Parameter(numbers if self._rounds_inputs else numbers * scale[:, None], requires_grad=False)
        self.scale = torch.nn.Parameter(scale, requires_grad=False)
        self.bias = layer.bias

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """The product of the input and the weights."""
        if not self._rounds_inputs:
            return torch.nn.functional.linear(given, self.weight, self.bias)
        scale = (given.abs().amax(dim=-1, keepdim=True) / _STEPS).clamp(min=_LEAST_SCALE)
        rounded = torch.round(given * (1.0 / scale)).clamp(-128, 127)  # as torchao does: the largest value lies between two steps
        product = torch.nn.functional.linear(rounded.double(), self.weight.double()).float() * scale * self.scale
        return product if self.bias is None else product + self.bias


def _rounded(model: torch.nn.Module) -> dict[str, Any]:
    """The linear layers whose weights are integers, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(getattr(module, "weight", None), "qdata")}
