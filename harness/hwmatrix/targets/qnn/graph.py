"""Makes the graph that QNN gets of an ONNX export: the export itself, or one quantized to 8 or 16 bits.

What replaces operators and constants below changes a model, so only the retry of a failed cell uses it (docs/preparation.md).
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx_ir
from onnxscript import version_converter
from onnxscript.rewriter import pattern

from hwmatrix.models.calibration import CALIBRATION_SAMPLES
from hwmatrix.models.onnx_exporters import save
from hwmatrix.records import Dtype, Preparation, Prepared
from hwmatrix.targets.onnx import rewriting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hwmatrix.models.onnx_export import OnnxExport
    from hwmatrix.targets.protocol import Arrays

_MASK_FLOOR: Final = -100.0
"""The value to which masks' "never" is raised before quantization: exp(-100) is 0 beside any attention weight, and leaves a 16-bit range
steps of 0.002. Exports use the lowest float32: one such constant takes up the whole range, and all other values become 0."""
_ONE: Final = "one_to_divide"
_EXPONENT_FLOOR: Final = -87.0
"""exp(-87) is 1.6e-38, just above the smallest normal float32, and 0 in float16."""
_FLOOR: Final = "floor_of_exponents"
_RMS_OPSET: Final = 23
"""The first opset that has RMSNormalization."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QnnGraph:
    """A graph on disk, and how it was made."""

    path: Path
    prepared: Prepared


def make_graph(export: OnnxExport, folder: Path, *, dtype: Dtype, samples: Iterable[Arrays]) -> QnnGraph:
    """Make the graph of an export for a precision. For float16 it is the export: the HTP converts its weights when it prepares the graph.

    Files go to ``folder``. The export's own file is not changed. ``samples`` are inputs to take value ranges from.
    """
    if dtype is Dtype.FLOAT16:
        return QnnGraph(path=export.path, prepared=export.prepared)
    used = [{name: sample[name] for name in export.inputs} for sample in itertools.islice(samples, CALIBRATION_SAMPLES)]
    path = _quantize(export.path, folder, dtype, used)
    return QnnGraph(path=path, prepared=export.prepared.then(f"quantized to {dtype.value} from {len(used)} inputs"))


def fuse_rms_norms(model: onnx_ir.Model) -> int:
    """Replace every root-mean-square norm by one RMSNormalization over rows, which QNN supports. Return their number.

    The HTP fails to prepare a graph with the norm as single operators ("could not create op: q::ForceFormat_Crouton",
    QNN_COMMON_ERROR_MEM_ALLOC; QAIRT 2.51). With several matrices, its RMSNormalization leaves some rows unwritten: an input of shape (2,
    16, 32) loses half of its rows, but is correct when reshaped to (32, 32).
    """
    fused = _RMS_RULES.apply_to_model(model)
    if fused:
        version_converter.convert_version(model, _RMS_OPSET)
    return int(fused)


def take_rows_by_gather(model: onnx_ir.Model) -> int:
    """Replace every GatherND that takes slices of the first axis by a single index with a Gather. Return their number.

    Exporters select the weights of a token's experts this way. The HTP's GatherND returns wrong slices if there are many (32 slices of a
    tensor of shape (4, 128, 32)); its Gather returns the right ones (QAIRT 2.51).
    """
    changed = 0
    for node in list(model.graph):
        places = _numbers_of_slices(node)
        if places is None:
            continue
        _replace(node, onnx_ir.node("Gather", [node.inputs[0], places], attributes={"axis": 0}, name=node.name))
        changed += 1
    return changed


def divide_for_reciprocals(model: onnx_ir.Model) -> int:
    """Replace every Reciprocal by the division 1 / x, which is the same number. Return their number.

    The HTP takes a norm that ends with a Reciprocal for its own RMS norm, and computes it wrongly: with several matrices it leaves rows
    unwritten (float16), and if the root is below about 0.3, all are too small (a16w8 and a8w8; at 0.03, by a factor of 8.5). The same norm
    with a Div is right (QAIRT 2.51). Exporters write 1 / sqrt(x) as Sqrt and Reciprocal.
    """
    reciprocals = _floats(model, "Reciprocal")
    one = _constant(model, _ONE, 1.0) if reciprocals else None
    for node in reciprocals:
        _replace(node, onnx_ir.node("Div", [one, node.inputs[0]], name=node.name))
    return len(reciprocals)


def floor_exponents(model: onnx_ir.Model) -> int:
    """Replace every Exp of x by that of the larger of x and -87. Return their number.

    Below -88.1 (127 times the logarithm of 2) the HTP's Exp returns garbage in float16, such as 131,000 for -1000, instead of 0 (QAIRT
    2.51). Models with a state mask their decay with minus infinity before it.
    """
    exponents = _floats(model, "Exp")
    floor = _constant(model, _FLOOR, _EXPONENT_FLOOR) if exponents else None
    for node in exponents:
        raised = onnx_ir.node("Max", [node.inputs[0], floor], name=f"{node.name}_floor")
        raised.outputs[0].type, raised.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
        raised.outputs[0].name = f"{node.outputs[0].name}_exponent"
        model.graph.insert_before(node, raised)
        node.replace_input_with(0, raised.outputs[0])
    return len(exponents)


def pool_globally(model: onnx_ir.Model) -> int:
    """Replace every AveragePool whose only window takes in the whole input with a GlobalAveragePool. Return their number.

    QNN accepts no window that reaches beyond its input (EfficientNet's classifier pools 2 by 2 numbers in a window of 320 by 320). What
    is beyond does not count in the mean: it is no padding, but comes from rounding up the number of windows.
    """
    pools = [node for node in _floats(model, "AveragePool") if _takes_everything(node)]
    for node in pools:
        _replace(node, onnx_ir.node("GlobalAveragePool", [node.inputs[0]], name=node.name))
    return len(pools)


def _takes_everything(pool: onnx_ir.Node) -> bool:
    """Whether a pool without padding has a single window, at least as large as its input."""
    given, made, window = pool.inputs[0], pool.outputs[0].shape, pool.attributes["kernel_shape"].as_ints()
    pads = pool.attributes.get("pads")
    if given is None or given.shape is None or made is None or (pads is not None and any(pads.as_ints())):
        return False
    sizes = [size for size in given.shape[2:] if isinstance(size, int)]
    fits = len(sizes) == len(window) and all(width >= size for width, size in zip(window, sizes, strict=True))
    return fits and all(size == 1 for size in made[2:])


def _floats(model: onnx_ir.Model, operator: str) -> list[onnx_ir.Node]:
    """The nodes of an operator that give float32."""
    return [node for node in model.graph if node.op_type == operator and node.outputs[0].dtype is onnx_ir.DataType.FLOAT]


def _constant(model: onnx_ir.Model, name: str, number: float) -> onnx_ir.Value:
    """Add a number to the graph."""
    value = onnx_ir.Value(name=name, const_value=onnx_ir.tensor(np.float32(number), name=name))
    model.graph.register_initializer(value)
    return value


def _replace(node: onnx_ir.Node, new: onnx_ir.Node) -> None:
    """Replace a node of one output in its graph. The new output gets the old one's name, type and shape."""
    graph, before, now = node.graph, node.outputs[0], new.outputs[0]
    assert graph is not None  # noqa: S101 - found by iterating over a graph
    now.type, now.shape = before.type, before.shape
    now.name, before.name = before.name, f"{before.name}_before"
    graph.insert_before(node, new)
    onnx_ir.convenience.replace_all_uses_with(before, now, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _numbers_of_slices(node: onnx_ir.Node) -> onnx_ir.Value | None:
    """The indices of the slices that a GatherND takes, if each slice has a single index; otherwise None."""
    batched = node.attributes.get("batch_dims")
    if node.op_type != "GatherND" or (batched is not None and batched.as_int() != 0):
        return None
    indices = node.inputs[1]
    maker = indices.producer() if indices is not None else None
    if maker is None or maker.op_type != "Unsqueeze" or maker.inputs[0] is None or maker.inputs[1] is None:
        return None
    axes = maker.inputs[1].const_value
    return maker.inputs[0] if axes is not None and axes.numpy().tolist() == [-1] else None


def raise_masks(model: onnx_ir.Model) -> int:
    """Raise mask constants below the floor to it. Return the number of tensors changed."""
    changed = 0
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype != onnx_ir.DataType.FLOAT or tensor.size == 0:
                continue
            array = tensor.numpy()
            if array.min() < _MASK_FLOOR * 10:  # weights may be slightly below the floor too
                value.const_value = onnx_ir.tensor(np.maximum(array, np.float32(_MASK_FLOOR)), name=value.name)
                changed += 1
    return changed


class _Reader:
    """Calibration data with the interface of onnxruntime.quantization."""

    def __init__(self, samples: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> None:
        self._samples = samples
        self._next = iter(samples)

    def get_next(self) -> Mapping[str, np.ndarray[Any, Any]] | None:
        return next(self._next, None)

    def rewind(self) -> None:
        self._next = iter(self._samples)


def _quantize(path: Path, folder: Path, dtype: Dtype, samples: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> Path:
    """Insert QuantizeLinear and DequantizeLinear with ONNX Runtime's own configuration for QNN."""
    from onnxruntime import quantization
    from onnxruntime.quantization.execution_providers import qnn

    class Reader(_Reader, quantization.CalibrationDataReader):  # type: ignore[misc]
        """onnxruntime checks for its base class."""

    activations = {Dtype.A16W8: quantization.QuantType.QUInt16, Dtype.A8W8: quantization.QuantType.QUInt8}[dtype]
    prepared, quantized = folder / "prepared.onnx", folder / f"{path.stem}-{dtype.value}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the quantization tools use deprecated calls of onnx and numpy
        if not qnn.qnn_preprocess_model(path, prepared):  # the tool writes beside what it reads, and an export's folder may be read-only
            save(onnx_ir.load(path), prepared)
        config = qnn.get_qnn_qdq_config(prepared, Reader(samples), activation_type=activations, weight_type=quantization.QuantType.QUInt8)
        quantization.quantize(prepared, quantized, config)
    return quantized


def _rms_norm(op: Any, x: Any, scale: Any, epsilon: Any) -> Any:
    """The norm as both exporters write it: scale * (x * (1 / sqrt(mean(x ** 2) + epsilon)))."""
    mean = op.ReduceMean(op.Pow(x, 2.0), [-1], keepdims=1)
    return op.Mul(op.Mul(x, op.Reciprocal(op.Sqrt(op.Add(mean, epsilon)))), scale)


def _is_rms_norm(context: Any, x: Any, scale: Any, epsilon: Any, **_: Any) -> bool:  # noqa: ARG001 - the rewriter's signature
    """Whether the scale is a vector over the last axis, and epsilon a known number."""
    known = epsilon.const_value is not None and epsilon.const_value.size == 1
    return known and scale.const_value is not None and len(scale.const_value.shape) == 1


def _fused_rms_norm(op: Any, x: Any, scale: Any, epsilon: Any) -> Any:
    rows = op.Reshape(x, op.Constant(value_ints=[-1, scale.const_value.shape[0]]))
    normed = op.RMSNormalization(rows, scale, axis=-1, epsilon=float(epsilon.const_value.numpy().item()))
    return op.Reshape(normed, op.Shape(x))


_RMS_RULES: Final = pattern.RewriteRuleSet([pattern.RewriteRule(_rms_norm, _fused_rms_norm, _is_rms_norm)], commute=True)

OPERATORS: Final[dict[str, rewriting.Change]] = rewriting.OPERATORS | {
    "RMS norm": fuse_rms_norms,
    "GatherND": take_rows_by_gather,
    "Reciprocal": divide_for_reciprocals,
    "Exp": floor_exponents,
    "AveragePool": pool_globally,
}
"""What replaces operators that the HTP rejects or computes incorrectly, by their names, in this order."""
CONSTANTS: Final[dict[Preparation, rewriting.Change]] = {Preparation.RAISED_MASKS: raise_masks} | rewriting.CONSTANTS
"""What changes constants before a graph is quantized."""
