"""The rounded weights of an ONNX graph, read back as numbers without ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

_HALFWAY: Final = 8
"""The zero point of a symmetric unsigned 4-bit integer."""

Numbers = np.ndarray[Any, Any]


def of_groups(node: Any, known: Mapping[str, Any]) -> Numbers:
    """The matrix that a MatMulNBits multiplies by.

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
    return np.asarray((integers - points) * scales).reshape(outputs, -1)[:, :inputs].T


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


def of_constant(node: Any, known: Mapping[str, Any]) -> Numbers:
    """The numbers that a DequantizeLinear makes of a constant, in float64."""
    from onnx import numpy_helper

    scale, point = scale_and_point(node, known)
    integers = numpy_helper.to_array(known[node.input[0]])
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    shape = [-1 if number == axis % integers.ndim else 1 for number in range(integers.ndim)] if scale.ndim else []
    steps = scale.astype(np.float64).reshape(shape)
    return (integers.astype(np.float64) - point.astype(np.float64).reshape(shape)) * steps
