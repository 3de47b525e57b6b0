"""Compares the values of an exported graph as ExecuTorch and PyTorch compute them, to find where a wrong result begins."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import torch

from hwmatrix.errors import TraceError
from hwmatrix.records.traces import Step, Trace
from hwmatrix.targets.executorch import lowering, runtime
from hwmatrix.targets.executorch.in_float import is_quantizing, is_restoring, round_biases

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from hwmatrix.targets.executorch.lowering import Exported

MOST_BYTES: Final = 2**29
"""The limit in bytes for the values of a graph. They are held four times: by both runs, and in the program's memory."""


def trace_graph(exported: Exported, inputs: Mapping[str, torch.Tensor]) -> Trace:
    """Lower the graph once more with every value as an output, run it, and run the same graph in PyTorch.

    Raises:
        TraceError: its values take more than :data:`MOST_BYTES`.
    """
    arguments = exported.values(inputs)
    whole: Any = exported.program.module()
    round_biases(whole)
    results = [_value_name(node) if isinstance(node, torch.fx.Node) else None for node in _outputs(whole.graph)]
    kept, names = _all_values(whole)
    with torch.no_grad():
        expected = kept(*arguments)
        with lowering.repaired(exported.exporter):
            again = torch.export.export(kept, tuple(arguments))
        lowered = lowering.lower(again, exported.exporter)
    actual = runtime.Program(lowered.data, kernels=lowered.kernels).run(arguments)
    marked = exported.named([_Named(name) for name in results])
    return Trace(
        steps=_steps(whole.graph),
        values=_arrays(names, list(actual)[-len(names) :]),  # after the buffers that the model changes in place
        expected=_arrays(names, expected),
        results={own: str(value) for own, value in marked.items() if str(value) in names},
        against="the same graph, executed by PyTorch",
    )


class _Named:
    """The place of an output in the structure of the model's outputs."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.shape = ()  # what flatten_outputs takes for a tensor

    def __str__(self) -> str:
        return str(self.name)


def _outputs(graph: torch.fx.Graph) -> list[Any]:
    """The nodes of a graph's outputs, in order."""
    return list(torch.utils._pytree.tree_leaves(graph.output_node().args[0]))  # noqa: SLF001 - as torch.export writes it


def _all_values(module: Any) -> tuple[Any, list[str]]:
    """Return a copy of a graph that returns every tensor in it, and their names.

    Raises:
        TraceError: as :func:`trace_graph`.
    """
    kept = copy.deepcopy(module)
    computed = _computed(kept.graph)
    rounded = _rounded(kept.graph)
    nodes = [node for node in kept.graph.nodes if node in computed and _is_compared(node) and _is_whole(node, rounded)]
    size = sum(node.meta["val"].numel() * node.meta["val"].element_size() for node in nodes)
    if size > MOST_BYTES:
        raise TraceError(f"the graph's values take {size // 2**20} MiB, more than {MOST_BYTES // 2**20}")
    kept.graph.output_node().args = (tuple(_negative(node) if is_restoring(node) else node for node in nodes),)
    kept.graph._codegen = torch.fx.graph.CodeGen()  # noqa: SLF001 - arguments and results without the model's own structure
    kept.recompile()
    return kept, [_value_name(node) for node in nodes]


def _value_name(node: torch.fx.Node) -> str:
    """The name of a value: the node's, or of what is restored from integers, that of the operator whose result was rounded to them.

    An activation that XNNPACK makes one operator of with what it follows counts as a part of that.
    """
    if not is_restoring(node):
        return node.name
    (rounded,) = node.all_input_nodes
    (whole,) = rounded.all_input_nodes if is_quantizing(rounded) else (node,)
    return (_fused(whole) or whole).name


def _negative(node: torch.fx.Node) -> torch.fx.Node:
    """A node with the negative of what another restores. XNNPACK does not write an output that one of its operators reads as integers."""
    with node.graph.inserting_before(node.graph.output_node()):
        again = node.graph.node_copy(node, lambda given: given)
        return node.graph.call_function(torch.ops.aten.neg.default, (again,))


def _rounded(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """For each value that is rounded, the first node that restores it, or the one that the graph returns."""
    kept = set[torch.fx.Node]()
    results = {node for node in _outputs(graph) if isinstance(node, torch.fx.Node)}
    for node in graph.nodes:
        if is_quantizing(node):
            restored = [user for user in node.users if is_restoring(user)]
            kept.update([user for user in restored if user in results] or restored[:1])
    return kept


def _is_whole(node: torch.fx.Node, rounded: set[torch.fx.Node]) -> bool:
    """Whether a node's value exists in the program, too.

    XNNPACK makes one operator of a product, what restores its inputs, and what rounds its result: the value between is none of its own.
    """
    if is_quantizing(node) or is_restoring(node):
        return node in rounded
    return not any(map(is_quantizing, node.users)) and not any(_fused(user) is node for user in node.users)


def _fused(node: torch.fx.Node) -> torch.fx.Node | None:
    """The operator on integers whose result goes through this one alone, an activation, before it is rounded; None if there is none."""
    before = node.all_input_nodes
    alone = any(map(is_quantizing, node.users)) and len(before) == 1 and len(before[0].users) == 1
    return before[0] if alone and any(map(is_restoring, before[0].all_input_nodes)) else None


def _computed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes that depend on the inputs. What is made of weights alone cannot be an output: a delegate keeps it for itself."""
    computed: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and any(given.op == "placeholder" or given in computed for given in node.all_input_nodes):
            computed.add(node)
    return computed


def _is_compared(node: torch.fx.Node) -> bool:
    """Whether a node's value is a tensor of a known size."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_complex() and all(isinstance(size, int) for size in value.shape)


def _steps(graph: torch.fx.Graph) -> tuple[Step, ...]:
    return tuple(
        Step(
            name=node.name,
            operator=str(getattr(node.target, "__name__", node.target)),
            inputs=tuple(given.name for given in node.all_input_nodes),
            outputs=(node.name,),
        )
        for node in graph.nodes
        if node.op == "call_function"
    )


def _arrays(names: list[str], values: Any) -> dict[str, np.ndarray[Any, Any]]:
    return lowering.arrays_of(dict(zip(names, values, strict=True)))
