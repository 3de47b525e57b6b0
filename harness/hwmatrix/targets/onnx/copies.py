"""Names of constants that ONNX Runtime's quantizer can copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import onnx_ir

RENAMED: Final = "shared constants renamed"
"""How a cell's ``method`` tells that :func:`rename_shared` changed names."""
_END: Final = "_shared"


def rename_shared(model: onnx_ir.Model) -> int:
    """Rename constants that several operators use, if another value has the name of a possible copy. Return their number.

    ONNX Runtime's quantizer (1.31, ``QDQQuantizer._dup_initializer``) copies a bias that several operators add, and names the copy by
    appending a number that no other constant has. torch.onnx numbers values: the copy of ``val_166`` may get the name of ``val_1669``.
    The graph is then refused, or computes with the wrong one of the two. Inputs and outputs of the graph keep their names.
    """
    count = 0
    for graph in model.graphs():
        named = {*graph.initializers, *(value.name or "" for value in graph.inputs)}
        named.update(value.name or "" for node in graph for value in node.outputs)
        copies = {name[:end] for name in named for end in range(len(name.rstrip("0123456789")), len(name))}
        for value in [graph.initializers[name] for name in copies if name in graph.initializers]:
            if len(value.uses()) > 1 and not value.is_graph_input() and not value.is_graph_output():
                value.name = f"{value.name}{_END}"
                count += 1
    return count
