"""Rewrites an ONNX export for QNN: replaces operators that the HTP computes wrongly, and quantizes to 8 or 16 bits."""

from __future__ import annotations

import dataclasses
import itertools
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx_ir
from onnxscript import version_converter
from onnxscript.rewriter import pattern

from hwmatrix.records import Dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.models.onnx_export import OnnxExport
    from hwmatrix.targets.protocol import Arrays

CALIBRATION_SAMPLES: Final = 8
"""Inputs that value ranges are taken from: the bundle's own, and random ones of the same kind."""
_MASK_FLOOR: Final = -100.0
"""What masks say "never" with once they are quantized: exp(-100) is 0 beside any weight of attention, and leaves a 16-bit range
steps of 0.002. As they are exported (the least float32), one such constant takes the whole range, and all other values are 0."""
_RMS_OPSET: Final = 23
"""The first opset that has RMSNormalization."""
_SEED: Final = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class QnnGraph:
    """A graph on disk, and how it came about."""

    path: Path
    steps: tuple[str, ...]


def make_graph(export: OnnxExport, folder: Path, *, dtype: Dtype, inputs: Arrays, ids: TokenIds) -> QnnGraph:
    """The graph of an export for a precision: float16 keeps float32 weights, which the HTP converts as it prepares the graph.

    Files go to ``folder``, and the export's own file is left alone.
    """
    model = onnx_ir.load(export.path)
    steps = [f"{export.exporter} ONNX export"]
    if fuse_rms_norms(model):
        steps.append("RMS norms fused over rows")
    if take_rows_by_gather(model):
        steps.append("rows taken by Gather")
    if dtype is not Dtype.FLOAT16 and raise_masks(model):
        steps.append(f"masks raised to {_MASK_FLOOR:g}")
    path = folder / f"{export.exporter}.onnx"
    beside = export.path.with_name(f"{export.path.name}.data").exists()
    onnx_ir.save(model, path, external_data=f"{path.name}.data" if beside else None)
    if dtype is not Dtype.FLOAT16:
        samples = list(itertools.islice(calibration_inputs(inputs, export.inputs, ids), CALIBRATION_SAMPLES))
        path = _quantize(path, dtype, samples)
        steps.append(f"quantized to {dtype.value} from {len(samples)} inputs")
    return QnnGraph(path=path, steps=tuple(steps))


def fuse_rms_norms(model: onnx_ir.Model) -> int:
    """Write every root-mean-square norm as one RMSNormalization over rows, which QNN has an operator for; give their number.

    In single operators, the HTP's own preparation of the graph fails on them ("could not create op: q::ForceFormat_Crouton",
    QNN_COMMON_ERROR_MEM_ALLOC; QAIRT 2.51). Of several matrices, the one operator leaves some rows unwritten: (2, 16, 32) loses half of
    them, and is right as the rows of one, (32, 32).
    """
    fused = _RMS_RULES.apply_to_model(model)
    if fused:
        version_converter.convert_version(model, _RMS_OPSET)
    return int(fused)


def take_rows_by_gather(model: onnx_ir.Model) -> int:
    """Write every GatherND that takes slices of the first axis, by one number each, as a Gather; give their number.

    It is how exporters take the weights of a token's experts. The HTP's GatherND gives other slices where there are many: of
    (4, 128, 32), 32 of them; its Gather gives the right ones (QAIRT 2.51).
    """
    changed = 0
    for node in list(model.graph):
        places = _numbers_of_slices(node)
        if places is None:
            continue
        taken = onnx_ir.node("Gather", [node.inputs[0], places], attributes={"axis": 0}, name=node.name)
        before, now = node.outputs[0], taken.outputs[0]
        now.type, now.shape = before.type, before.shape
        now.name, before.name = before.name, f"{before.name}_before"
        model.graph.insert_before(node, taken)
        onnx_ir.convenience.replace_all_uses_with(before, now, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        changed += 1
    return changed


def _numbers_of_slices(node: onnx_ir.Node) -> onnx_ir.Value | None:
    """The numbers of the slices that a GatherND takes, if each is named by one number; else None."""
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
    """Raise constants below the floor for masks to it; give the number of tensors changed."""
    changed = 0
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype != onnx_ir.DataType.FLOAT or tensor.size == 0:
                continue
            array = tensor.numpy()
            if array.min() < _MASK_FLOOR * 10:  # weights may be below the floor itself
                value.const_value = onnx_ir.tensor(np.maximum(array, np.float32(_MASK_FLOOR)), name=value.name)
                changed += 1
    return changed


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenIds:
    """The tokens of a model: ids are below ``count``; ``special`` ones mean something to the model itself."""

    count: int
    special: frozenset[int]

    @classmethod
    def of(cls, bundle: Bundle) -> TokenIds:
        """From the configuration of a bundle's model, its text model's part included; no tokens where it names none."""
        config = json.loads((bundle.model_dir / "config.json").read_bytes())
        parts = [config, *(part for part in (config.get("text_config"), config.get("decoder")) if isinstance(part, dict))]
        counts = [part["vocab_size"] for part in parts if isinstance(part.get("vocab_size"), int)]
        named = [value for part in parts for name, value in part.items() if name.endswith(_SPECIAL)]
        special = {token for value in named for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)}
        return cls(count=min(counts, default=0), special=frozenset(special))


_SPECIAL: Final = ("_token_id", "_token_ids", "_token_index")


def calibration_inputs(inputs: Arrays, names: Sequence[str], ids: TokenIds) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """The bundle's inputs, then endless others of the same shapes and types.

    Numbers are normal, with the mean and deviation of the bundle's. Token ids are random, but special ones stay where they are
    (an image's tokens, the first, the last), and so do integers that are all alike (attention masks).
    """
    random = np.random.default_rng(_SEED)
    yield {name: inputs[name] for name in names}
    while True:
        yield {name: _sample_like(inputs[name], ids, random) for name in names}


def _sample_like(array: np.ndarray[Any, Any], ids: TokenIds, random: np.random.Generator) -> np.ndarray[Any, Any]:
    if np.issubdtype(array.dtype, np.floating):
        noise: np.ndarray[Any, Any] = random.normal(array.mean(), array.std(), array.shape)
        return noise.astype(array.dtype)
    if array.min() == array.max() or not ids.count:
        return array
    ordinary = np.array([token for token in range(ids.count) if token not in ids.special], dtype=array.dtype)
    drawn: np.ndarray[Any, Any] = random.choice(ordinary, array.shape)
    stays = np.isin(array, list(ids.special))
    drawn[stays] = array[stays]
    return drawn


class _Reader:
    """Calibration data in the form of onnxruntime.quantization."""

    def __init__(self, samples: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> None:
        self._samples = samples
        self._next = iter(samples)

    def get_next(self) -> Mapping[str, np.ndarray[Any, Any]] | None:
        return next(self._next, None)

    def rewind(self) -> None:
        self._next = iter(self._samples)


def _quantize(path: Path, dtype: Dtype, samples: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> Path:
    """Insert QuantizeLinear and DequantizeLinear, by ONNX Runtime's own recipe for QNN."""
    from onnxruntime import quantization
    from onnxruntime.quantization.execution_providers import qnn

    class Reader(_Reader, quantization.CalibrationDataReader):  # type: ignore[misc]
        """The base class is checked for by type."""

    activations = {Dtype.A16W8: quantization.QuantType.QUInt16, Dtype.A8W8: quantization.QuantType.QUInt8}[dtype]
    prepared, quantized = path.with_name("prepared.onnx"), path.with_name(f"{path.stem}-{dtype.value}.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tools' own ways of calling onnx and numpy
        source = prepared if qnn.qnn_preprocess_model(path, prepared) else path
        config = qnn.get_qnn_qdq_config(source, Reader(samples), activation_type=activations, weight_type=quantization.QuantType.QUInt8)
        quantization.quantize(source, quantized, config)
    return quantized


def _rms_norm(op: Any, x: Any, scale: Any, epsilon: Any) -> Any:
    """As both exporters write it: scale * (x * (1 / sqrt(mean(x ** 2) + epsilon)))."""
    mean = op.ReduceMean(op.Pow(x, 2.0), [-1], keepdims=1)
    return op.Mul(op.Mul(x, op.Reciprocal(op.Sqrt(op.Add(mean, epsilon)))), scale)


def _is_rms_norm(context: Any, x: Any, scale: Any, epsilon: Any, **_: Any) -> bool:  # noqa: ARG001 - the rewriter's signature
    """The scale must be a vector over the last axis, and epsilon a known number."""
    known = epsilon.const_value is not None and epsilon.const_value.size == 1
    return known and scale.const_value is not None and len(scale.const_value.shape) == 1


def _fused_rms_norm(op: Any, x: Any, scale: Any, epsilon: Any) -> Any:
    rows = op.Reshape(x, op.Constant(value_ints=[-1, scale.const_value.shape[0]]))
    normed = op.RMSNormalization(rows, scale, axis=-1, epsilon=float(epsilon.const_value.numpy().item()))
    return op.Reshape(normed, op.Shape(x))


_RMS_RULES: Final = pattern.RewriteRuleSet([pattern.RewriteRule(_rms_norm, _fused_rms_norm, _is_rms_norm)], commute=True)
