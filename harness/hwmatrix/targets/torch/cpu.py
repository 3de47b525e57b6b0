"""PyTorch on the CPU: the reference that every other target is compared with, and the same model in reduced precisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.records import Dtype, Placement
from hwmatrix.targets.torch import integers
from hwmatrix.targets.torch.device import TorchDevice

if TYPE_CHECKING:
    import numpy as np

    from hwmatrix.models.bundle import Bundle, GenerationPrompt
    from hwmatrix.targets.protocol import Arrays, InFloat, OnStep


class TorchCpu(TorchDevice):
    """PyTorch on the CPU, which is synchronous. In ``int8_dynamic``, torchao replaces the weights of linear layers."""

    def check(self) -> str:
        """Set the number of threads, which torch allows only before it computes. The CPU is always available."""
        torch.set_num_threads(self._settings.threads)
        return "cpu"

    def prepare(self, inputs: Arrays) -> str:
        """Prepare the model, and round its weights in ``int8_dynamic``.

        Raises:
            UnsupportedError: torchao is missing, or the model has no linear layer.
        """
        return f"{super().prepare(inputs)}{self._rounded()}"

    def run(self) -> Any:
        """Run one forward pass.

        Raises:
            UnsupportedError: torchao lacks an operator that the model applies to a rounded weight.
        """
        with integers.naming_what_is_missing():
            return super().run()

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> None:
        """Call ``generate`` of transformers.

        Raises:
            UnsupportedError: as for :meth:`run`.
        """
        with integers.naming_what_is_missing():
            super().generate(prompt, on_step, forced=forced)

    def load_generator(self, bundle: Bundle) -> int:
        """Load as :meth:`load` does, with the cache on, and round the weights in ``int8_dynamic``."""
        parameters = super().load_generator(bundle)
        self._rounded()
        return parameters

    def _rounded(self) -> str:
        """Round the model's weights in ``int8_dynamic``. How, for ``method``."""
        if self._settings.dtype is not Dtype.INT8_DYNAMIC:
            return ""
        assert self._model is not None  # noqa: S101 - the order of the protocol
        return f", torchao Int8DynamicActivationInt8WeightConfig: {integers.round_weights(self._model)} linear layers"

    def placement(self) -> Placement:
        """As on every device of PyTorch. In ``int8_dynamic`` also how many linear layers have weights of 8 bits."""
        placed = super().placement()
        if self._settings.dtype is not Dtype.INT8_DYNAMIC:
            return placed
        assert self._model is not None  # noqa: S101 - the order of the protocol
        return Placement(on_target=placed.on_target, detail=f"{placed.detail}; {integers.told(self._model)}")

    def in_float(self) -> InFloat | None:
        """Replace the layers by ones with the same rounded weights as float32 numbers, which round their inputs in float32."""
        assert self._model is not None  # noqa: S101 - the order of the protocol
        integers.in_float32(self._model)
        return _InFloat(self._model, self)

    def placed(self, inputs: Arrays) -> dict[str, torch.Tensor]:
        """The inputs as the model takes them."""
        return self._placed(inputs)


class _InFloat:
    """A model whose weights are float32 numbers."""

    def __init__(self, model: torch.nn.Module, target: TorchCpu) -> None:
        self._model = model
        self._target = target

    def outputs(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """One forward pass."""
        with torch.inference_mode():
            found = flatten_outputs(self._model(**self._target.placed(inputs), **call_options(self._model)))
        return {name: tensor.numpy() for name, tensor in found.items()}

    def nudged(self) -> None:
        """None: PyTorch's own kernels compute both."""
