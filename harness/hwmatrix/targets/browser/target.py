"""WebGPU and WebNN in a real headless Chromium: ONNX Runtime Web executes the ONNX exports."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, CrashedError, Problem, UnavailableError, UnsupportedError
from hwmatrix.hardware.browser import ASSETS, Installed, chosen, sparticuz
from hwmatrix.models.calibration import calibration_inputs
from hwmatrix.models.onnx_export import read_generation
from hwmatrix.records import Dtype, Placement
from hwmatrix.targets.browser import trace as browser_trace
from hwmatrix.targets.browser.cell import CellPage, Made
from hwmatrix.targets.browser.chromium import ADAPTER, Chromium
from hwmatrix.targets.browser.descriptors import WEBGPU, WEBNN
from hwmatrix.targets.browser.generator import HOST, PageGenerator
from hwmatrix.targets.onnx.generator import OnnxGenerator, in_precision
from hwmatrix.targets.onnx.in_float import GraphInFloat, session_in_float
from hwmatrix.targets.onnx.weights import ReducedGraph, reduced

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from hwmatrix.models.bundle import Bundle, GenerationPrompt
    from hwmatrix.models.generation_export import GenerationExport
    from hwmatrix.models.onnx_export import OnnxExport
    from hwmatrix.records import Prepared, Settings
    from hwmatrix.records.backends import Descriptor
    from hwmatrix.records.traces import Trace
    from hwmatrix.targets.browser.cell import Session
    from hwmatrix.targets.browser.log import Nodes
    from hwmatrix.targets.protocol import Arrays, GeneratingInFloat, InFloat, OnStep

_SOFTWARE: Final = "swiftshader"
"""The architecture name of Chromium's software adapter."""
_ADAPTER_FLAGS: Final = {
    "software": ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"),
    "hardware": ("--enable-unsafe-webgpu", "--enable-features=Vulkan"),
}
_PROVIDER: Final = {"name": "webgpu"}
"""ONNX Runtime Web's execution provider."""
_GENERATION: Final = "generation"
_HALF: Final = "shader-f16"
"""The feature of WebGPU adapters that compute in float16."""
_WEBNN_FLAGS: Final = ("--enable-features=WebMachineLearningNeuralNetwork",)


class _OnnxRuntimeWeb:
    """One page, in which ONNX Runtime Web executes the export with the best placement."""

    reserves_address_space = False

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        self._settings = settings
        self._installed = _installed(options)
        self._export = options.get("export")
        self._rewrite = bool(options.get("rewrite"))
        self.page = CellPage(service, assets=self._installed.assets, threads=settings.threads)
        self._made: Made | None = None
        self._bundle: Bundle | None = None
        self._generator: PageGenerator | None = None
        self._graphs: GenerationExport | None = None
        self._elapsed_ms = 0.0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._reduced: dict[str, tuple[OnnxExport, ReducedGraph]] = {}

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Import nothing beyond this module's own imports."""

    def load(self, bundle: Bundle) -> int:
        """Load the runtime and the model into the page, in the cell's precision. Return the number of parameters.

        Raises:
            UnsupportedError: the graph cannot be made in the cell's precision.
        """
        self._bundle = bundle
        self.page.load(bundle, self._in_precision, only=self._export, rewritten=self._rewritten if self._rewrite else None)
        return bundle.parameters

    def _rewritten(self, exports: tuple[OnnxExport, ...]) -> tuple[OnnxExport, ...]:
        from hwmatrix.targets.onnx.rewriting import CONSTANTS, rewritten

        return rewritten(exports, self._folder_of("rewritten"), constants=CONSTANTS if self._settings.dtype is Dtype.A8W8 else {})

    def _in_precision(self, export: OnnxExport) -> OnnxExport:
        """An export with its graph in the cell's precision, by ONNX Runtime's own tools."""
        dtype = self._settings.dtype
        if dtype is Dtype.FLOAT32:
            return export
        if export.exporter not in self._reduced:
            assert self._bundle is not None  # noqa: S101 - the order of the protocol
            folder = self._folder_of(export.exporter)
            calibrated = calibration_inputs(self._bundle, self._bundle.input_arrays()) if dtype is Dtype.A8W8 else []
            samples = [{name: sample[name] for name in export.inputs} for sample in calibrated]
            self._reduced[export.exporter] = export, reduced(export.path, folder, dtype, samples)
        return dataclasses.replace(export, path=self._reduced[export.exporter][1].path)

    def _folder_of(self, name: str) -> Path:
        """A new folder for graphs of this cell, which is removed with this object."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="hwmatrix-precision-")
        made = Path(self._folder.name) / name
        made.mkdir()
        return made

    def in_float(self) -> InFloat:
        """Compute the same graph with its rounded weights as float32 numbers by ONNX Runtime on the CPU, outside the page.

        Raises:
            TwinError: a weight cannot be read back.
        """
        export, graph = self._reduced[self._prepared.export.exporter]
        return GraphInFloat(graph.path, export, threads=self._settings.threads)

    def generator_in_float(self) -> GeneratingInFloat:
        """As :meth:`in_float`, to generate."""
        assert self._graphs is not None  # noqa: S101 - the order of the protocol
        return OnnxGenerator(self._graphs, lambda path: session_in_float(path, self._settings.threads))

    def _how(self) -> Prepared:
        export = self._prepared.export
        how = self._reduced[export.exporter][1].how if export.exporter in self._reduced else ""
        return export.prepared.then(how).then(_runtime(self.page))

    def precision(self) -> None:
        """Return None: the graph fixes the precision."""

    def feed(self, inputs: Arrays) -> None:
        """Send other inputs to the page."""
        self.page.feed(inputs)

    def run(self) -> None:
        """Run one inference and read back its outputs, which waits for the device."""
        self._elapsed_ms = self.page.run()

    def elapsed_ns(self) -> int | None:
        """The time by the page's clock (performance.now, resolution 5 us in an isolated page), without the DevTools round trip."""
        return round(self._elapsed_ms * 1e6)

    def outputs(self, result: Any) -> dict[str, np.ndarray[Any, Any]]:  # noqa: ARG002 - the result stays in the page
        """Return the outputs of the last run."""
        return self.page.outputs()

    def load_generator(self, bundle: Bundle) -> int:
        """Load the runtime into the page. Return the number of parameters; the graphs hold the weights."""
        self.page.load_runtime()
        self._bundle = bundle
        return bundle.parameters

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> tuple[int, ...]:
        """Run the graphs step by step. The times are those of the page's clock."""
        assert self._generator is not None  # noqa: S101 - the order of the protocol
        return self._generator.generate(prompt, on_step, forced=forced)

    def cache_mb(self) -> float | None:
        """The size of the cache, which stays in the page."""
        return self._generator.cache_mb() if self._generator is not None else None

    def device_use(self) -> None:
        """Return None: a browser does not report it."""

    def trace(self, bundle: Bundle) -> Trace:
        """Run the chosen graph in the same page with all its values as outputs, and compare with ONNX Runtime on the CPU.

        Raises:
            CellFailure: the values take too much memory, or the page does not accept that graph.
        """
        return browser_trace.trace(self.page, self._prepared, bundle)

    def _generation(self, provider: Mapping[str, Any], place: str) -> Prepared:
        """Create a session for each graph of prefill and decoding, with the cache in this place. Return how.

        Raises:
            UnsupportedError: the exporter cannot express an operator, or the runtime has no kernel for one. Or the graphs cannot be made in
                the cell's precision.
            CellFailure: there are no graphs, or the runtime does not accept them.
        """
        assert self._bundle is not None  # noqa: S101 - the order of the protocol
        found = read_generation(self._bundle, self._bundle.path.parent, _GENERATION)
        if self._rewrite:
            from hwmatrix.targets.onnx.rewriting import rewritten_generation

            found = rewritten_generation(found, self._folder_of("rewritten"))
        graphs = self._graphs = in_precision(found, self._folder_of(_GENERATION), self._settings.dtype)
        self._generator = PageGenerator(self.page, graphs, provider, place=place)
        where = "the page's memory" if place == HOST else f"the device's memory ({place})"
        return graphs.prepared.then(f"the cache in {where}, {_runtime(self.page)}")

    def _about_cache(self) -> str:
        """Where the cache was, to be added to the placement of a cell that generates."""
        return f"; {self._generator.where()}" if self._generator is not None else ""

    @property
    def _session(self) -> Session:
        return self._prepared if self._generator is None else self._generator.session

    @property
    def _prepared(self) -> Made:
        assert self._made is not None  # noqa: S101 - the order of the protocol
        return self._made


class WebGpu(_OnnxRuntimeWeb):
    """WebGPU. ``options["adapter"]`` is ``software`` (the default, available on every machine) or ``hardware``."""

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings=settings, options=options, service=service)
        self._wanted = _choice(options, "adapter", WEBGPU)
        self._adapter: dict[str, Any] = {}

    @staticmethod
    def service(options: Mapping[str, Any]) -> Chromium:
        """Return a browser for each cell: see :class:`Chromium`."""
        adapter = _choice(options, "adapter", WEBGPU)
        return Chromium(_installed(options), flags=_ADAPTER_FLAGS[adapter], shares_device=adapter == "hardware", warm_up=ADAPTER)

    def check(self) -> str:
        """Open the page and request an adapter.

        Raises:
            UnavailableError: there is none, or the browser hangs.
            UnsupportedError: the adapter lacks the cell's precision, or graphs are not converted to it.
        """
        self._installed.runtime_version()
        self.page.open()
        adapter = self.page.ask("adapter")
        if adapter is None:
            raise UnavailableError("the browser provides no WebGPU adapter", error_type="webgpu_no_adapter")
        self._adapter = adapter
        _require(self._settings.dtype, WEBGPU, adapter["features"])
        return _adapter_in_words(adapter)

    def prepare(self, inputs: Arrays) -> Prepared:
        """Create the session with the best placement. The first run compiles its shaders.

        Raises:
            UnsupportedError: the runtime has no kernel for an operator, or the graph cannot be made in the cell's precision.
            CrashedError: the adapter that ``check`` found is gone.
        """
        with _with_the_adapter():
            self._made = self.page.prepare(_PROVIDER, "WebGpu", inputs)
        return self._how()

    def prepare_generator(self, prompt: GenerationPrompt) -> Prepared:  # noqa: ARG002 - the graphs were exported for this prompt
        """Create the sessions of prefill and decoding. The cache stays in buffers of the device.

        Raises:
            UnsupportedError: an operator cannot be expressed or has no kernel.
            CrashedError: the adapter that ``check`` found is gone.
            CellFailure: there are no graphs, or the runtime does not accept them.
        """
        with _with_the_adapter():
            return self._generation(_PROVIDER, "gpu-buffer")

    def placement(self) -> Placement:
        """The placement from the runtime's log: 0 if a software adapter was used although hardware was requested."""
        found = self.placed(self._session.nodes, self._session.device)
        return dataclasses.replace(found, detail=f"{found.detail}{self._about_cache()}")

    def placed(self, nodes: Nodes, device: Mapping[str, Any] | None) -> Placement:
        """The placement of nodes. ``device`` is the adapter information of the session, as far as it is known."""
        used = device or self._adapter
        software = bool(used.get("isFallbackAdapter")) or used.get("architecture") == _SOFTWARE
        if software and self._wanted == "hardware":
            detail = f"a software adapter, although hardware was requested: {_adapter_in_words(used)}"
            return Placement(on_target=0.0, detail=detail)
        return nodes.placement("WebGpu", about=_adapter_in_words({**self._adapter, **used}))


class WebNn(_OnnxRuntimeWeb):
    """WebNN. ``options``: ``device`` is ``cpu``, ``gpu`` or ``npu``; ``browser`` is ``image``, ``debian`` or ``sparticuz``."""

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings=settings, options=options, service=service)
        self._device = _choice(options, "device", WEBNN)

    @staticmethod
    def service(options: Mapping[str, Any]) -> Chromium:
        """Return a browser for each cell, as for WebGPU."""
        shares_device = _choice(options, "device", WEBNN) != "cpu"
        return Chromium(_installed(options), flags=_WEBNN_FLAGS, shares_device=shares_device)

    def check(self) -> str:
        """Open the page and request a context.

        Raises:
            UnavailableError: the browser or this platform has no WebNN, or the browser hangs.
            UnsupportedError: graphs are not converted to the cell's precision.
        """
        self._installed.runtime_version()
        self.page.open()
        context = self.page.ask("context", deviceType=self._device)
        if context is None:
            raise UnavailableError("the browser has no navigator.ml", error_type="webnn_unavailable")
        _require(self._settings.dtype, WEBNN)
        return f"WebNN context for {self._device}"

    def prepare(self, inputs: Arrays) -> Prepared:
        """Create the session with the best placement.

        Raises:
            UnsupportedError: the runtime has no kernel for an operator, or the graph cannot be made in the cell's precision.
        """
        self._made = self.page.prepare(self._provider, "WebNN", inputs)
        return self._how()

    def prepare_generator(self, prompt: GenerationPrompt) -> Prepared:  # noqa: ARG002 - the graphs were exported for this prompt
        """Create the sessions of prefill and decoding. The cache is in the page's memory between steps.

        With the cache in WebNN's tensors (``ml-tensor``), ONNX Runtime Web 1.30.0 is wrong as soon as a step takes them
        (docs/targets/webnn.md).

        Raises:
            UnsupportedError: an operator cannot be expressed or has no kernel.
            CellFailure: there are no graphs, or the runtime does not accept them.
        """
        return self._generation(self._provider, HOST)

    @property
    def _provider(self) -> dict[str, Any]:
        return {"name": "webnn", "deviceType": self._device}

    def placement(self) -> Placement:
        """The placement by the runtime's log and the graphs' devices: a GPU context may be granted although only the CPU computes."""
        found = self.placed(self._session.nodes, self._session.graphs)
        return dataclasses.replace(found, detail=f"{found.detail}{self._about_cache()}")

    def placed(self, nodes: Nodes, graphs: Sequence[Sequence[str]]) -> Placement:
        """The placement of nodes. ``graphs`` has the devices of each WebNN graph that the runtime built."""
        devices = sorted({device for graph in graphs for device in graph})
        about = f"requested device type: {self._device}; devices of {len(graphs)} graphs: {', '.join(devices) or 'not reported'}"
        placement = nodes.placement("WebNN", about=about)
        elsewhere = bool(devices) and self._device not in devices
        return dataclasses.replace(placement, on_target=0.0) if elsewhere else placement


def _installed(options: Mapping[str, Any]) -> Installed:
    """The browser that the options select, by default the image's. ``executable`` and ``assets`` are for machines without our images."""
    assets = Path(options.get("assets", ASSETS))
    if options.get("executable") is not None:
        return Installed(executable=str(options["executable"]), assets=assets)
    browser = {"image": chosen, "debian": Installed, "sparticuz": sparticuz}[_choice(options, "browser", WEBGPU)]
    return dataclasses.replace(browser(), assets=assets)


def _choice(options: Mapping[str, Any], key: str, descriptor: Descriptor) -> str:
    """Return an option's value, or the first that the descriptor allows if it is not set.

    Raises:
        ConfigError: the value is not allowed.
    """
    allowed = descriptor.every_option[key].values
    value = options.get(key, allowed[0])
    if value not in allowed:
        raise ConfigError([Problem(where=f"options.{key}", what=f"{value!r} is not known", hint=f"one of: {', '.join(allowed)}")])
    return str(value)


def _require(dtype: Dtype, descriptor: Descriptor, features: Sequence[str] = (_HALF,)) -> None:
    """Raise UnsupportedError if graphs are not converted to a precision, or the adapter, with these features, lacks it."""
    if dtype in {Dtype.FLOAT16, Dtype.INT4_FLOAT16} and _HALF not in features:
        raise UnsupportedError(f"Unsupported feature: {_HALF}", needs=(_HALF,), error_type="webgpu_unsupported_feature")
    if dtype not in descriptor.precisions:
        known = ", ".join(each.value for each in descriptor.precisions if each is not Dtype.FLOAT32)
        message = f"the exports are float32, and are converted to {known}, not to {dtype.value}"
        raise UnsupportedError(message, needs=(dtype.value,), error_type="unsupported_dtype")


def _adapter_in_words(adapter: Mapping[str, Any]) -> str:
    kind = "software" if adapter.get("isFallbackAdapter") or adapter.get("architecture") == _SOFTWARE else "hardware"
    names = " ".join(str(adapter[key]) for key in ("vendor", "architecture", "device", "description") if adapter.get(key))
    half = "with" if _HALF in adapter.get("features", ()) else "without"
    return f"{kind} adapter {names}, {half} {_HALF}"


def _runtime(page: CellPage) -> str:
    return f"ONNX Runtime Web {page.runtime_version}, {page.product}"


@contextlib.contextmanager
def _with_the_adapter() -> Iterator[None]:
    """The adapter was there before: if there is none now, the browser's GPU process has ended.

    Raises:
        CrashedError: there is none now.
    """
    try:
        yield
    except UnavailableError as failure:
        raise CrashedError(f"the adapter of this page is gone: {failure}", error_type="webgpu_device_lost") from failure
