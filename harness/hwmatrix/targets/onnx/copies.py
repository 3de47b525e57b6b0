"""Names of constants that ONNX Runtime's quantizer can copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import onnx_ir

_END: Final = "_"


def name_for_copies(model: onnx_ir.Model) -> int:
    """Rename the constants whose names end in a digit. Return their number. Inputs and outputs of the graph keep their names.

    ONNX Runtime's quantizer (1.31, ``QDQQuantizer._dup_initializer``) copies a bias that several operators add, and names the copy by
    appending a number that no other constant has. torch.onnx numbers values: the ninth copy of ``val_166`` has the name of ``val_1669``.
    The graph is then refused, or computes with the wrong one of the two.
    """
    count = 0
    for graph in model.graphs():
        for value in list(graph.initializers.values()):
            if value.name is None or not value.name[-1:].isdigit() or value.is_graph_input() or value.is_graph_output():
                continue
            value.name += _END
            count += 1
    return count
