"""Finds inputs that do not influence a model's outputs: if changing the image has no effect, the model does not use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwmatrix.errors import FactoryError
from hwmatrix.models.factory.modalities import COUNTERS

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Tensors = dict[str, torch.Tensor]


def without_influence(run: Callable[[Tensors], Tensors], inputs: Tensors, outputs: Tensors) -> frozenset[str]:
    """The kinds of input (``image``, ``video``, ``audio``) whose values can change without changing any output.

    Args:
        run: one forward pass.
        inputs: the inputs of ``outputs``. They are not modified.
        outputs: the model's outputs for these inputs.
    """
    kinds = {counter.kind: [name for name in counter.inputs if name in inputs] for counter in COUNTERS}
    return frozenset(kind for kind, names in kinds.items() if names and _unchanged(run, inputs, names, outputs))


def _unchanged(run: Callable[[Tensors], Tensors], inputs: Tensors, names: list[str], outputs: Tensors) -> bool:
    import torch

    others = inputs | {name: _with_other_values(inputs[name]) for name in names}
    try:
        changed = run(others)
    except FactoryError:
        return False  # a model that rejects the values has read them
    return changed.keys() == outputs.keys() and all(torch.equal(changed[name], outputs[name]) for name in outputs)


def _with_other_values(tensor: torch.Tensor) -> torch.Tensor:
    """Different values of the same range: moved by one place, and floating-point values negated."""
    other = tensor.flatten().roll(1).reshape(tensor.shape)
    return -other if tensor.is_floating_point() else other
