"""PyTorch devices on which torchao can replace the weights of linear layers by integers: ``int8`` and ``int8_dynamic``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.records import Placement
from hwmatrix.targets.torch import integers
from hwmatrix.targets.torch.device import TorchDevice

if TYPE_CHECKING:
    import numpy as np

    from hwmatrix.models.bundle import Bundle, GenerationPrompt
    from hwmatrix.records import Prepared
    from hwmatrix.targets.protocol import Arrays, GeneratingInFloat, InFloat, OnStep


class RoundingDevice(TorchDevice):
    """A device of PyTorch that also takes weights of 8 bits. A device adds what :class:`TorchDevice` says."""

    def prepare(self, inputs: Arrays) -> Prepared:
        """Round the weights, and then prepare the model, so that the device never holds the unrounded ones.

        Raises:
            UnsupportedError: torchao is missing, or the model has no linear layer.
        """
        how = self._rounded()
        return super().prepare(inputs).then(how)

    def forward(self) -> Any:
        """Start one forward pass.

        Raises:
            UnsupportedError: torchao lacks an operator that the model applies to a rounded weight.
        """
        with integers.naming_what_is_missing():
            return super().forward()

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> None:
        """Call ``generate`` of transformers.

        Raises:
            UnsupportedError: as for :meth:`forward`.
        """
        with integers.naming_what_is_missing():
            super().generate(prompt, on_step, forced=forced)

    def load_generator(self, bundle: Bundle) -> int:
        """Load as :meth:`load` does, with the cache on, and round the weights."""
        parameters = super().load_generator(bundle)
        self._rounded()
        return parameters

    def _rounded(self) -> str:
        """Round the model's weights in a precision that rounds them. How, in words."""
        config = integers.CONFIGURATIONS.get(self._settings.dtype)
        if config is None:
            return ""
        assert self._model is not None  # noqa: S101 - the order of the protocol
        return f"torchao {config}: {integers.round_weights(self._model, self._settings.dtype)} linear layers"

    def placement(self) -> Placement:
        """As on every device of PyTorch. With rounded weights also how many linear layers have weights of 8 bits."""
        placed = super().placement()
        if self._settings.dtype not in integers.CONFIGURATIONS:
            return placed
        assert self._model is not None  # noqa: S101 - the order of the protocol
        return Placement(on_target=placed.on_target, detail=f"{placed.detail}; {integers.told(self._model)}")

    def in_float(self) -> InFloat:
        """Make layers with the same rounded weights as float32 numbers, which round their inputs, if at all, in float32."""
        assert self._model is not None  # noqa: S101 - the order of the protocol
        return _InFloat(integers.InFloat32(self._model), self)

    def generator_in_float(self) -> GeneratingInFloat:
        """As :meth:`in_float`, to generate."""
        assert self._model is not None  # noqa: S101 - the order of the protocol
        return _GeneratingInFloat(integers.InFloat32(self._model), self)

    def placed(self, inputs: Arrays) -> dict[str, torch.Tensor]:
        """The inputs as the model takes them."""
        return self._placed(inputs)


class _InFloat:
    """A model whose weights are float32 numbers while it runs here."""

    def __init__(self, in_float32: integers.InFloat32, target: RoundingDevice) -> None:
        self._in_float32 = in_float32
        self._target = target

    def outputs(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """One forward pass."""
        with torch.inference_mode(), self._in_float32.swapped() as model:
            found = flatten_outputs(model(**self._target.placed(inputs), **call_options(model)))
        return {name: tensor.cpu().numpy() for name, tensor in found.items()}


class _GeneratingInFloat:
    """The same for a model that generates."""

    def __init__(self, in_float32: integers.InFloat32, target: RoundingDevice) -> None:
        self._in_float32 = in_float32
        self._target = target

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> None:
        """Call ``generate`` of transformers."""
        with self._in_float32.swapped():
            self._target.generate(prompt, on_step, forced=forced)
