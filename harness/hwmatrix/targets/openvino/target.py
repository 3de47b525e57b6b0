"""OpenVINO: converts the model to an OpenVINO graph, compiled for one of its devices."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from hwmatrix.errors import UnavailableError, UnsupportedError
from hwmatrix.models.build import load_model
from hwmatrix.models.onnx_graph import INPUT_PREFIX, OUTPUT_PREFIX
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.records import Dtype, Placement
from hwmatrix.targets.openvino.descriptor import TRACE
from hwmatrix.targets.torch.device import preload_torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import Settings
    from hwmatrix.records.traces import Trace
    from hwmatrix.targets.protocol import Arrays

PRECISION_HINTS: Final = {Dtype.FLOAT32: "f32", Dtype.FLOAT16: "f16", Dtype.BFLOAT16: "bf16"}
_MISSING: Final = re.compile(r"(?:No conversion rule found for operations|Conversion is failed for): *(.+)")
"""Matches the summary of OpenVINO's conversion failures: names such as ``aten::linalg_inv_ex``, separated by commas."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Converted:
    """An OpenVINO model, the reference's name of each of its outputs (None: not compared), and how it was made."""

    program: Any
    output_names: tuple[str | None, ...]
    method: str


class OpenVino:
    """Converts with transformers' exporter or else OpenVINO's converter, and compiles for ``options["device"]`` (default CPU)."""

    reserves_address_space = False

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        self._settings = settings
        self._device = str(options.get("device", "CPU"))
        self._attention = options.get("attention")
        self._export = options.get("export")
        self._core: Any = None
        self._model: torch.nn.Module | None = None
        self._compiled: Any = None
        self._request: Any = None
        self._output_names: tuple[str | None, ...] = ()

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Import only the Python modules: a Core starts threads, so it belongs into the child."""
        _without_telemetry()
        import openvino  # noqa: F401
        from transformers.exporters import exporter_openvino  # noqa: F401

        preload_torch(model_classes)

    @staticmethod
    def service(options: Mapping[str, Any]) -> None:
        """Return None: cells share nothing."""

    def check(self) -> str:
        """Check that the runtime has the device.

        Raises:
            UnavailableError: the runtime does not list it.
        """
        _without_telemetry()
        import openvino

        torch.set_num_threads(self._settings.threads)
        self._core = openvino.Core()
        devices = list(self._core.available_devices)
        if self._device.split(".")[0] not in {device.split(".")[0] for device in devices}:
            listed = ", ".join(devices) or "none"
            raise UnavailableError(
                f"OpenVINO {openvino.__version__} has no device {self._device!r} here (it lists: {listed})",
                error_type="openvino_device_missing",
            )
        return f"{self._device}: {self._core.get_property(self._device, 'FULL_DEVICE_NAME')}"

    def load(self, bundle: Bundle) -> int:
        """Load the PyTorch model for the conversion. Return its number of parameters."""
        self._model = load_model(bundle.model_dir, bundle.model_class, Dtype.FLOAT32, attention=self._attention)
        return sum(parameter.numel() for parameter in self._model.parameters())

    def prepare(self, inputs: Arrays) -> str:
        """Convert the model, fix the shapes to those of the inputs, and compile. The PyTorch model is released afterwards.

        Raises:
            UnsupportedError: OpenVINO has no conversion for an operator of the model.
        """
        converted = self._convert(inputs)
        self._output_names = converted.output_names
        self._compiled = self._core.compile_model(converted.program, self._device, self._config())
        self._request = self._compiled.create_infer_request()
        self.feed(inputs)
        return converted.method

    def precision(self) -> Dtype | None:
        """INFERENCE_PRECISION_HINT of the compiled model: a plugin replaces a hint that it cannot follow, or chooses without one."""
        chosen = self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        return next((dtype for dtype, hint in PRECISION_HINTS.items() if hint == chosen), None)

    def feed(self, inputs: Arrays) -> None:
        """Set other inputs in the request."""
        taken = _input_names(self._compiled)
        for name, array in inputs.items():
            if name in taken:
                self._request.set_tensor(name, _tensor(array, self._compiled.input(name)))

    def _convert(self, inputs: Arrays) -> Converted:
        """Convert the loaded model to a graph with the shapes of the inputs, and release the model."""
        assert self._model is not None  # noqa: S101 - the order of the protocol
        converted = convert(self._model, {name: torch.from_numpy(array) for name, array in inputs.items()}, only=self._export)
        self._model = None
        taken = _input_names(converted.program)
        converted.program.reshape({name: list(array.shape) for name, array in inputs.items() if name in taken})
        return converted

    def _config(self) -> dict[str, str]:
        config = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
        if self._settings.dtype is not Dtype.DEFAULT:
            config["INFERENCE_PRECISION_HINT"] = PRECISION_HINTS[self._settings.dtype]
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
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        for index, name in enumerate(self._output_names):
            if name is not None:
                data = np.array(result.get_output_tensor(index).data)
                arrays[name] = data.astype(np.float32) if np.issubdtype(data.dtype, np.floating) else data
        return arrays

    def placement(self) -> Placement:
        """EXECUTION_DEVICES of the compiled model, and the number of nodes of its executed graph."""
        devices = [str(device) for device in self._compiled.get_property("EXECUTION_DEVICES")]
        wanted = self._device.split(".")[0]
        matching = [device for device in devices if device.strip("()").split(".")[0] == wanted]
        kinds = Counter(operation.get_type_name() for operation in self._compiled.get_runtime_model().get_ops())
        nodes = sum(kinds.values())
        share = len(matching) / len(devices) if devices else 0.0
        return Placement(on_target=share, detail=f"EXECUTION_DEVICES {devices}, {nodes} nodes in the compiled graph")

    def device_use(self) -> None:
        """Return None: OpenVINO does not report what its plugins allocate."""

    def trace(self, bundle: Bundle) -> Trace:
        """Convert the graph again with every value as an output, and compare with the same graph computed without a plugin."""
        from hwmatrix.targets.openvino.trace import trace_graph

        self.load(bundle)
        inputs = bundle.input_arrays()
        converted = self._convert(inputs)
        return trace_graph(self._core, self._device, self._config(), converted.program, converted.output_names, inputs)


def _without_telemetry() -> None:
    """Make the package openvino_telemetry unavailable, which OpenVINO can do without.

    It reports every conversion to its makers, from processes that it forks: that takes as long as converting a tiny model.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type] # None refuses the import


def convert(model: torch.nn.Module, inputs: dict[str, torch.Tensor], *, only: str | None = None) -> Converted:
    """Convert by transformers' exporter, or by tracing if that fails. The second failure's message includes the first.

    ``only`` selects one of the two: ``transformers`` or ``trace``.

    Raises:
        UnsupportedError: both failed, and OpenVINO named the operators that it lacks.
    """
    if only == TRACE:
        return _trace(model, inputs, because="")
    if only is not None:
        return _export(model, inputs)
    try:
        return _export(model, inputs)
    except MemoryError:  # tracing needs just as much memory, and would hide the cause behind an error of its own
        raise
    except Exception as first:  # noqa: BLE001 - whatever an exporter raises, tracing is tried
        because = f"{type(first).__name__}: {_first_line(first)}"
        try:
            return _trace(model, inputs, because=f" (exporter failed: {because})")
        except Exception as second:
            second.add_note(f"transformers' exporter had failed before: {type(first).__name__}: {first}")
            operators = _missing_operators(second) or _missing_operators(first)
            if operators:
                told = f"OpenVINO has no conversion for {', '.join(operators)}"
                if _missing_operators(second) and not _missing_operators(first):
                    told += f" in a trace; transformers' exporter had failed: {because}"
                raise UnsupportedError(told, needs=operators) from second
            raise


def _export(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Converted:
    from transformers.exporters.configs import OpenVINOConfig
    from transformers.exporters.exporter_openvino import OpenVINOExporter
    from transformers.exporters.utils import get_leaf_tensors

    _without_cache(model)
    exporter: Any = OpenVINOExporter
    sample = dict(inputs)  # the exporter adds to it what it computes in advance
    program = exporter().export(model, sample, OpenVINOConfig(stateful=False)).program
    _fit_inputs(program, inputs, {name: tensor for name, tensor in get_leaf_tensors(sample).items() if name not in inputs})
    names = tuple(next(iter(port.get_names()), None) for port in program.outputs)
    outputs = tuple(name.removeprefix(OUTPUT_PREFIX) if name is not None else None for name in names)
    return Converted(program=program, output_names=outputs, method="transformers OpenVINO exporter")


def _fit_inputs(program: Any, inputs: Mapping[str, torch.Tensor], prepared: Mapping[str, torch.Tensor]) -> None:
    """Give inputs the bundle's names, and replace values that the exporter prepared by constants: an unset input holds arbitrary data.

    Raises:
        ValueError: an input is not in the bundle and was not prepared.
    """
    from openvino import opset13

    for parameter in program.get_parameters():
        port = parameter.output(0)
        names = port.get_names()
        own = {name.removeprefix(INPUT_PREFIX) for name in names} & inputs.keys()
        if names & inputs.keys():
            continue
        if own:
            port.get_tensor().set_names(own)
        elif found := names & prepared.keys():
            value = prepared[found.pop()].numpy().astype(port.get_element_type().to_dtype(), copy=False)
            port.replace(opset13.constant(value).output(0))
            program.remove_parameter(parameter)
        elif not port.get_target_inputs():  # a plain number, which the trace has inlined already
            program.remove_parameter(parameter)
        else:
            raise ValueError(f"the exported graph has inputs that the model does not have: {', '.join(sorted(names))}")


def _without_cache(model: torch.nn.Module) -> None:
    """Disable the cache for a next token, as in the reference. The exporter reads this from the configurations."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = False


def _trace(model: torch.nn.Module, inputs: dict[str, torch.Tensor], *, because: str) -> Converted:
    """Convert with OpenVINO's own converter on a TorchScript trace. The outputs are a flat tuple in the order of the reference's names."""
    import openvino

    names: list[str] = []
    options = call_options(model)

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            outputs = flatten_outputs(self.inner(**dict(zip(inputs, tensors, strict=True)), **options))
            names[:] = list(outputs)
            return tuple(outputs.values())

    with torch.no_grad():
        program = openvino.convert_model(Flat().eval(), example_input=tuple(inputs.values()))
    for port, name in zip(program.inputs, inputs, strict=True):
        port.get_tensor().set_names({name})
    return Converted(program=program, output_names=tuple(names), method=f"openvino.convert_model{because}")


def _input_names(program: Any) -> set[str]:
    return {name for port in program.inputs for name in port.get_names()}


def _tensor(array: np.ndarray[Any, Any], port: Any) -> Any:
    import openvino

    return openvino.Tensor(np.ascontiguousarray(array.astype(port.get_element_type().to_dtype(), copy=False)))


def _missing_operators(error: BaseException) -> tuple[str, ...]:
    """Return the operators named by OpenVINO's own conversion failure; none for any other kind of exception.

    Only the first list counts: operators without a rule come before those whose conversion failed, often as a consequence.
    """
    if not any(kind.__name__ == "OpConversionFailure" for kind in type(error).__mro__):
        return ()
    found = _MISSING.search(str(error))
    return tuple(sorted(set(re.split(r",\s*", found[1].strip())))) if found else ()


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else "no message"
