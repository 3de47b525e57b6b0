"""A real headless Chromium: models as ONNX, executed by ONNX Runtime Web on WebGPU or WebNN."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, CrashedError, Problem, UnavailableError, UnsupportedError
from hwmatrix.hardware.browser import ASSETS, Installed, sparticuz
from hwmatrix.records import Dtype, Placement
from hwmatrix.targets.browser import trace as browser_trace
from hwmatrix.targets.browser.cell import CellPage, Made
from hwmatrix.targets.browser.chromium import ADAPTER, Chromium

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import Settings
    from hwmatrix.records.traces import Trace
    from hwmatrix.targets.browser.log import Nodes
    from hwmatrix.targets.protocol import Arrays

_SOFTWARE: Final = "swiftshader"
"""What the architecture of Chromium's own software adapter is called."""
_ADAPTER_FLAGS: Final = {
    "software": ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"),
    "hardware": ("--enable-unsafe-webgpu", "--enable-features=Vulkan"),
}
_WEBNN_FLAGS: Final = ("--enable-features=WebMachineLearningNeuralNetwork",)


class WebGpu:
    """WebGPU. ``options["adapter"]``: ``software`` (the default, which every machine has) or ``hardware``."""

    reserves_address_space = False

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        self._settings = settings
        self._wanted = _choice(options, "adapter", tuple(_ADAPTER_FLAGS))
        self._installed = _installed(options)
        self._export = options.get("export")
        self.page = CellPage(service, assets=self._installed.assets, threads=settings.threads)
        self._adapter: dict[str, Any] = {}
        self._made: Made | None = None
        self._elapsed_ms = 0.0

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Nothing beyond this module's own imports."""

    @staticmethod
    def service(options: Mapping[str, Any]) -> Chromium:
        """A browser for each cell: see :class:`Chromium`."""
        adapter = _choice(options, "adapter", tuple(_ADAPTER_FLAGS))
        return Chromium(_installed(options), flags=_ADAPTER_FLAGS[adapter], shares_device=adapter == "hardware", warm_up=ADAPTER)

    def check(self) -> str:
        """Open the page and ask for an adapter.

        Raises:
            UnavailableError: there is none, or the browser hangs.
        """
        self._installed.runtime_version()
        self.page.open()
        adapter = self.page.ask("adapter")
        if adapter is None:
            raise UnavailableError("the browser gives no WebGPU adapter", error_type="webgpu_no_adapter")
        self._adapter = adapter
        return _adapter_in_words(adapter)

    def load(self, bundle: Bundle) -> int:
        """Fetch runtime and model into the page."""
        self.page.load(bundle, only=self._export)
        return bundle.parameters

    def prepare(self, inputs: Arrays) -> str:
        """Make the session whose nodes are placed best; its shaders are compiled by the first run.

        Raises:
            UnsupportedError: the adapter has no such precision, or the runtime no kernel for an operator.
            CrashedError: the adapter that there was is not there any more.
        """
        _require_float32(self._settings.dtype, features=self._adapter["features"])
        try:
            self._made = self.page.prepare({"name": "webgpu"}, "WebGpu", inputs)
        except UnavailableError as failure:
            raise CrashedError(f"the adapter of this page has gone: {failure}", error_type="webgpu_device_lost") from failure
        return _method(self._made, self.page)

    def feed(self, inputs: Arrays) -> None:
        """Hand the page other inputs."""
        self.page.feed(inputs)

    def run(self) -> None:
        """One inference with its outputs read back, which ends only when the device is done."""
        self._elapsed_ms = self.page.run()

    def elapsed_ns(self) -> int | None:
        """The page's clock (performance.now, 5 microseconds in an isolated page): the way to the page is not the model's."""
        return round(self._elapsed_ms * 1e6)

    def outputs(self, result: Any) -> dict[str, np.ndarray[Any, Any]]:  # noqa: ARG002 - it has stayed in the page
        """The outputs of the last run."""
        return self.page.outputs()

    def placement(self) -> Placement:
        """The runtime's own log. A software adapter where hardware was asked for is another device: nothing ran on the target."""
        assert self._made is not None  # noqa: S101 - the order of the protocol
        return self.placed(self._made.nodes, self._made.device)

    def placed(self, nodes: Nodes, device: Mapping[str, Any] | None) -> Placement:
        """Where nodes are that the runtime has placed; ``device`` is that of the session, as far as it tells."""
        used = device or self._adapter
        software = bool(used.get("isFallbackAdapter")) or used.get("architecture") == _SOFTWARE
        if software and self._wanted == "hardware":
            detail = f"a software adapter, where hardware was asked for: {_adapter_in_words(used)}"
            return Placement(on_target=0.0, detail=detail)
        return nodes.placement("WebGpu", about=_adapter_in_words({**self._adapter, **used}))

    def device_use(self) -> None:
        """A browser does not tell."""

    def trace(self, bundle: Bundle) -> Trace:
        """The graph that was run, with all its values as outputs, in the same page, beside ONNX Runtime's on the processor.

        Raises:
            CellFailure: the values are too many, or the page does not take that graph.
        """
        assert self._made is not None  # noqa: S101 - the order of the protocol
        return browser_trace.trace(self.page, self._made, bundle)


class WebNn:
    """WebNN. ``options``: ``device`` is ``cpu``, ``gpu`` or ``npu``; ``browser`` is ``debian`` or ``sparticuz``."""

    reserves_address_space = False

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        self._settings = settings
        self._device = _choice(options, "device", ("cpu", "gpu", "npu"))
        self._installed = _installed(options)
        self._export = options.get("export")
        self.page = CellPage(service, assets=self._installed.assets, threads=settings.threads)
        self._made: Made | None = None
        self._elapsed_ms = 0.0

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Nothing beyond this module's own imports."""

    @staticmethod
    def service(options: Mapping[str, Any]) -> Chromium:
        """As for WebGPU."""
        shares_device = _choice(options, "device", ("cpu", "gpu", "npu")) != "cpu"
        return Chromium(_installed(options), flags=_WEBNN_FLAGS, shares_device=shares_device)

    def check(self) -> str:
        """Open the page and ask for a context.

        Raises:
            UnavailableError: the browser has no WebNN, or not on this platform, or hangs.
        """
        self._installed.runtime_version()
        self.page.open()
        context = self.page.ask("context", deviceType=self._device)
        if context is None:
            raise UnavailableError("the browser has no navigator.ml", error_type="webnn_unavailable")
        return f"WebNN context for {self._device}"

    def load(self, bundle: Bundle) -> int:
        """Fetch runtime and model into the page."""
        self.page.load(bundle, only=self._export)
        return bundle.parameters

    def prepare(self, inputs: Arrays) -> str:
        """Make the session whose nodes are placed best.

        Raises:
            UnsupportedError: it is not float32, or the runtime has no kernel for an operator.
        """
        _require_float32(self._settings.dtype, features=())
        self._made = self.page.prepare({"name": "webnn", "deviceType": self._device}, "WebNN", inputs)
        return _method(self._made, self.page)

    def feed(self, inputs: Arrays) -> None:
        """Hand the page other inputs."""
        self.page.feed(inputs)

    def run(self) -> None:
        """One inference with its outputs read back."""
        self._elapsed_ms = self.page.run()

    def elapsed_ns(self) -> int | None:
        """The page's clock, as for WebGPU."""
        return round(self._elapsed_ms * 1e6)

    def outputs(self, result: Any) -> dict[str, np.ndarray[Any, Any]]:  # noqa: ARG002 - it has stayed in the page
        """The outputs of the last run."""
        return self.page.outputs()

    def placement(self) -> Placement:
        """The runtime's own log, and the devices of the graphs: a context for a GPU is given where only the CPU computes."""
        assert self._made is not None  # noqa: S101 - the order of the protocol
        return self.placed(self._made.nodes, self._made.graphs)

    def placed(self, nodes: Nodes, graphs: Sequence[Sequence[str]]) -> Placement:
        """Where nodes are that the runtime has placed; ``graphs`` has the devices of each WebNN graph that it built."""
        devices = sorted({device for graph in graphs for device in graph})
        about = f"device type asked for: {self._device}; devices of {len(graphs)} graphs: {', '.join(devices) or 'not told'}"
        placement = nodes.placement("WebNN", about=about)
        elsewhere = bool(devices) and self._device not in devices
        return dataclasses.replace(placement, on_target=0.0) if elsewhere else placement

    def device_use(self) -> None:
        """A browser does not tell."""

    def trace(self, bundle: Bundle) -> Trace:
        """The graph that was run, with all its values as outputs, in the same page, beside ONNX Runtime's on the processor.

        Raises:
            CellFailure: the values are too many, or the page does not take that graph.
        """
        assert self._made is not None  # noqa: S101 - the order of the protocol
        return browser_trace.trace(self.page, self._made, bundle)


def _installed(options: Mapping[str, Any]) -> Installed:
    """The browser that the options name. ``executable`` and ``assets`` are for machines without our images."""
    assets = Path(options.get("assets", ASSETS))
    if options.get("executable") is not None:
        return Installed(executable=str(options["executable"]), assets=assets)
    if _choice(options, "browser", ("debian", "sparticuz")) == "sparticuz":
        return dataclasses.replace(sparticuz(), assets=assets)
    return Installed(assets=assets)


def _choice(options: Mapping[str, Any], key: str, allowed: tuple[str, ...]) -> str:
    """An option's value, or the first that is allowed.

    Raises:
        ConfigError: it is none of them.
    """
    value = options.get(key, allowed[0])
    if value not in allowed:
        raise ConfigError([Problem(where=f"options.{key}", what=f"{value!r} is not known", hint=f"one of: {', '.join(allowed)}")])
    return str(value)


def _require_float32(dtype: Dtype, *, features: Sequence[str]) -> None:
    """The exports are float32, and nothing here converts them."""
    if dtype is Dtype.FLOAT16 and "shader-f16" not in features:
        raise UnsupportedError("Unsupported feature: shader-f16", needs=("shader-f16",), error_type="webgpu_unsupported_feature")
    if dtype is not Dtype.FLOAT32:
        raise UnsupportedError(f"there is no {dtype.value} export", needs=(dtype.value,), error_type="unsupported_dtype")


def _adapter_in_words(adapter: Mapping[str, Any]) -> str:
    kind = "software" if adapter.get("isFallbackAdapter") or adapter.get("architecture") == _SOFTWARE else "hardware"
    names = " ".join(str(adapter[key]) for key in ("vendor", "architecture", "device", "description") if adapter.get(key))
    half = "with" if "shader-f16" in adapter.get("features", ()) else "without"
    return f"{kind} adapter {names}, {half} shader-f16"


def _method(made: Made, page: CellPage) -> str:
    graph = f"ONNX opset {made.export.opset} by the {made.export.exporter} exporter"
    return f"{graph}, ONNX Runtime Web {page.runtime_version}, {page.product}"
