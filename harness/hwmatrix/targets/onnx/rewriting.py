"""Changes to ONNX graphs that a runtime rejects or that its quantizer mishandles, for the retry of a failed cell (docs/preparation.md)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import onnx_ir

from hwmatrix.errors import UnsupportedError
from hwmatrix.models.onnx_exporters import save
from hwmatrix.records import Preparation
from hwmatrix.targets.onnx.generator import with_graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hwmatrix.models.generation_export import GenerationExport
    from hwmatrix.models.onnx_export import OnnxExport

    Change = Callable[[onnx_ir.Model], int]

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


def keep_longer_axes(model: onnx_ir.Model) -> int:
    """Let each ``Squeeze`` of axes that are longer than 1 do nothing, as in PyTorch. Return their number.

    PyTorch's ``squeeze(dim)`` leaves such an axis as it is. The converter of onnxscript (0.7.2, ``aten_squeeze_dim``) does not look at its
    length, and ONNX (operator Squeeze) calls the result an error.
    """
    kept = 0
    for node in [node for node in model.graph.all_nodes() if node.op_type == "Squeeze" and len(node.inputs) > 1]:
        data, named = node.inputs[:2]
        axes = None if named is None else onnx_ir.convenience.get_const_tensor(named)
        if data is None or data.shape is None or axes is None:
            continue
        sizes = [data.shape[axis] for axis in axes.numpy().flatten().tolist()]
        if sizes and all(isinstance(size, int) and size != 1 for size in sizes):
            node.op_type = "Identity"
            node.resize_inputs(1)
            kept += 1
    return kept


OPERATORS: Final[dict[str, Change]] = {"Squeeze": keep_longer_axes}
"""What replaces operators for every runtime, by their names."""
CONSTANTS: Final[dict[Preparation, Change]] = {Preparation.RENAMED_CONSTANTS: rename_shared}
"""What changes constants before a graph is calibrated."""


def rewritten(
    exports: Sequence[OnnxExport], folder: Path, *, operators: Mapping[str, Change] = OPERATORS, constants: Mapping[Preparation, Change]
) -> tuple[OnnxExport, ...]:
    """Write copies of the exports' graphs with all these changes into a folder. Exports without anything to change are left out.

    Raises:
        UnsupportedError: no export has anything to change (``nothing_to_rewrite``).
    """
    made: list[OnnxExport] = []
    unchanged: UnsupportedError | None = None
    for export in exports:
        path = folder / f"{export.exporter}-rewritten.onnx"
        model = onnx_ir.load(export.path)
        replaced = {name for name, replace in operators.items() if replace(model)}
        try:
            prepared = export.prepared.rewritten(replaced, *(step for step, change in constants.items() if change(model)))
        except UnsupportedError as error:
            unchanged = error
            continue
        save(model, path)
        made.append(dataclasses.replace(export, path=path, changed=prepared))
    if unchanged is not None and not made:
        raise unchanged
    return tuple(made)


def rewritten_generation(export: GenerationExport, folder: Path) -> GenerationExport:
    """As :func:`rewritten`, for the graphs that generate.

    Raises:
        UnsupportedError: they have nothing to change (``nothing_to_rewrite``).
    """
    replaced: set[str] = set()

    def copy_of(path: Path) -> Path:
        model = onnx_ir.load(path)
        replaced.update(name for name, replace in OPERATORS.items() if replace(model))
        made = folder / f"{path.stem}-rewritten.onnx"
        save(model, made)
        return made

    copied = with_graphs(export, copy_of)
    return dataclasses.replace(copied, prepared=copied.prepared.rewritten(replaced))
