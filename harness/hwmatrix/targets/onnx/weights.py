"""An ONNX graph in a reduced precision: made by ONNX Runtime's own tools, and with its rounded weights as float32 numbers.

``MatMulNBits`` multiplies by groups of 4-bit integers with a scale each, ``MatMulInteger`` by 8-bit integers, for which it rounds each
input as it runs. The graph in float32 has ``MatMul`` in their place: numpy decodes the integers, without ONNX Runtime. With calibrated
ranges, ``QuantizeLinear`` and ``DequantizeLinear`` stand around each product, and ONNX Runtime makes kernels for integers of them; in
float32, they become the operators that the ONNX standard defines them by.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import math
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.basics.log_level import logged_from
from hwmatrix.errors import TwinError, UnsupportedError
from hwmatrix.records import Dtype
from hwmatrix.records.groups import GROUP_SIZES, group_size
from hwmatrix.targets.onnx import rounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.models.calibration import Arrays

_FLOAT32_KERNELS: Final = 1
"""``accuracy_level`` with which MatMulNBits multiplies in float32."""
_MOVING: Final = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""The operators that ONNX Runtime's QDQ propagation moves a conversion over."""
_PRODUCTS: Final = ("MatMul", "Gemm", "Conv")
_TOLD: Final = 10
"""The operators that a placement names: first those that multiply, each time the most frequent first."""
_NAMES_A_TYPE: Final = frozenset({"dtype", "to"})
"""The attributes that say of which type the numbers are that an operator gives."""
_IN_HALVES: Final = "converted to float16, inputs and outputs in float32"
_LARGEST: Final = 1 << 30
"""Bytes of a graph that is written as one file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReducedGraph:
    """A graph on disk, and a description of how it was made."""

    path: Path
    how: str


def reduced(path: Path, folder: Path, dtype: Dtype, samples: Sequence[Arrays] = ()) -> ReducedGraph:
    """Write the graph in a precision to a folder. ``samples`` are inputs to calibrate ``a8w8`` with.

    Raises:
        UnsupportedError: nothing can be rounded (``nothing_to_quantize``), no size of groups divides its layers (``group_size``), or a
            package of the quantizer is missing (``missing_package``).
    """
    import onnx

    made = folder / f"{path.stem}-{dtype.value}.onnx"
    with warnings.catch_warnings(), logged_from(logging.ERROR):  # the tools advise to preprocess, through the root logger
        warnings.simplefilter("ignore")  # they use deprecated calls of onnx and numpy
        if dtype is Dtype.FLOAT16:
            model = _in_halves(_loaded(path))
            how = _IN_HALVES
        elif dtype in {Dtype.INT4, Dtype.INT4_FLOAT16}:
            model, size, count = _in_groups(_with_weights_transposed(_loaded(path)))
            how = f"MatMulNBits in groups of {size}: {_some(count)} weights of 4 bits"
            if dtype is Dtype.INT4_FLOAT16:
                model, how = _in_halves(model), f"{how}, the rest {_IN_HALVES}"
        elif dtype is Dtype.INT8_DYNAMIC:
            tool = _module("onnxruntime.quantization")
            graph = _with_weights_transposed(_loaded(path))
            tool.quantize_dynamic(graph, made, op_types_to_quantize=["MatMul"], weight_type=tool.QuantType.QUInt8)
            model = onnx.load(made)
            how = f"quantize_dynamic: {_some(_count(model, 'MatMulInteger'))} MatMulInteger"
        else:
            model = _calibrated(path, made, samples)
            count = _some(_count(model, "QuantizeLinear"))
            how = f"quantize_static in QDQ format from {len(samples)} inputs: {count} QuantizeLinear"
    _save(model, made)
    return ReducedGraph(path=made, how=how)


def in_float32(path: Path, folder: Path) -> Path:
    """Write the graph with float32 numbers in place of its rounded weights. The inputs of products stay rounded, as numbers too.

    So do the numbers of a graph in float16: they become the same ones in float32.

    Raises:
        TwinError: it has conversions to integers of another form than :func:`reduced` makes.
    """
    import onnx

    model = onnx.load(path)
    _widen(model.graph)
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if not _is_readable(node, known):
            raise TwinError(f"{node.op_type} {node.name} has a scale or a zero point that is no constant")
    _round_outputs(model.graph)
    nodes = []
    integers: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            nodes += _without_groups(node, known, model.graph)
            integers.update(node.input[1:])
        elif node.op_type == "MatMulInteger":
            nodes += _without_integers(node, known, model.graph)
            integers.update(node.input[1:])
        elif node.op_type == "QuantizeLinear":
            nodes += _as_steps(node, known, model.graph)
            integers.update(node.input[1:])
        elif node.op_type == "DequantizeLinear":
            nodes += _as_numbers(node, known, model.graph)
            integers.update(node.input)
        else:
            nodes.append(node)
    integers -= {name for node in nodes for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in integers]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(kept)
    made = folder / f"{path.stem}-float32.onnx"
    _save(model, made)
    return made


def executed(path: Path, *, halves: bool) -> str:
    """The operators of a graph that the runtime has optimized. For ``halves``, also the types that its products multiply in."""
    import onnx

    model = onnx.load(path)
    kinds = Counter(node.op_type for node in model.graph.node)
    products_first = sorted(kinds.items(), key=lambda one: (not any(name in one[0] for name in _PRODUCTS), -one[1]))
    told = f"executed: {', '.join(f'{count} {kind}' for kind, count in products_first[:_TOLD])}"
    if not halves:
        return told
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    types |= {cast.output[0]: attribute.i for cast in model.graph.node if cast.op_type == "Cast" for attribute in cast.attribute}
    given = [value for node in model.graph.node if node.op_type in {*_PRODUCTS, "FusedMatMul"} for value in node.input]
    narrow = sum(types.get(value) == onnx.TensorProto.FLOAT16 for value in given)
    wide = sum(types.get(value) == onnx.TensorProto.FLOAT for value in given)
    return f"{told}; of the inputs of products, {narrow} are in float16 and {wide} were cast to float32"


def _in_halves(model: Any) -> Any:
    return _module("onnxruntime.transformers.float16").convert_float_to_float16(model, keep_io_types=True)


def _widen(graph: Any) -> None:
    """Make every number in float16 one in float32, and every conversion to float16 one to float32, which changes nothing."""
    import onnx
    from onnx import numpy_helper

    halves = onnx.TensorProto.FLOAT16
    del graph.value_info[:]
    for value in graph.output:
        if value.type.tensor_type.elem_type == halves:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    for tensor in (*graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))):
        if tensor.data_type == halves:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for attribute in attributes:
        if attribute.name in _NAMES_A_TYPE and attribute.i == halves:
            attribute.i = onnx.TensorProto.FLOAT
        if attribute.HasField("g"):  # of If and Loop
            _widen(attribute.g)


def _in_groups(model: Any) -> tuple[Any, int, int]:
    """The graph, the size of its groups, and how many products have them."""
    _module("onnxruntime.quantization.onnx_model").ONNXModel(model).replace_gemm_with_matmul()  # the quantizer knows no Gemm
    shapes = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type == "MatMul" and len(shapes.get(node.input[1], ())) == 2]  # noqa: PLR2004 - a matrix
    widths = {node.name: shapes[node.input[1]][0] for node in products}
    size = group_size(widths.values())
    if size is None:
        name, width = next((name, width) for name, width in widths.items() if group_size([width]) is None)
        message = f"int4 has groups of {GROUP_SIZES[-1]} weights or more, and {name} is {width} wide; int8_dynamic takes any width"
        raise UnsupportedError(message, needs=(f"widths that {GROUP_SIZES[-1]} divides",), error_type="group_size")
    tool = _module("onnxruntime.quantization.matmul_nbits_quantizer")
    quantizer = tool.MatMulNBitsQuantizer(
        model, bits=4, block_size=size, is_symmetric=True, accuracy_level=_FLOAT32_KERNELS, op_types_to_quantize=("MatMul",)
    )
    quantizer.process()
    return quantizer.model.model, size, _count(quantizer.model.model, "MatMulNBits")


def _calibrated(path: Path, made: Path, samples: Sequence[Arrays]) -> Any:
    import onnx

    tool = _module("onnxruntime.quantization")

    class Reader(tool.CalibrationDataReader):  # type: ignore[misc, name-defined]
        """The inputs, one after another."""

        def __init__(self) -> None:
            self._left = iter(samples)

        def get_next(self) -> Arrays | None:
            return next(self._left, None)

    tool.quantize_static(
        _loaded(path),
        made,
        Reader(),
        quant_format=tool.QuantFormat.QDQ,
        op_types_to_quantize=list(_PRODUCTS),
        activation_type=tool.QuantType.QUInt8,
        weight_type=tool.QuantType.QUInt8,
    )
    calibrated = onnx.load(made)
    _like_zero_points(calibrated)
    return calibrated


def _like_zero_points(model: Any) -> None:
    """Give a scale the shape of its zero point, as the standard wants. For a bias the tool writes [1] and a scalar: WebNN refuses that."""
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            match [known.get(name) for name in node.input[1:]]:
                case [scale, point] if scale and point and [*scale.dims] == [1] and not point.dims:
                    del scale.dims[:]


def _loaded(path: Path) -> Any:
    """The graph without the shapes that its exporter wrote between the operators: the tools infer their own, and reject some of these."""
    import onnx

    model = onnx.load(path)
    del model.graph.value_info[:]
    return model


def _with_weights_transposed(model: Any) -> Any:
    """The graph with a transposed copy of each weight that a Gemm transposes, for all Gemm that read it.

    ONNX Runtime's tools turn Gemm into MatMul and transpose the weight in place, once for each Gemm: a shared weight would be wrong.
    """
    from onnx import numpy_helper

    graph = model.graph
    known = {tensor.name: tensor for tensor in graph.initializer}
    copied: set[str] = set()
    for node in graph.node:
        transposed = [each for each in node.attribute if node.op_type == "Gemm" and each.name == "transB" and each.i]
        if not transposed or node.input[1] not in known:
            continue
        name = node.input[1]
        if name not in copied:
            copied.add(name)
            graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(known[name]).T.copy(), f"{name}_transposed"))
        node.input[1] = f"{name}_transposed"
        node.attribute.remove(transposed[0])
    read = {name for node in graph.node for name in node.input}
    for name in copied - read:
        graph.initializer.remove(known[name])
    return model


def _without_groups(node: Any, known: Mapping[str, Any], graph: Any) -> list[Any]:
    """A MatMul by the numbers that the integers of a MatMulNBits stand for."""
    from onnx import helper, numpy_helper

    name = f"{node.name}_float32"
    weights = rounded.of_groups(node, known)
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(weights, dtype=np.float32), name))
    return [helper.make_node("MatMul", [node.input[0], name], list(node.output), name=node.name)]


def _without_integers(node: Any, known: Mapping[str, Any], graph: Any) -> list[Any]:
    """The product of a MatMulInteger in float32, which holds these integers exactly."""
    from onnx import TensorProto, helper, numpy_helper

    name = f"{node.name}_float32"
    weights = rounded.of_integers(node, known)
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(weights, dtype=np.float32), name))
    given = [f"{name}_{part}" for part in ("input", "zero_point", "shifted")]
    made = [
        helper.make_node("Cast", [node.input[0]], [given[0]], to=TensorProto.FLOAT),
        helper.make_node("Cast", [node.input[2]], [given[1]], to=TensorProto.FLOAT),
        helper.make_node("Sub", given[:2], [given[2]]),
    ]
    return [*made, helper.make_node("MatMul", [given[2], name], list(node.output), name=node.name)]


def _round_outputs(graph: Any) -> None:
    """Round each output that is also rounded later on, behind operators that only move data: ONNX Runtime's optimizer does so.

    Its QDQ propagation (1.31) moves such a conversion before those operators, and what it gives there becomes the output.
    """
    from onnx import helper

    made_by = {name: node for node in graph.node for name in node.output}
    uses = Counter(name for node in graph.node for name in node.input)
    outputs = {output.name for output in graph.output}
    restoring = {node.input[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    for rounding in [node for node in graph.node if node.op_type == "QuantizeLinear"]:
        at = rounding.input[0]
        while at not in outputs and at in made_by and made_by[at].op_type in _MOVING and uses[at] == 1:
            at = made_by[at].input[0]
        if at == rounding.input[0] or at not in outputs or at not in made_by or rounding.output[0] not in restoring:
            continue
        raw, steps = f"{at}_unrounded", f"{at}_rounded"
        producer = made_by[at]
        producer.output[:] = [raw if name == at else name for name in producer.output]
        place = list(graph.node).index(producer) + 1
        graph.node.insert(place, helper.make_node("QuantizeLinear", [raw, *rounding.input[1:]], [steps]))
        graph.node.insert(place + 1, helper.make_node("DequantizeLinear", [steps, *rounding.input[1:]], [at]))
        outputs.remove(at)


def _is_readable(node: Any, known: Mapping[str, Any]) -> bool:
    """Whether scale and zero point of a conversion are constants, and single ones if it is not of constants itself."""
    if node.op_type not in {"QuantizeLinear", "DequantizeLinear"}:
        return True
    given = [known.get(name) for name in node.input[1:]]
    single = all(tensor is not None and math.prod(tensor.dims) == 1 for tensor in given)
    return len(given) == 2 and None not in given and (single or node.input[0] in known)  # noqa: PLR2004 - scale and zero point


def _as_steps(node: Any, known: Mapping[str, Any], graph: Any) -> list[Any]:
    """A QuantizeLinear as operators on numbers: its result is an integer as a float32 number."""
    from onnx import helper, numpy_helper

    scale, point = rounded.scale_and_point(node, known)
    limits = np.iinfo(point.dtype)
    numbers = {"scale": scale, "point": point.astype(np.float32), "low": np.float32(limits.min), "high": np.float32(limits.max)}
    names = {part: f"{node.output[0]}_{part}" for part in (*numbers, "divided", "rounded", "shifted")}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value, np.float32), names[part]) for part, value in numbers.items())
    return [
        helper.make_node("Div", [node.input[0], names["scale"]], [names["divided"]]),
        helper.make_node("Round", [names["divided"]], [names["rounded"]]),
        helper.make_node("Add", [names["rounded"], names["point"]], [names["shifted"]]),
        helper.make_node("Clip", [names["shifted"], names["low"], names["high"]], list(node.output)),
    ]


def _as_numbers(node: Any, known: Mapping[str, Any], graph: Any) -> list[Any]:
    """A DequantizeLinear: of weights, the numbers themselves; of a value that :func:`_as_steps` made, two operators on numbers."""
    from onnx import helper, numpy_helper

    if node.input[0] in known:
        numbers = rounded.of_constant(node, known)
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(numbers, dtype=np.float32), node.output[0]))
        return []
    scale, point = rounded.scale_and_point(node, known)
    names = {part: f"{node.output[0]}_{part}" for part in ("scale", "point", "shifted")}
    graph.initializer.append(numpy_helper.from_array(scale.astype(np.float32), names["scale"]))
    graph.initializer.append(numpy_helper.from_array(point.astype(np.float32), names["point"]))
    return [
        helper.make_node("Sub", [node.input[0], names["point"]], [names["shifted"]]),
        helper.make_node("Mul", [names["shifted"], names["scale"]], list(node.output)),
    ]


def _count(model: Any, kind: str) -> int:
    return sum(node.op_type == kind for node in model.graph.node)


def _some(count: int) -> int:
    if not count:
        message = "ONNX Runtime's tool found no weight to round: the graph has no product with a matrix of its own; float32 works"
        raise UnsupportedError(message, needs=("a linear layer",), error_type="nothing_to_quantize")
    return count


def _save(model: Any, path: Path) -> None:
    import onnx

    beside = model.ByteSize() > _LARGEST
    onnx.save(model, path, save_as_external_data=beside, location=f"{path.name}.data" if beside else None)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as failure:
        message = f"{name}, which reduces the precision of a graph, cannot be imported: {failure}; float32 needs no quantizer"
        raise UnsupportedError(message, needs=(failure.name or name,), error_type="missing_package") from failure
