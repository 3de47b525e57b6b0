"""Compares the values of an exported graph as ExecuTorch and PyTorch compute them, to find where a wrong result begins."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import torch

from hwmatrix.errors import TraceError
from hwmatrix.records.traces import Step, Trace
from hwmatrix.targets.executorch import lowering, runtime

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
    results = [node.name if isinstance(node, torch.fx.Node) else None for node in _outputs(whole.graph)]
    kept, names = _all_values(whole)
    with torch.no_grad():
        expected = kept(*arguments)
        with lowering.patched():
            again = torch.export.export(kept, tuple(arguments), strict=False)
            lowered = lowering.lower(again)
    actual = runtime.Program(lowered.data, kernels=lowered.kernels).run(arguments)
    marked = exported.named([_Named(name) for name in results])
    return Trace(
        steps=_steps(whole.graph),
        values=_arrays(names, actual),
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
    nodes = [node for node in kept.graph.nodes if node in computed and _is_compared(node)]
    size = sum(node.meta["val"].numel() * node.meta["val"].element_size() for node in nodes)
    if size > MOST_BYTES:
        raise TraceError(f"the graph's values take {size // 2**20} MiB, more than {MOST_BYTES // 2**20}")
    kept.graph.output_node().args = (tuple(nodes),)
    kept.graph._codegen = torch.fx.graph.CodeGen()  # noqa: SLF001 - arguments and results without the model's own structure
    kept.recompile()
    return kept, [node.name for node in nodes]


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
