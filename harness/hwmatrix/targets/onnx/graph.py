"""Runs small ONNX graphs in ONNX Runtime with inputs and outputs of all types, including those that numpy lacks, and maps its errors."""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.errors import UnsupportedError
from hwmatrix.models.operator_tests import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hwmatrix.models.operator_tests import OperatorTest, Value

_TYPES: Final = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
    "float8e4m3fn": 17,
    "float8e4m3fnuz": 18,
    "float8e5m2": 19,
    "float8e5m2fnuz": 20,
    "uint4": 21,
    "int4": 22,
    "float4e2m1": 23,
    "float8e8m0": 24,
    "uint2": 25,
    "int2": 26,
}
"""Element types by name, with their numbers in onnx.proto (TensorProto.DataType)."""
_NAMES: Final = {number: name for name, number in _TYPES.items()}
_NO_KERNEL: Final = re.compile(r"(?:Could not find an implementation for|Failed to find kernel for) (\w+)\(\d+\)")
_NOT_PLACED: Final = re.compile(r"Provider type for (\w+) node with name '.*' is not set")
_NOT_REGISTERED: Final = re.compile(r"([\w.]+:)?(\w+)\(-?\d+\) is not a registered function/op")
_NO_OP: Final = re.compile(r"No Op registered for (\w+) with domain_version of \d+")
_IR: Final = re.compile(r"Unsupported model IR version: (\d+)")
_OPSET: Final = re.compile(r"Opset (\d+) is under development")


def run(session: Any, test: OperatorTest) -> tuple[Value, ...]:
    """Run a session on a test's inputs. Return its outputs in the graph's order."""
    values = [value for _, value in (*test.inputs, *test.outputs)]
    if any(isinstance(value, Tensor) and not value.native for value in values):
        return _run_raw(session, test)
    feed = {name: _arrays_of(value) for name, value in test.inputs}
    return tuple(_value(result) for result in session.run(None, feed))


def refusal(text: str) -> UnsupportedError | None:
    """Return the typed failure for a message in which ONNX Runtime names what it does not support; None for any other message."""
    for pattern in (_NO_KERNEL, _NOT_PLACED, _NOT_REGISTERED, _NO_OP):
        found = pattern.search(text)
        if found:
            return UnsupportedError(text, needs=("".join(part for part in found.groups() if part).replace(":", "."),))
    found = _IR.search(text)
    if found:
        return UnsupportedError(text, needs=(f"ONNX IR version {found[1]}",), error_type="unsupported_opset")
    found = _OPSET.search(text)
    if found:
        return UnsupportedError(text, needs=(f"opset {found[1]}",), error_type="unsupported_opset")
    return None


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Raise the typed failure for an exception in a ``with`` block that names what ONNX Runtime does not support."""
    try:
        yield
    except Exception as error:
        refused = refusal(str(error))
        if refused is None:
            raise
        raise refused from error


def _arrays_of(value: Value) -> Any:
    if value is None:
        return None
    return [element.array for element in value] if isinstance(value, tuple) else value.array


def _value(result: Any) -> Value:
    if result is None:
        return None
    if isinstance(result, list):
        return tuple(_tensor(np.asarray(element)) for element in result)
    return _tensor(np.asarray(result))


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return Tensor(element="string" if array.dtype.kind in "OU" else str(array.dtype), shape=array.shape, array=array)


def _run_raw(session: Any, test: OperatorTest) -> tuple[Value, ...]:
    """Run with raw memory buffers, because numpy has no name for some of the types."""
    import onnxruntime

    feed = {}
    for name, value in test.inputs:
        assert isinstance(value, Tensor)  # noqa: S101 - no standard test mixes such types with sequences
        handed = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(value.shape), _TYPES[value.element])
        data = np.ascontiguousarray(value.array)
        ctypes.memmove(handed.data_ptr(), data.ctypes.data, data.nbytes)
        feed[name] = handed
    return tuple(_tensor_of(result) for result in session.run_with_ort_values(None, feed))


def _tensor_of(result: Any) -> Tensor:
    element, shape = _NAMES[result.element_type()], tuple(result.shape())
    data = ctypes.string_at(result.data_ptr(), result.tensor_size_in_bytes()) if math.prod(shape) else b""
    bytes_ = np.frombuffer(data, dtype=np.uint8)
    tensor = Tensor(element=element, shape=shape, array=bytes_)
    return Tensor(element=element, shape=shape, array=bytes_.view(element).reshape(shape)) if tensor.native else tensor
