"""Reduced weights of an OpenVINO graph: made by OpenVINO or NNCF, and read back as float32 numbers.

NNCF writes a rounded weight as a constant of integers and the operators that restore it: Convert, Subtract (the zero point), Multiply (the
scale), Reshape (groups back into rows), Convert. A plugin fuses these into the kernel that uses the weight. Here the integers are decoded
and restored by numpy, in float32, without OpenVINO. With calibrated ranges, a FakeQuantize stands before each product, and the plugin
makes a kernel for integers of both; in float32, it becomes the operators that OpenVINO's specification defines it by.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import logging
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.errors import TwinError, UnsupportedError
from hwmatrix.records import Dtype
from hwmatrix.records.groups import GROUP_SIZES, group_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.models.calibration import Arrays

_SIGNED: Final = {"u8": False, "i8": True, "u4": False, "i4": True}
"""Element types of rounded weights, and whether they have a sign."""
_FAKE: Final = "FakeQuantize"
_FOUR_BITS: Final = frozenset({"u4", "i4"})
_WIDE: Final = frozenset({"f16", "f32"})


def reduced(program: Any, dtype: Dtype, samples: Sequence[Arrays] = ()) -> tuple[Any, str]:
    """The graph with its weights in a precision, and a description of how. ``samples`` are inputs to calibrate ``a8w8`` with.

    Raises:
        UnsupportedError: nothing can be rounded (``nothing_to_quantize``), no size of groups divides its layers (``group_size``), or NNCF
            is not installed (``missing_package``).
    """
    if dtype is Dtype.FLOAT16:
        return _in_float16(program), "weights in float16 (compress_to_fp16)"
    nncf = _nncf()
    with _quiet():
        if dtype is Dtype.A8W8:
            made = _calibrated(nncf, program, samples)
            operations = made.get_ops()
            count = sum(operation.get_type_name() == _FAKE for operation in operations)
            return _some(made, count), f"nncf.quantize from {len(samples)} inputs: {count} FakeQuantize"
        narrow = _narrow_embeddings(program) if dtype is Dtype.INT4 else []
        made, size = _compressed(nncf, program, dtype, leave=narrow)
    kinds = Counter(weight.get_element_type().get_type_name() for weight, _ in _rounded(made))
    mode = "INT8_ASYM" if dtype is Dtype.INT8 else f"INT4_SYM in groups of {size}"
    told = ", ".join(f"{count} in {kind}" for kind, count in sorted(kinds.items()))
    left = f"; embeddings {len(narrow)} in float32" if narrow else ""
    return _some(made, kinds.total()), f"NNCF {mode}: weights {told}{left}"


def in_float32(program: Any) -> Any:
    """A copy of a graph in which every rounded weight is a constant of float32 numbers.

    Values that a FakeQuantize rounds stay rounded, as numbers.

    Raises:
        TwinError: a weight cannot be read back.
    """
    from openvino import opset13

    copy = program.clone()
    weights = _rounded(copy)
    low = [operation for operation in copy.get_ops() if _kind(operation) in _SIGNED and _user(operation).get_type_name() == "Convert"]
    zero_points = 0
    for weight, convert in weights:
        restored = _restored(weight, convert)
        if restored is None:
            raise TwinError(f"the operators behind the rounded weight {weight.get_friendly_name()} are not those of NNCF")
        zero_points += restored.shifted
        restored.by.output(0).replace(opset13.constant(restored.values, dtype=np.float32).output(0))
    if len(low) != len(weights) + zero_points:
        raise TwinError(f"{len(low)} constants are integers that become numbers, and {len(weights) + zero_points} were read back")
    for operation in copy.get_ops():
        if operation.get_type_name() == _FAKE:
            steps = _as_steps(operation)
            if steps is None:
                raise TwinError(f"the ranges of {operation.get_friendly_name()} are no constants")
            operation.output(0).replace(steps.output(0))
    copy.validate_nodes_and_infer_types()
    return copy


def _as_steps(fake: Any) -> Any | None:
    """The operators that a FakeQuantize is short for; None if its ranges are no constants."""
    from openvino import opset13

    found = [_constant(fake.input_value(number).get_node()) for number in range(1, 5)]
    ranges = [np.asarray(each.data).astype(np.float64) for each in found if each is not None]
    if len(ranges) != len(found):
        return None
    low, high, first, last = ranges
    steps = fake.get_attributes()["levels"] - 1
    width = np.where(high > low, high - low, 1.0)

    def number(value: Any) -> Any:
        return opset13.constant(np.asarray(value, dtype=np.float32))

    inside = opset13.minimum(opset13.maximum(fake.input_value(0), number(low)), number(high))
    counted = opset13.multiply(opset13.subtract(inside, number(low)), number(steps / width))
    whole = opset13.round(counted, "half_to_even")
    return opset13.add(opset13.multiply(whole, number((last - first) / steps)), number(first))


def integers(constant: Any) -> np.ndarray[Any, Any]:
    """The values of a constant of 4 or 8 bits. Of two 4-bit values in a byte, the lower half is the first."""
    kind, shape = _element(constant), tuple(constant.get_output_shape(0))
    raw = np.asarray(constant.data).view(np.uint8).reshape(-1)
    if kind in _FOUR_BITS:
        raw = np.stack([raw & 15, raw >> 4], axis=1).reshape(-1)[: int(np.prod(shape))]
        values = raw.astype(np.int16)
        values = np.where(values > 7, values - 16, values) if _SIGNED[kind] else values  # noqa: PLR2004 - the largest of 4 bits with a sign
    else:
        values = (raw.view(np.int8) if _SIGNED[kind] else raw).astype(np.int16)
    return values.reshape(shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Restored:
    """A rounded weight as numbers in its final shape; the operator that gives it; whether an integer was subtracted."""

    values: np.ndarray[Any, Any]
    by: Any
    shifted: bool


def _restored(weight: Any, convert: Any) -> _Restored | None:
    """None if the operators behind the weight are others than NNCF's."""
    values, at, shifted = integers(weight).astype(np.float32), _user(convert), False
    if at.get_type_name() == "Subtract":
        point = _constant(at.input_value(1).get_node())
        if point is None:
            return None
        values = values - (integers(point) if _kind(point) in _SIGNED else np.asarray(point.data)).astype(np.float32)
        shifted, at = _kind(point) in _SIGNED, _user(at)
    scale = _constant(at.input_value(1).get_node()) if at.get_type_name() == "Multiply" else None
    if scale is None:
        return None
    values = values * np.asarray(scale.data).astype(np.float32)
    while (following := _user(at)).get_type_name() in {"Reshape", "Convert"} and _alone(at):
        at = following
    if _element(at) != "f32":
        return None
    shape = tuple(at.get_output_shape(0))
    return _Restored(values=np.ascontiguousarray(values.reshape(shape)), by=at, shifted=shifted)


def _rounded(program: Any) -> list[tuple[Any, Any]]:
    """The constants of rounded weights, each with the Convert behind it. Zero points, which are subtracted from weights, do not count."""
    found = []
    for operation in program.get_ops():
        if _kind(operation) not in _SIGNED:
            continue
        convert = _user(operation)
        if convert.get_type_name() != "Convert" or _element(convert) not in _WIDE:
            continue
        user = _user(convert)
        first = user.input_value(0).get_node().get_friendly_name() == convert.get_friendly_name()
        if user.get_type_name() == "Multiply" or (user.get_type_name() == "Subtract" and first):
            found.append((operation, convert))
    return found


def _constant(node: Any) -> Any | None:
    """The constant behind Converts; None if something else is."""
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "Constant" else None


def _kind(operation: Any) -> str | None:
    """The element type of a constant; None for any other operator."""
    return _element(operation) if operation.get_type_name() == "Constant" else None


def _element(operation: Any) -> str:
    return str(operation.output(0).get_element_type().get_type_name())


def _user(operation: Any) -> Any:
    """The first operator that uses the only output of another."""
    return next(iter(operation.output(0).get_target_inputs())).get_node()


def _alone(operation: Any) -> bool:
    return len(operation.output(0).get_target_inputs()) == 1


def _some(made: Any, count: int) -> Any:
    if not count:
        message = "NNCF found no weight to round: the graph has no layer that multiplies by a matrix of its own; float32 works"
        raise UnsupportedError(message, needs=("a linear layer",), error_type="nothing_to_quantize")
    return made


def _narrow_embeddings(program: Any) -> list[str]:
    """The names of the lookups in a table whose width groups do not divide, such as T5's of one number for each head."""
    return [operation.get_friendly_name() for operation in program.get_ops() if group_size([_width_of_table(operation)]) is None]


def _width_of_table(operation: Any) -> int:
    """How wide the rows of numbers are that an operator looks up; 0 if it looks up something else."""
    if operation.get_type_name() != "Gather":
        return 0
    table = operation.input_value(0)
    if table.get_node().get_type_name() == "Convert":
        table = table.get_node().input_value(0)
    if table.get_node().get_type_name() != "Constant" or not table.get_element_type().is_real():
        return 0
    rows = table.get_shape()
    return int(rows[1]) if len(rows) == 2 else 0  # noqa: PLR2004 - rows and their width


def _compressed(nncf: Any, program: Any, dtype: Dtype, *, leave: Sequence[str]) -> tuple[Any, int | None]:
    """The graph with integers, and the size of their groups in int4: the first that divides all widths."""
    modes = nncf.CompressWeightsMode
    if dtype is Dtype.INT8:
        return nncf.compress_weights(program, mode=modes.INT8_ASYM), None
    ignored = nncf.IgnoredScope(names=[*leave]) if leave else None
    strict = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.ERROR)
    refused: list[Exception] = []
    for size in GROUP_SIZES:
        options = {"group_size": size, "all_layers": True, "ignored_scope": ignored, "advanced_parameters": strict}
        try:
            return nncf.compress_weights(program, mode=modes.INT4_SYM, **options), size
        except nncf.InvalidGroupSizeError as failure:  # before it changes the graph
            refused.append(failure)
    least = GROUP_SIZES[-1]
    told = " ".join(str(refused[-1]).split())[:600]
    message = f"int4 has groups of {least} weights or more, and {least} does not divide the width of a layer; int8 takes any width: {told}"
    raise UnsupportedError(message, needs=(f"widths that {least} divides",), error_type="group_size") from refused[-1]


def _calibrated(nncf: Any, program: Any, samples: Sequence[Arrays]) -> Any:
    from hwmatrix.targets.openvino.device import input_names, tensor

    taken = input_names(program)
    fed = [{name: tensor(array, program.input(name)).data for name, array in sample.items() if name in taken} for sample in samples]
    return nncf.quantize(program, nncf.Dataset(fed), subset_size=len(fed), model_type=nncf.ModelType.TRANSFORMER)


def _in_float16(program: Any) -> Any:
    """The graph as OpenVINO saves it by default, with weights in float16."""
    import openvino

    with tempfile.TemporaryDirectory(prefix="hwmatrix-float16-") as folder:
        path = Path(folder) / "model.xml"
        openvino.save_model(program, path, compress_to_fp16=True)
        return openvino.Core().read_model(path).clone()  # read by mapping the file


def _nncf() -> Any:
    try:
        nncf: Any = importlib.import_module("nncf")
    except ImportError as failure:
        message = f"NNCF, which rounds weights for OpenVINO, cannot be imported ({failure}): pip install nncf; float16 needs no quantizer"
        raise UnsupportedError(message, needs=("nncf",), error_type="missing_package") from failure
    logging.getLogger("nncf").setLevel(logging.ERROR)  # its own set_log_level would also change the handlers that others have added
    return nncf


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep NNCF's tables and progress bars out of a cell's log."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
