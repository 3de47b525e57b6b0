"""A graph that was quantized for XNNPACK, computed by PyTorch's kernels for float32, with the same rounded weights and steps."""

from __future__ import annotations

import copy
import operator
from typing import TYPE_CHECKING, Any, Final

import torch

from hwmatrix.targets.executorch import lowering

if TYPE_CHECKING:
    import numpy as np

    from hwmatrix.targets.executorch.lowering import Exported
    from hwmatrix.targets.protocol import Arrays


_WITH_BIAS: Final = 3
"""The arguments of a product with a bias, at least: an input, a weight and the bias."""


class GraphInFloat:
    """An exported graph that PyTorch runs. It rounds and restores numbers where the graph says so, and computes in float32."""

    def __init__(self, exported: Exported) -> None:
        self._exported = exported
        module: Any = copy.deepcopy(exported.program.module())
        round_biases(module)
        module.graph.set_codegen(torch.fx.graph.CodeGen())  # arguments and results without the model's own structure
        module.recompile()
        self._run: Any = module

    def outputs(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """One forward pass."""
        with torch.no_grad():
            results = self._run(*self._exported.values(lowering.tensors_of(inputs)))
        return lowering.arrays_of(self._exported.named(results))


def round_biases(module: torch.fx.GraphModule) -> None:
    """Round biases as ExecuTorch does when it serializes a delegate: to 32-bit integers. The graph does not have that.

    Their step is that of the input times that of the weight (``QuantParams.from_bias``, ExecuTorch 1.5).
    """
    for node in module.graph.nodes:
        if node.op != "call_function" or len(node.args) < _WITH_BIAS:
            continue
        given, weight, bias = node.args[:_WITH_BIAS]
        if not (is_restoring(given) and is_restoring(weight) and weight.args[0].op == "get_attr" and _is_constant(bias)):
            continue
        sizes = _constant(module, weight.args[1]) if _is_constant(weight.args[1]) else torch.tensor(weight.args[1])
        step = sizes.to(torch.float64) * given.args[1]
        exact = _constant(module, bias)
        name = f"rounded_bias_of_{node.name}"
        module.register_buffer(name, (torch.round(exact.to(torch.float64) / step) * step).to(exact.dtype))
        with module.graph.inserting_before(node):
            node.update_arg(2, module.graph.get_attr(name))


def _is_constant(argument: Any) -> bool:
    return isinstance(argument, torch.fx.Node) and argument.op == "get_attr"


def _constant(module: torch.fx.GraphModule, node: torch.fx.Node) -> torch.Tensor:
    return operator.attrgetter(str(node.target))(module).detach()  # type: ignore[no-any-return]


def is_restoring(argument: Any) -> bool:
    """Whether an argument is restored from integers."""
    return isinstance(argument, torch.fx.Node) and _is_of_steps(argument) and "dequantize" in str(argument.target)


def is_quantizing(node: torch.fx.Node) -> bool:
    """Whether a node rounds numbers to integers."""
    return _is_of_steps(node) and not is_restoring(node)


def _is_of_steps(node: torch.fx.Node) -> bool:
    """Whether a node rounds numbers to integers, or restores them."""
    return node.op == "call_function" and "quantized_decomposed" in str(node.target)
