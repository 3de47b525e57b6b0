"""ONNX Runtime on the CPU: runs the ONNX exports of a bundle unchanged."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.errors import CellFailure, UnsupportedError
from hwmatrix.hardware import onnxruntime as hardware
from hwmatrix.models.calibration import calibration_inputs
from hwmatrix.models.onnx_export import OnnxExport, OnnxFailure, no_graph, read_all, read_generation
from hwmatrix.records import Dtype, Placement
from hwmatrix.targets.onnx import graph as ort_graph
from hwmatrix.targets.onnx import trace as onnx_trace
from hwmatrix.targets.onnx.descriptor import ONNXRUNTIME
from hwmatrix.targets.onnx.generator import OnnxGenerator, in_precision
from hwmatrix.targets.onnx.in_float import GraphInFloat, session_in_float
from hwmatrix.targets.onnx.weights import executed, reduced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.models.bundle import Bundle, GenerationPrompt
    from hwmatrix.models.generation_export import GenerationExport
    from hwmatrix.records import Prepared, Settings
    from hwmatrix.records.traces import Trace
    from hwmatrix.targets.protocol import Arrays, GeneratingInFloat, InFloat, OnStep

_GENERATION: Final = "generation"
_LOG_ERRORS: Final = 3
"""ONNX Runtime's log severity for errors and worse."""


_REDUCED: Final = tuple(dtype for dtype in ONNXRUNTIME.precisions if dtype is not Dtype.FLOAT32)
_TOLD_OF: Final = 1 << 30
"""Bytes of a graph that the runtime also writes as it executes it, so that the placement can tell."""


class OnnxRuntime:
    """Runs the first ONNX export that ONNX Runtime can load, on its CPU execution provider.

    ``options["export"]`` names an exporter, whose export is then the only one tried.
    """

    reserves_address_space = False

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        self._settings = settings
        self._export = options.get("export")
        self._rewrite = bool(options.get("rewrite"))
        self._exports: tuple[OnnxExport, ...] = ()
        self._failures: tuple[OnnxFailure, ...] = ()
        self._taken: OnnxExport | None = None
        self._made: tempfile.TemporaryDirectory[str] | None = None
        self._graph: Path | None = None
        self._optimized: dict[Path, None] = {}
        self._session: Any = None
        self._bundle: Bundle | None = None
        self._generator: OnnxGenerator | None = None
        self._graphs: GenerationExport | None = None
        self._feed: dict[str, np.ndarray[Any, Any]] = {}
        self._wanted: dict[str, str] = {}

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Import nothing beyond this module's own imports: onnxruntime starts a thread when it is imported."""

    @staticmethod
    def service(options: Mapping[str, Any]) -> None:
        """Return None: cells share nothing."""

    def check(self) -> str:
        """Import the runtime.

        Raises:
            UnavailableError: it is not installed.
            UnsupportedError: the exports, which are float32, are not converted to the cell's precision.
        """
        if self._settings.dtype not in ONNXRUNTIME.precisions:
            message = f"the exports are float32, and are converted to {', '.join(_REDUCED)}, not to {self._settings.dtype.value}"
            raise UnsupportedError(message, needs=(self._settings.dtype.value,), error_type="unsupported_dtype")
        name, _ = hardware.detect()
        import onnxruntime

        onnxruntime.set_default_logger_severity(_LOG_ERRORS)
        return f"{name}, {hardware.PROVIDER}"

    def load(self, bundle: Bundle) -> int:
        """Read and verify the exports. Return the model's number of parameters, since graphs also hold constant-folded copies.

        Raises:
            UnsupportedError: operators are to be replaced, and no export has any (``nothing_to_rewrite``).
        """
        found = read_all(bundle, bundle.path.parent, only=self._export)
        self._exports = tuple(export for export in found if isinstance(export, OnnxExport))
        if self._rewrite:
            from hwmatrix.targets.onnx.rewriting import CONSTANTS, rewritten

            constants = CONSTANTS if self._settings.dtype is Dtype.A8W8 else {}
            self._exports = rewritten(self._exports, self._folder(), constants=constants)
        self._failures = tuple(failure for failure in found if isinstance(failure, OnnxFailure))
        self._bundle = bundle
        return bundle.parameters

    def prepare(self, inputs: Arrays) -> Prepared:
        """Create a session from the first export that the runtime accepts.

        Raises:
            UnsupportedError: no exporter can express an operator, or the runtime has no kernel for one. The message names it. Or the graph
                cannot be made in the cell's precision.
            CellFailure: no exporter produced a graph, or the runtime accepts none.
        """
        if not self._exports:
            raise no_graph(self._failures)
        failures: list[Exception] = []
        for export in self._exports:
            try:
                path, how = self._reduced(export, inputs)
                self._session = self._session_of(path)
            except (MemoryError, UnsupportedError):
                raise
            except Exception as failure:  # noqa: BLE001 - whatever the runtime raises, the other export is tried
                failure.add_note(f"This was the export by {export.exporter}.")
                failures.append(failure)
                continue
            self._taken = export
            self.feed(inputs)
            names = [output.name for output in self._session.get_outputs()]
            self._wanted = {own: name for own, name in zip(names, export.outputs, strict=True) if name is not None}
            return export.prepared.then(how)
        raise _refused(failures) from failures[0]

    def _reduced(self, export: OnnxExport, inputs: Arrays) -> tuple[Path, str]:
        """The graph in the cell's precision, and how it was made, in words."""
        dtype = self._settings.dtype
        if dtype not in _REDUCED:
            return export.path, ""
        assert self._bundle is not None  # noqa: S101 - the order of the protocol
        calibrated = calibration_inputs(self._bundle, inputs) if dtype is Dtype.A8W8 else []
        samples = [{name: np.ascontiguousarray(sample[name]) for name in export.inputs} for sample in calibrated]
        made = reduced(export.path, self._folder(), dtype, samples)
        self._graph = made.path
        return made.path, made.how

    def _folder(self) -> Path:
        """A folder for graphs of this cell, which is removed with this object."""
        if self._made is None:
            self._made = tempfile.TemporaryDirectory(prefix="hwmatrix-precision-")
        return Path(self._made.name)

    def in_float(self) -> InFloat:
        """Create a session for the same graph with its rounded weights as float32 numbers.

        Raises:
            TwinError: a weight cannot be read back.
        """
        assert self._graph is not None  # noqa: S101 - only in a precision that rounds weights
        assert self._taken is not None  # noqa: S101 - the order of the protocol
        return GraphInFloat(self._graph, self._taken, threads=self._settings.threads)

    def precision(self) -> None:
        """Return None: the graph fixes the precision."""

    def feed(self, inputs: Arrays) -> None:
        """Replace the inputs of the session. Keeps those that the export uses."""
        assert self._taken is not None  # noqa: S101 - the order of the protocol
        self._feed = {name: np.ascontiguousarray(inputs[name]) for name in self._taken.inputs}

    def run(self) -> Any:
        """Run one synchronous inference."""
        return self._session.run(list(self._wanted), self._feed)

    def elapsed_ns(self) -> int | None:
        """None: the host's clock is right, since a run returns when it is done."""
        return None

    def outputs(self, result: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Return the outputs by the reference's names."""
        arrays = dict(zip(self._wanted.values(), result, strict=True))
        return {name: data.astype(np.float32) if np.issubdtype(data.dtype, np.floating) else data for name, data in arrays.items()}

    def placement(self) -> Placement:
        """The session's own record of which execution provider got which nodes."""
        sessions = self._generator.sessions if self._generator is not None else (self._session,)
        parts = (part for session in sessions for part in session.get_provider_graph_assignment_info())
        nodes = Counter(str(part.ep_name) for part in parts for _ in part.get_nodes())
        own = nodes[hardware.PROVIDER]
        share = own / nodes.total() if nodes else 0.0
        told = f"{own} of {nodes.total()} nodes assigned to {hardware.PROVIDER}"
        for path in self._optimized:
            if path.is_file():
                told += f"; {executed(path, halves=self._settings.dtype is Dtype.FLOAT16)}"
        return Placement(on_target=share, detail=told)

    def device_use(self) -> None:
        """Return None: the CPU uses the host's memory."""

    def load_generator(self, bundle: Bundle) -> int:
        """Return the model's number of parameters. The graphs hold the weights."""
        self._bundle = bundle
        return bundle.parameters

    def prepare_generator(self, prompt: GenerationPrompt) -> Prepared:  # noqa: ARG002 - the graphs were exported for this prompt
        """Read and verify the graphs of prefill and decoding, and create a session for each.

        Raises:
            UnsupportedError: the exporter cannot express an operator, or the runtime has no kernel for one. Or the graphs cannot be made in
                the cell's precision.
            CellFailure: there are no graphs, or the runtime does not accept them.
        """
        assert self._bundle is not None  # noqa: S101 - the order of the protocol
        found = read_generation(self._bundle, self._bundle.path.parent, _GENERATION)
        if self._rewrite:
            from hwmatrix.targets.onnx.rewriting import rewritten_generation

            found = rewritten_generation(found, self._folder())
        graphs = self._graphs = in_precision(found, self._folder(), self._settings.dtype)
        try:
            self._generator = OnnxGenerator(graphs, self._session_of)
        except MemoryError:
            raise
        except Exception as failure:
            raise _refused([failure]) from failure
        return graphs.prepared

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> None:
        """Run the graphs step by step."""
        assert self._generator is not None  # noqa: S101 - the order of the protocol
        self._generator.generate(prompt, on_step, forced=forced)

    def generator_in_float(self) -> GeneratingInFloat:
        """As :meth:`in_float`, to generate."""
        assert self._graphs is not None  # noqa: S101 - the order of the protocol
        return OnnxGenerator(self._graphs, lambda path: session_in_float(path, self._settings.threads))

    def cache_mb(self) -> float | None:
        """The size of the cache, which is in the runtime's memory."""
        return self._generator.cache_mb() if self._generator is not None else None

    def trace(self, bundle: Bundle) -> Trace:  # noqa: ARG002 - the graph and its inputs are already here
        """Compare all values of the graph with the usual optimizations to those without any.

        Both runs use the same kernels, so an error in a kernel itself does not show. Errors of fused nodes do not show either, because each
        of their values is kept as an output here.
        """
        assert self._taken is not None  # noqa: S101 - the order of the protocol
        with tempfile.TemporaryDirectory(prefix="hwmatrix-trace-") as folder:
            kept = onnx_trace.all_values(self._graph or self._taken.path, Path(folder))
            expected = onnx_trace.reference_values(kept.path, self._feed, kept.names, threads=self._settings.threads)
            values = onnx_trace.read(self._session_of(kept.path), self._feed, kept.names)
        return onnx_trace.traced(kept, values=values, expected=expected, outputs=self._taken.outputs)

    def _session_of(self, path: Path) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._settings.threads
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if self._made is not None and path.parent == Path(self._made.name) and path.stat().st_size <= _TOLD_OF:
            optimized = path.with_name(f"{path.stem}-optimized.onnx")
            self._optimized[optimized] = None
            options.optimized_model_filepath = str(optimized)
        return onnxruntime.InferenceSession(path, options, providers=[hardware.PROVIDER])


def _refused(failures: Sequence[Exception]) -> CellFailure:
    """The failure of a cell whose graphs the runtime refused, for reasons of its own."""
    told = "; ".join(f"{type(failure).__name__}: {failure}" for failure in failures)
    refusal = ort_graph.refusal(str(failures[0]))
    if refusal is not None:
        return UnsupportedError(told, needs=refusal.needs, error_type=refusal.error_type)
    return CellFailure(f"ONNX Runtime takes no export of this model: {told}", error_type="onnxruntime_graph_failed")
