"""The ONNX standard's operator tests in a browser, on ONNX Runtime Web with WebGPU or WebNN. One page runs many tests."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.errors import UnsupportedError
from hwmatrix.models.operator_tests import Tensor
from hwmatrix.records import Dtype, Settings
from hwmatrix.targets.browser.cell import encoded
from hwmatrix.targets.browser.descriptors import WEBGPU, WEBNN
from hwmatrix.targets.browser.log import parse
from hwmatrix.targets.browser.target import WebGpu, WebNn
from hwmatrix.targets.protocol import Executed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.models.operator_tests import OperatorTest, Value
    from hwmatrix.targets.browser.cell import CellPage
    from hwmatrix.targets.browser.chromium import Chromium

_SETTINGS: Final = Settings(dtype=Dtype.FLOAT32, batch=1, sequence_length=1, threads=1)
_PACKED: Final = frozenset({"int4", "uint4"})
"""Types that numpy lacks and that ONNX Runtime Web takes as packed bytes."""


class _BrowserOperators:
    """One page, into which the runtime is loaded once."""

    precision = Dtype.FLOAT32
    keeps_state = False
    reserves_address_space = False
    _target: WebGpu | WebNn

    @staticmethod
    def preload() -> None:
        """Import nothing beyond this module's own imports."""

    def check(self) -> str:
        """Open a page, request an adapter or a context, and load the runtime.

        Raises:
            UnavailableError: the browser or this platform does not have it, or the browser hangs.
        """
        device, page = self._target.check(), self._target.page
        page.load_runtime()
        return f"{device}, ONNX Runtime Web {page.runtime_version}, {page.product}"


class WebGpuOperators(_BrowserOperators):
    """Executes operator tests on WebGPU, with the options of :class:`WebGpu`."""

    packages: tuple[str, ...] = WEBGPU.packages

    def __init__(self, *, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        self._target: WebGpu = WebGpu(settings=_SETTINGS, options=options, service=service)

    @staticmethod
    def service(options: Mapping[str, Any]) -> Chromium:
        """Return one browser for all pages."""
        return WebGpu.service(options)

    def execute(self, test: OperatorTest) -> Executed:
        """Run one session once.

        Raises:
            UnsupportedError: the runtime has no kernel for an operator, or does not support a value's type.
            CrashedError: the page, the browser or the device was lost.
        """
        answer = _answer_of(self._target.page, test, {"name": "webgpu"})
        placement = self._target.placed(parse(answer["log"]), answer["device"])
        return Executed(outputs=_outputs(answer), on_target=placement.on_target)


class WebNnOperators(_BrowserOperators):
    """Executes operator tests on WebNN, with the options of :class:`WebNn`."""

    packages: tuple[str, ...] = WEBNN.packages

    def __init__(self, *, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        self._target: WebNn = WebNn(settings=_SETTINGS, options=options, service=service)
        self._device = str(options.get("device", "cpu"))

    @staticmethod
    def service(options: Mapping[str, Any]) -> Chromium:
        """Return a browser for each page."""
        return WebNn.service(options)

    def execute(self, test: OperatorTest) -> Executed:
        """Run one session once.

        Raises:
            UnsupportedError: the runtime has no kernel for an operator, or does not support a value's type.
            CrashedError: the page, the browser or the context was lost.
        """
        answer = _answer_of(self._target.page, test, {"name": "webnn", "deviceType": self._device})
        placement = self._target.placed(parse(answer["log"]), answer["graphs"])
        return Executed(outputs=_outputs(answer), on_target=placement.on_target)


def _answer_of(page: CellPage, test: OperatorTest, provider: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = page.call(
        "execute",
        graph=base64.b64encode(test.model).decode("ascii"),
        provider=dict(provider),
        inputs={name: _as_page_value(value) for name, value in test.inputs},
    )
    return answer


def _as_page_value(value: Value) -> dict[str, Any]:
    if not isinstance(value, Tensor):
        raise UnsupportedError("ONNX Runtime Web takes tensors only", needs=("sequences and optionals",), error_type="unsupported_type")
    if value.element == "string":
        return {"dtype": "string", "shape": list(value.shape), "data": value.array.reshape(-1).tolist()}
    if not value.native and value.element not in _PACKED:
        raise UnsupportedError(f"ONNX Runtime Web has no type {value.element}", needs=(value.element,), error_type="unsupported_type")
    return encoded(value.array) | {"dtype": value.element, "shape": list(value.shape)}


def _outputs(answer: Mapping[str, Any]) -> tuple[Tensor, ...]:
    return tuple(_tensor_of(result) for result in answer["results"])


def _tensor_of(result: Mapping[str, Any]) -> Tensor:
    element, shape = str(result["dtype"]), tuple(result["shape"])
    if element == "string":
        return Tensor(element=element, shape=shape, array=np.array(result["data"], dtype=object).reshape(shape))
    raw = np.frombuffer(base64.b64decode(result["data"]), dtype=np.uint8)
    tensor = Tensor(element=element, shape=shape, array=raw)
    return Tensor(element=element, shape=shape, array=raw.view(element).reshape(shape)) if tensor.native else tensor
