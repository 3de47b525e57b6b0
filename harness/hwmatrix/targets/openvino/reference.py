"""Computes an OpenVINO graph without a plugin, operator by operator, with OpenVINO's reference implementations and PyTorch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Array = np.ndarray[Any, Any]
    Alone = Callable[[Any, Sequence[Any]], Sequence[Any]]

NOT_COMPUTED: Final = frozenset({"Parameter", "Constant", "Result"})
_EXPLICIT: Final = frozenset({"explicit", "notset"})
_ATTENTION_ARGUMENTS: Final = 5
_BITWISE: Final[Mapping[str, Any]] = {
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "BitwiseNot": np.invert,
}


class Reference:
    """Computes the operators of a graph in order. ``values`` has the results by node name and output number.

    An operator without a reference implementation is computed by ``alone``, and counted by type in ``borrowed``. ``shapes`` are the values'
    shapes on the device. They size the output buffers where the graph's shape is dynamic, since not every reference implementation
    allocates its own.
    """

    def __init__(self, inputs: Mapping[str, Array], shapes: Mapping[tuple[str, int], Sequence[int]], alone: Alone) -> None:
        self.values: dict[tuple[str, int], Any] = {}
        self.borrowed: Counter[str] = Counter()
        self._inputs = inputs
        self._shapes = shapes
        self._alone = alone

    def run(self, nodes: Iterable[Any]) -> None:
        """Compute all nodes, which must be in topological order."""
        for node in nodes:
            kind = node.get_type_name()
            if kind == "Result":
                continue
            given: Sequence[Any]
            if kind == "Parameter":
                given = [as_tensor(self._inputs[_input_name(node, self._inputs)], node.output(0))]
            elif kind == "Constant":
                given = [node.get_tensor_view()]
            else:
                given = self._computed(node, [self.values[source(port)] for port in node.inputs()])
            self.values |= {(node.get_name(), number): tensor for number, tensor in enumerate(given)}

    def _computed(self, node: Any, taken: Sequence[Any]) -> Sequence[Any]:
        import openvino

        kind = node.get_type_name()
        by_torch = _TORCH.get(kind) if _has_counterpart(node, taken) else None
        if by_torch is not None:
            return [as_tensor(by_torch(node, [np.array(tensor.data) for tensor in taken]), node.output(0))]
        if kind in _BITWISE:
            return [openvino.Tensor(np.ascontiguousarray(_BITWISE[kind](*(tensor.data for tensor in taken))))]
        given = [openvino.Tensor(port.get_element_type(), self._shape(port)) for port in node.outputs()]
        if _evaluated(node, given, taken):
            return given
        self.borrowed[kind] += 1
        return self._alone(node, taken)

    def _shape(self, port: Any) -> Any:
        import openvino

        if port.get_partial_shape().is_static:
            return port.get_shape()
        return openvino.Shape(list(self._shapes.get((port.get_node().get_name(), port.get_index()), [0])))


def _evaluated(node: Any, given: Sequence[Any], taken: Sequence[Any]) -> bool:
    """Compute an operator into ``given``. False if OpenVINO has no reference implementation of it."""
    try:
        return bool(node.evaluate(list(given), list(taken)))
    except RuntimeError:  # some report this way that they have none, for a type or at all
        return False


def source(port: Any) -> tuple[str, int]:
    """Return where the value of an input comes from: the node's unique name, and its output number."""
    made = port.get_source_output()
    return made.get_node().get_name(), made.get_index()


def as_tensor(array: Array, port: Any) -> Any:
    """Return the array as a tensor of a port's element type."""
    import openvino

    return openvino.Tensor(np.ascontiguousarray(array.astype(port.get_element_type().to_dtype(), copy=False)))


def _input_name(node: Any, inputs: Mapping[str, Array]) -> str:
    names: set[str] = node.output(0).get_names()
    return next(name for name in names if name in inputs)


def _has_counterpart(node: Any, taken: Sequence[Any]) -> bool:
    """Whether PyTorch's function covers the node: not with automatic padding, nor attention with sinks."""
    return node.get_attributes().get("auto_pad", "explicit") in _EXPLICIT and len(taken) <= _ATTENTION_ARGUMENTS


def _convolution(node: Any, taken: Sequence[Array]) -> Array:
    """Convolution-1 and GroupConvolution-1 of OpenVINO's operation sets, where groups are an axis of the filters."""
    data, filters, groups = _operands(node, taken)
    attributes = node.get_attributes()
    pads = [pad for pair in zip(attributes["pads_begin"], attributes["pads_end"], strict=True) for pad in pair]
    padded = torch.nn.functional.pad(data, [pads[i + j] for i in range(len(pads) - 2, -1, -2) for j in (0, 1)])
    call: Any = getattr(torch.nn.functional, f"conv{data.dim() - 2}d")
    filters = filters.flatten(0, 1) if _grouped(node) else filters
    result: Array = call(padded, filters, stride=attributes["strides"], dilation=attributes["dilations"], groups=groups).numpy()
    return result


def _transposed(node: Any, taken: Sequence[Array]) -> Array:
    """ConvolutionBackpropData-1 and GroupConvolutionBackpropData-1: the full result, with the borders (``pads``) cropped."""
    data, filters, groups = _operands(node, taken)
    attributes = node.get_attributes()
    call: Any = getattr(torch.nn.functional, f"conv_transpose{data.dim() - 2}d")
    filters = filters.flatten(0, 1) if _grouped(node) else filters
    whole: Array = call(data, filters, stride=attributes["strides"], dilation=attributes["dilations"], groups=groups).numpy()
    wanted = list(node.output(0).get_shape())[2:]
    for axis, (begin, size) in enumerate(zip(attributes["pads_begin"], wanted, strict=True), start=2):
        whole = np.take(whole, range(begin, min(begin + size, whole.shape[axis])), axis=axis)
        lacking = size - whole.shape[axis]
        whole = np.pad(whole, [(0, lacking if each == axis else 0) for each in range(whole.ndim)])
    return whole


def _attention(node: Any, taken: Sequence[Array]) -> Array:
    """ScaledDotProductAttention-13, like PyTorch's function of that name: query, key, value, then an optional mask and scale."""
    query, key, value, *others = (torch.from_numpy(each if each.dtype == np.bool_ else each.astype(np.float32)) for each in taken)
    causal = bool(node.get_attributes()["causal"])
    mask = others[0] if others and not causal else None
    scale = float(others[1]) if len(others) > 1 else None
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        result = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=scale)
    array: Array = result.numpy()
    return array


def _group_normalized(node: Any, taken: Sequence[Array]) -> Array:
    """GroupNormalization-12: data, and a scale and a bias per channel."""
    data, scale, bias = (torch.from_numpy(each.astype(np.float32)) for each in taken)
    how = node.get_attributes()
    result: Array = torch.nn.functional.group_norm(data, int(how["num_groups"]), scale, bias, float(how["epsilon"])).numpy()
    return result


def _operands(node: Any, taken: Sequence[Array]) -> tuple[torch.Tensor, torch.Tensor, int]:
    data, filters = (torch.from_numpy(each.astype(np.float32)) for each in taken[:2])
    return data, filters, filters.shape[0] if _grouped(node) else 1


def _grouped(node: Any) -> bool:
    return str(node.get_type_name()).startswith("Group")


_TORCH: Final[Mapping[str, Callable[[Any, Sequence[Array]], Array]]] = {
    "Convolution": _convolution,
    "GroupConvolution": _convolution,
    "ConvolutionBackpropData": _transposed,
    "GroupConvolutionBackpropData": _transposed,
    "GroupNormalization": _group_normalized,
    "ScaledDotProductAttention": _attention,
}
