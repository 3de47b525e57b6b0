"""Which inputs influence a model's outputs: an image whose change has no effect was not used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwmatrix.errors import FactoryError
from hwmatrix.models.factory.modalities import COUNTERS

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Tensors = dict[str, torch.Tensor]


def without_influence(run: Callable[[Tensors], Tensors], inputs: Tensors, outputs: Tensors) -> frozenset[str]:
    """The kinds of input (``image``, ``video``, ``audio``) that can be others without any output becoming another.

    Args:
        run: one forward pass.
        inputs: those that gave ``outputs``; none of them is changed.
        outputs: what the model makes of the inputs.
    """
    kinds = {counter.kind: [name for name in counter.inputs if name in inputs] for counter in COUNTERS}
    return frozenset(kind for kind, names in kinds.items() if names and _same(run, inputs, names, outputs))


def _same(run: Callable[[Tensors], Tensors], inputs: Tensors, names: list[str], outputs: Tensors) -> bool:
    import torch

    others = inputs | {name: _other(inputs[name]) for name in names}
    try:
        changed = run(others)
    except FactoryError:
        return False  # what a model refuses, it has read
    return changed.keys() == outputs.keys() and all(torch.equal(changed[name], outputs[name]) for name in outputs)


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """Other values within the same range: each in another's place, and numbers of the other sign."""
    other = tensor.flatten().roll(1).reshape(tensor.shape)
    return -other if tensor.is_floating_point() else other
