"""The rounded weights of an ONNX graph, read back without ONNX Runtime: as numbers, and compared with the weights of the export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.targets.steps import RoundedWeight, compared, farthest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from hwmatrix.models.generation_export import GenerationExport

_HALFWAY: Final = 8
"""The zero point of a symmetric unsigned 4-bit integer."""
_PRODUCTS: Final = frozenset({"MatMul", "Gemm", "Conv"})
_ENDINGS: Final = ("_Q4", "_quantized", "_transposed", "_shared")
"""What is appended to the name of a weight, by ONNX Runtime's tools and by :mod:`hwmatrix.targets.onnx.weights`, the last one first."""

Numbers = np.ndarray[Any, Any]


def of_groups(node: Any, known: Mapping[str, Any]) -> tuple[Numbers, Numbers]:
    """The matrix that a MatMulNBits multiplies by, and the step of each of its numbers.

    Of two integers in a byte, the lower half is the first.
    """
    from onnx import numpy_helper

    set_to = {attribute.name: attribute.i for attribute in node.attribute}
    inputs, outputs, group = set_to["K"], set_to["N"], set_to["block_size"]
    packed = numpy_helper.to_array(known[node.input[1]]).reshape(outputs, -1)
    integers = np.stack([packed & 15, packed >> 4], axis=-1).reshape(outputs, -1, group).astype(np.float32)
    scales = numpy_helper.to_array(known[node.input[2]]).astype(np.float32).reshape(outputs, -1, 1)
    points: Any = np.float32(_HALFWAY)
    if len(node.input) > 3 and node.input[3]:  # noqa: PLR2004 - the input with zero points
        held = numpy_helper.to_array(known[node.input[3]]).reshape(outputs, -1)
        points = np.stack([held & 15, held >> 4], axis=-1).reshape(outputs, -1)[:, : scales.shape[1], None].astype(np.float32)
    restored, steps = (
        each.reshape(outputs, -1)[:, :inputs].T for each in ((integers - points) * scales, np.broadcast_to(scales, integers.shape))
    )
    return restored, steps


def of_integers(node: Any, known: Mapping[str, Any]) -> Numbers:
    """The matrix that a MatMulInteger multiplies by, in steps."""
    from onnx import numpy_helper

    point = numpy_helper.to_array(known[node.input[3]]).astype(np.float32) if len(node.input) > 3 else np.float32(0)  # noqa: PLR2004 - its 4th
    return np.asarray(numpy_helper.to_array(known[node.input[1]]).astype(np.float32) - point)


def scale_and_point(node: Any, known: Mapping[str, Any]) -> tuple[Numbers, Numbers]:
    """The constants of a QuantizeLinear or DequantizeLinear: scalars if they are single numbers."""
    from onnx import numpy_helper

    scale, point = (numpy_helper.to_array(known[name]) for name in node.input[1:3])
    return (scale.reshape(()), point.reshape(())) if scale.size == 1 else (scale, point)


def of_constant(node: Any, known: Mapping[str, Any]) -> tuple[Numbers, Numbers]:
    """The numbers that a DequantizeLinear makes of a constant, and their steps, which broadcast to them; in float64."""
    from onnx import numpy_helper

    scale, point = scale_and_point(node, known)
    integers = numpy_helper.to_array(known[node.input[0]])
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    shape = [-1 if number == axis % integers.ndim else 1 for number in range(integers.ndim)] if scale.ndim else []
    steps = scale.astype(np.float64).reshape(shape)
    return (integers.astype(np.float64) - point.astype(np.float64).reshape(shape)) * steps, steps


def farthest_weight(graphs: Iterable[tuple[Path, Path]]) -> RoundedWeight | None:
    """The rounded weight that is most steps away from the one that it was made from, in graphs with the export of each."""
    return farthest(weight for path, export in graphs for weight in compared_weights(path, export))


def farthest_of_generation(made: GenerationExport, exported: GenerationExport) -> RoundedWeight | None:
    """As :func:`farthest_weight`, of the graphs that a model generates with."""
    return farthest_weight((graph.path, export.path) for graph, export in zip(made.graphs, exported.graphs, strict=True))


def compared_weights(path: Path, export: Path) -> Iterator[RoundedWeight]:
    """Compare the rounded weights of products in a graph of :func:`hwmatrix.targets.onnx.weights.reduced` with those of its export.

    A weight that the tools gave a name of their own is left out.
    """
    import onnx
    from onnx import numpy_helper

    originals = _weights_of_products(onnx.load(export))
    model = onnx.load(path)
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            name, (restored, steps) = node.input[1], of_groups(node, known)
        elif node.op_type == "MatMulInteger" and (scale := known.get(f"{node.input[1].removesuffix('_quantized')}_scale")) is not None:
            steps = numpy_helper.to_array(scale).astype(np.float64)
            name, restored = node.input[1], of_integers(node, known) * steps
        elif node.op_type == "DequantizeLinear" and node.input[0] in known:
            name, (restored, steps) = node.input[0], of_constant(node, known)
        else:
            continue
        found = [each for each in originals.get(_origin(name), ()) if each.shape == restored.shape]
        if found:
            yield min((compared(name, restored, each, steps) for each in found), key=lambda weight: weight.steps)


def _weights_of_products(model: Any) -> dict[str, list[Numbers]]:
    """The constants that products multiply by, as they multiply by them: by name, transposed if a Gemm does that."""
    from onnx import numpy_helper

    known = {tensor.name: tensor for tensor in model.graph.initializer}
    found: dict[str, list[Numbers]] = {}
    for node in model.graph.node:
        if node.op_type in _PRODUCTS and node.input[1] in known:
            transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
            weight = numpy_helper.to_array(known[node.input[1]])
            found.setdefault(node.input[1], []).append(weight.T if transposed else weight)
    return found


def _origin(name: str) -> str:
    """The name of the weight in the export."""
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name
