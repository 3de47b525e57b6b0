"""The ONNX standard's operator tests in OpenVINO, through its ONNX frontend."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.errors import UnsupportedError
from hwmatrix.models.operator_tests import NATIVE, Tensor
from hwmatrix.records import Dtype
from hwmatrix.targets.openvino.device import name_of
from hwmatrix.targets.protocol import Executed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.models.operator_tests import OperatorTest, Value

_TYPES: Final = {
    "boolean": "bool",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    **{f"{kind[0]}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (2, 4, 8, 16, 32, 64)},
    "string": "string",
    "bf16": "bfloat16",
    "f8e4m3": "float8e4m3fn",
    "f8e5m2": "float8e5m2",
    "f8e8m0": "float8e8m0",
    "f4e2m1": "float4e2m1",
}
"""OpenVINO's names of element types, and ours."""
_OWN: Final = {ours: own for own, ours in _TYPES.items()}
_NO_RULE: Final = re.compile(r"No conversion rule found for operations: *(.+)")
_VERSION: Final = re.compile(r"-\d+$")
_NO_TYPE: Final = re.compile(r"Unsupported data type (\w+) expected")
_COMPILATION: Final = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}


class OpenVinoOperators:
    """One compiled model per test, on ``options["device"]`` (default CPU), in float32 like the tests."""

    packages: tuple[str, ...] = ("openvino",)
    precision = Dtype.FLOAT32
    keeps_state = False
    reserves_address_space = False

    def __init__(self, *, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        self._device = str(options.get("device", "CPU"))
        self._core: Any = None

    @staticmethod
    def preload() -> None:
        """Import only the Python module: a Core starts threads, so it belongs into the child."""
        import openvino  # noqa: F401

    @staticmethod
    def service(options: Mapping[str, Any]) -> None:
        """Return None: nothing is shared."""

    def check(self) -> str:
        """Check that the runtime has the device.

        Raises:
            UnavailableError: the runtime does not list it.
            RuntimeError: its plugin cannot be loaded.
        """
        import openvino

        self._core = openvino.Core()
        return name_of(self._core, self._device)

    def execute(self, test: OperatorTest) -> Executed:
        """Read, compile and infer. Inputs that OpenVINO has folded away are not set.

        Raises:
            UnsupportedError: there is no conversion for an operator, or no such value type.
        """
        config = _COMPILATION | ({"INFERENCE_NUM_THREADS": "1"} if self._device == "CPU" else {})
        try:
            compiled = self._core.compile_model(self._core.read_model(test.model), self._device, config)
        except RuntimeError as error:
            refusal = _refusal(error)
            if refusal is None:
                raise
            raise refusal from error
        request = compiled.create_infer_request()
        known = {name for port in compiled.inputs for name in port.get_names()}
        for name, value in test.inputs:
            if name in known:
                request.set_tensor(name, _as_openvino_tensor(value))
        request.infer()
        outputs = tuple(_tensor_of(request.get_output_tensor(index)) for index in range(len(compiled.outputs)))
        devices = [str(device).strip("()").split(".")[0] for device in compiled.get_property("EXECUTION_DEVICES")]
        return Executed(outputs=outputs, on_target=devices.count(self._device.split(".")[0]) / len(devices))


def _as_openvino_tensor(value: Value) -> Any:
    import openvino

    if not isinstance(value, Tensor):
        raise UnsupportedError("OpenVINO's models take tensors only", needs=("sequences and optionals",), error_type="unsupported_type")
    if value.element == "string":
        return openvino.Tensor(value.array.astype(str))
    if value.native:
        return openvino.Tensor(np.array(value.array, order="C"))
    if value.element not in _OWN or not hasattr(openvino.Type, _OWN[value.element]):
        raise UnsupportedError(f"OpenVINO has no type {value.element}", needs=(value.element,), error_type="unsupported_type")
    tensor = openvino.Tensor(getattr(openvino.Type, _OWN[value.element]), openvino.Shape(value.shape))
    _bytes_of(tensor)[:] = value.array
    return tensor


def _tensor_of(tensor: Any) -> Tensor:
    own, shape = str(tensor.element_type.to_string()), tuple(tensor.shape)
    element = _TYPES[own]
    if element == "string":
        return Tensor(element=element, shape=shape, array=np.array(tensor.str_data, dtype=object).reshape(shape))
    if element in NATIVE:
        return Tensor(element=element, shape=shape, array=np.array(tensor.data))
    return Tensor(element=element, shape=shape, array=_bytes_of(tensor).copy())


def _bytes_of(tensor: Any) -> np.ndarray[Any, Any]:
    """A view of the bytes of a tensor whose type numpy lacks."""
    return np.asarray(tensor.data).reshape(-1).view(np.uint8)[: tensor.byte_size]


def _refusal(error: RuntimeError) -> UnsupportedError | None:
    """Return the typed failure for an error in which OpenVINO names what it does not support; None for any other error."""
    text = str(error)
    found = _NO_RULE.search(text)
    if found:
        listed = re.split(r",\s*", found[1].strip())
        return UnsupportedError(text, needs=tuple(sorted({_VERSION.sub("", operator) for operator in listed})))
    found = _NO_TYPE.search(text)
    if found:
        return UnsupportedError(text, needs=(found[1].lower(),), error_type="unsupported_type")
    return None
