"""OpenVINO: compiles the bundle's converted graph for one of its devices, or converts the model itself."""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from hwmatrix.errors import TwinError
from hwmatrix.models import exporter_imports, openvino_graph
from hwmatrix.models.build import load_model
from hwmatrix.models.calibration import calibration_inputs
from hwmatrix.models.onnx_export import read_generation, read_openvino
from hwmatrix.models.openvino_conversion import Converted, by_exporter, by_trace, convert
from hwmatrix.records import Dtype, Placement, Preparation
from hwmatrix.targets.openvino.descriptor import OPENVINO, TRACE
from hwmatrix.targets.openvino.device import input_names, name_of, tensor
from hwmatrix.targets.openvino.generator import OpenVinoGenerator
from hwmatrix.targets.openvino.weights import in_float32, reduced
from hwmatrix.targets.torch.device import preload_torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hwmatrix.models.bundle import Bundle, GenerationPrompt
    from hwmatrix.models.generation_export import GenerationExport
    from hwmatrix.models.openvino_conversion import OpenVinoExport
    from hwmatrix.records import Prepared, Settings
    from hwmatrix.records.traces import Trace
    from hwmatrix.targets.protocol import Arrays, GeneratingInFloat, InFloat, OnStep

_GENERATION: Final = "generation-openvino"
_CACHE: Final = "KV_CACHE_PRECISION"
_DYNAMIC: Final = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
PRECISION_HINTS: Final = {Dtype.FLOAT32: "f32", Dtype.FLOAT16: "f16", Dtype.BFLOAT16: "bf16"}


_REDUCED: Final = frozenset({Dtype.FLOAT16, Dtype.INT8, Dtype.INT4, Dtype.A8W8})
"""The precisions of the weights in the graph, whatever they are multiplied in."""
_PRODUCTS: Final = ("FullyConnected", "MatMul", "Convolution", "GroupConvolution", "LLMMLP", "QKVProjection")
"""The CPU plugin's types of layers that multiply by weights."""


class _InFloat:
    """A graph whose weights are float32 numbers, compiled."""

    def __init__(self, compiled: Any, names: tuple[str | None, ...]) -> None:
        self._compiled = compiled
        self._names = names
        self._request = compiled.create_infer_request()

    def outputs(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Run one synchronous inference."""
        _set(self._request, self._compiled, inputs)
        self._request.infer()
        return _read(self._request, self._names)


class OpenVino:
    """Compiles a converted graph for ``options["device"]`` (default CPU).

    The graph is the bundle's export. If it has none, or an option asks for another graph, the model is converted here: with transformers'
    exporter or else OpenVINO's converter. So a model that cannot be converted fails here, with its own error.
    """

    reserves_address_space = False

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        self._settings = settings
        self._device = str(options.get("device", "CPU"))
        self._attention = options.get("attention")
        self._convert_model = {None: convert, TRACE: by_trace}.get(options.get("export"), by_exporter)
        self._own = any(options.get(name) is not None for name in OPENVINO.own_graph)
        self._hints = bool(options.get("precision_hints", True))
        self._core: Any = None
        self._model: torch.nn.Module | None = None
        self._export: OpenVinoExport | None = None
        self._compiled: Any = None
        self._program: Any = None
        self._request: Any = None
        self._output_names: tuple[str | None, ...] = ()
        self._bundle: Bundle | None = None
        self._generator: OpenVinoGenerator | None = None
        self._graphs: GenerationExport | None = None
        self._programs: dict[Path, Any] = {}
        self._alive: list[Any] = []

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Import only the Python modules: a Core starts threads, so it belongs into the child. Without classes, nothing is converted."""
        openvino_graph.without_telemetry()
        import openvino  # noqa: F401

        with contextlib.suppress(ImportError):  # a cell that needs it meets the same error and records it
            importlib.import_module("nncf")
        if model_classes:
            exporter_imports.for_openvino()
            preload_torch(model_classes)

    @staticmethod
    def service(options: Mapping[str, Any]) -> None:
        """Return None: cells share nothing."""

    def check(self) -> str:
        """Check that the runtime has the device.

        Raises:
            UnavailableError: the runtime does not list it.
            RuntimeError: it lists none, not even the CPU, since its plugin cannot be loaded; the message says why.
        """
        openvino_graph.without_telemetry()
        import openvino

        if self._settings.threads:
            torch.set_num_threads(self._settings.threads)
        self._core = openvino.Core()
        return name_of(self._core, self._device)

    def load(self, bundle: Bundle) -> int:
        """Read and verify the bundle's export, or load the PyTorch model for the conversion. Return the model's number of parameters."""
        self._bundle = bundle
        self._export = None if self._own else read_openvino(bundle, bundle.path.parent)
        if self._export is not None:
            return bundle.parameters
        self._model = load_model(bundle.model_dir, bundle.model_class, Dtype.FLOAT32, attention=self._attention)
        return sum(parameter.numel() for parameter in self._model.parameters())

    def prepare(self, inputs: Arrays) -> Prepared:
        """Read the graph or convert the model and release it, fix the shapes to those of the inputs, and compile.

        Raises:
            UnsupportedError: OpenVINO has no conversion for an operator of the model.
        """
        converted = self._graph(inputs)
        self._output_names = converted.output_names
        program, how = self._reduced(converted.program, inputs)
        self._program = program if self._settings.dtype in OPENVINO.rounds else None
        self._compiled = self._compile(program)
        self._request = self._compiled.create_infer_request()
        self.feed(inputs)
        return converted.prepared.then(how, Preparation.FIXED_SHAPES)

    def _reduced(self, program: Any, inputs: Arrays) -> tuple[Any, str]:
        """The graph with its weights in the cell's precision, and how that was made, in words."""
        dtype = self._settings.dtype
        if dtype not in _REDUCED:
            return program, ""
        assert self._bundle is not None  # noqa: S101 - the order of the protocol
        made, how = reduced(program, dtype, calibration_inputs(self._bundle, inputs) if dtype is Dtype.A8W8 else ())
        return made, f"{how}{'' if self._hints else ', multiplied as the plugin chooses'}"

    def in_float(self) -> InFloat:
        """Compile the same graph with its rounded weights as float32 numbers.

        Raises:
            TwinError: a weight cannot be read back, or the plugin chooses what it multiplies in.
        """
        return _InFloat(self._compile(self._in_float32(self._program)), self._output_names)

    def _in_float32(self, program: Any) -> Any:
        if not self._hints:
            raise TwinError("without precision hints it is not known what the plugin rounds")
        return in_float32(program)

    def _compile(self, program: Any) -> Any:
        """Compile a graph, or one in a file. It lives as long as this object.

        Otherwise OpenVINO 2026.4.1 may compute another one wrong (mamba: a step without logits, once the same graph before was released).
        """
        compiled = self._core.compile_model(program, self._device, self._config())
        self._alive.append(compiled)
        return compiled

    def precision(self) -> Dtype | None:
        """INFERENCE_PRECISION_HINT of the compiled model: a plugin replaces a hint that it cannot follow, or chooses without one.

        None if the precision is that of the weights: the placement then says what they are multiplied in.
        """
        if self._settings.dtype in _REDUCED:
            return None
        chosen = self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        return next((dtype for dtype, hint in PRECISION_HINTS.items() if hint == chosen), None)

    def feed(self, inputs: Arrays) -> None:
        """Set other inputs in the request."""
        _set(self._request, self._compiled, inputs)

    def _graph(self, inputs: Arrays) -> Converted:
        """The graph with the shapes of the inputs: read, or converted from the loaded model, which is released."""
        if self._export is not None:
            program = self._core.read_model(self._export.path)
            converted = Converted(program=program, output_names=self._export.outputs, prepared=self._export.prepared)
        else:
            assert self._model is not None  # noqa: S101 - the order of the protocol
            converted = self._convert_model(self._model, {name: torch.from_numpy(array) for name, array in inputs.items()})
            self._model = None
        taken = input_names(converted.program)
        converted.program.reshape({name: list(array.shape) for name, array in inputs.items() if name in taken})
        return converted

    def _config(self) -> dict[str, str]:
        dtype = self._settings.dtype
        if dtype is Dtype.DEFAULT:  # as for a program that sets nothing
            return {}
        config = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
        if dtype in _REDUCED and self._hints:
            wide = dtype is Dtype.FLOAT16 and "FP16" in self._core.get_property(self._device, "OPTIMIZATION_CAPABILITIES")
            config["INFERENCE_PRECISION_HINT"] = PRECISION_HINTS[Dtype.FLOAT16 if wide else Dtype.FLOAT32]
            if _DYNAMIC in self._core.get_property(self._device, "SUPPORTED_PROPERTIES"):
                config[_DYNAMIC] = "0"  # else the plugin rounds activations, too, on processors that gain from it
        elif dtype not in _REDUCED:
            config["INFERENCE_PRECISION_HINT"] = PRECISION_HINTS[dtype]
        if self._device == "CPU":
            config["INFERENCE_NUM_THREADS"] = str(self._settings.threads)
        return config

    def run(self) -> Any:
        """Run one synchronous inference. The inputs are already in the request."""
        self._request.infer()
        return self._request

    def elapsed_ns(self) -> int | None:
        """None: the host's clock is right, since a run returns when it is done."""
        return None

    def outputs(self, result: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Return a copy of each output, since the next inference overwrites the request's buffers."""
        return _read(result, self._output_names)

    def placement(self) -> Placement:
        """EXECUTION_DEVICES of the compiled model, and the number of nodes of its executed graph."""
        devices = [str(device) for device in self._compiled.get_property("EXECUTION_DEVICES")]
        wanted = self._device.split(".")[0]
        matching = [device for device in devices if device.strip("()").split(".")[0] == wanted]
        kinds = Counter(operation.get_type_name() for operation in self._compiled.get_runtime_model().get_ops())
        nodes = sum(kinds.values())
        share = len(matching) / len(devices) if devices else 0.0
        told = f"EXECUTION_DEVICES {devices}, {nodes} nodes in the compiled graph"
        if self._settings.dtype in _REDUCED:
            told += f"; {_products(self._compiled)}"
        return Placement(on_target=share, detail=told)

    def load_generator(self, bundle: Bundle) -> int:
        """Return the model's number of parameters. The graphs hold the weights."""
        self._bundle = bundle
        return bundle.parameters

    def prepare_generator(self, prompt: GenerationPrompt) -> Prepared:  # noqa: ARG002 - the graphs were exported for this prompt
        """Read and verify the graphs of prefill and decoding, and compile them.

        Raises:
            UnsupportedError: OpenVINO has no conversion for an operator of the model.
            CellFailure: there are no graphs.
        """
        assert self._bundle is not None  # noqa: S101 - the order of the protocol
        graphs = read_generation(self._bundle, self._bundle.path.parent, _GENERATION)
        made = ""

        def compiled(path: Any) -> Any:
            nonlocal made
            program, made = self._reduced(self._core.read_model(path), {}) if self._settings.dtype in _REDUCED else (path, "")
            if self._settings.dtype in OPENVINO.rounds:
                self._programs[path] = program
            return self._compile(program)

        self._generator, self._graphs = OpenVinoGenerator(graphs, compiled), graphs
        self._compiled = self._generator.decoding
        return graphs.prepared.then(made).then(self._precision_of_the_cache())

    def generator_in_float(self) -> GeneratingInFloat:
        """As :meth:`in_float`, to generate."""
        assert self._graphs is not None  # noqa: S101 - the order of the protocol
        return OpenVinoGenerator(self._graphs, lambda path: self._compile(self._in_float32(self._programs[path])))

    def _precision_of_the_cache(self) -> str:
        """The precision in which the compiled graph keeps its state, in words. The plugin chooses it apart from that of the computation."""
        if not self._generator or not self._generator.stateful or _CACHE not in self._compiled.get_property("SUPPORTED_PROPERTIES"):
            return ""
        return f"KV cache in {self._compiled.get_property(_CACHE).to_string()}"

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> None:
        """Run the graphs step by step."""
        assert self._generator is not None  # noqa: S101 - the order of the protocol
        self._generator.generate(prompt, on_step, forced=forced)

    def cache_mb(self) -> float | None:
        """The size of the states, which hold the cache."""
        return self._generator.cache_mb() if self._generator is not None else None

    def device_use(self) -> None:
        """Return None: OpenVINO does not report what its plugins allocate."""

    def trace(self, bundle: Bundle) -> Trace:
        """Read or convert the graph again with every value as an output, and compare with the same graph computed without a plugin."""
        from hwmatrix.targets.openvino.trace import trace_graph

        self.load(bundle)
        inputs = bundle.input_arrays()
        converted = self._graph(inputs)
        program, _ = self._reduced(converted.program, inputs)
        return trace_graph(self._core, self._device, self._config(), program, converted.output_names, inputs)


def _set(request: Any, compiled: Any, inputs: Arrays) -> None:
    """Set the inputs that a compiled graph takes."""
    taken = input_names(compiled)
    for name, array in inputs.items():
        if name in taken:
            request.set_tensor(name, tensor(array, compiled.input(name)))


def _read(request: Any, names: tuple[str | None, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """A copy of each output by the reference's name, since the next inference overwrites the request's buffers."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for index, name in enumerate(names):
        if name is not None:
            data = np.array(request.get_output_tensor(index).data)
            arrays[name] = data.astype(np.float32) if np.issubdtype(data.dtype, np.floating) else data
    return arrays


def _products(compiled: Any) -> str:
    """How the executed graph multiplies by weights, in the plugin's words: the layer, the weights' type, and the kernel."""
    kinds: Counter[str] = Counter()
    for operation in compiled.get_runtime_model().get_ops():
        known = operation.get_rt_info()
        layer = str(known["layerType"].astype(str)) if "layerType" in known else operation.get_type_name()
        if layer in _PRODUCTS:
            kernel = str(known["primitiveType"].astype(str)) if "primitiveType" in known else "an unnamed kernel"
            weights = operation.input_value(1).get_element_type().get_type_name() if operation.get_input_size() > 1 else "no"
            kinds[f"{layer} of {weights} weights by {kernel}"] += 1
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "no product with weights"
