"""A graph that was quantized for XNNPACK, computed by PyTorch's kernels for float32, with the same rounded weights and steps."""

from __future__ import annotations

import copy
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hwmatrix.targets.executorch import lowering
from hwmatrix.targets.nudge import nudge

if TYPE_CHECKING:
    from hwmatrix.targets.executorch.lowering import Exported
    from hwmatrix.targets.protocol import Arrays


class GraphInFloat:
    """An exported graph that PyTorch runs. It rounds and restores numbers where the graph says so, and computes in float32."""

    def __init__(self, exported: Exported, *, nudging: bool = False) -> None:
        self._exported = exported
        module: Any = copy.deepcopy(exported.program.module())
        module.graph.set_codegen(torch.fx.graph.CodeGen())  # arguments and results without the model's own structure
        module.recompile()
        self._run: Any = _Nudging(module).run if nudging else module

    def outputs(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """One forward pass."""
        with torch.no_grad():
            results = self._run(*self._exported.values(lowering.tensors_of(inputs)))
        return lowering.arrays_of(self._exported.named(results))

    def nudged(self) -> GraphInFloat:
        """The same graph with other weights (:func:`hwmatrix.targets.nudge.nudge`)."""
        return GraphInFloat(self._exported, nudging=True)


class _Nudging(torch.fx.Interpreter):
    """Runs a graph with numbers that differ by a few roundings, in each run by the same: its constants, and what is restored from integers.

    Integers restored from activations, too: kernels add and multiply them as integers, where the middle of two steps is frequent.
    """

    def run_node(self, n: torch.fx.Node) -> Any:
        """Compute a node."""
        value = super().run_node(n)
        if not (is_nudged(n) and isinstance(value, torch.Tensor) and value.dtype is torch.float32):
            return value
        random = np.random.default_rng(zlib.crc32(n.name.encode()))
        return torch.from_numpy(nudge(value.detach().numpy(), random))


def is_nudged(node: torch.fx.Node) -> bool:
    """Whether a node is a constant that the model computes with, or restores numbers. The sizes of their steps are no such constants."""
    if node.op == "get_attr":
        return not all(map(_is_of_steps, node.users))
    return _is_of_steps(node) and "dequantize" in str(node.target)


def _is_of_steps(node: torch.fx.Node) -> bool:
    """Whether a node rounds numbers to integers, or restores them."""
    return node.op == "call_function" and "quantized_decomposed" in str(node.target)
