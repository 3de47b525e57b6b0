"""QNN: ONNX exports on Qualcomm's HTP backend, emulated on x86-64. Tests operators, graph preparation and numerics, not speed."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.errors import CellFailure, UnavailableError, UnsupportedError
from hwmatrix.hardware import qnn as hardware
from hwmatrix.models.calibration import TokenIds, random_samples
from hwmatrix.models.onnx_export import OnnxExport, OnnxFailure, no_graph, read_all
from hwmatrix.records import Dtype, Placement, Prepared
from hwmatrix.targets.onnx import graph as ort_graph
from hwmatrix.targets.onnx import trace as onnx_trace
from hwmatrix.targets.onnx.rewriting import rewritten
from hwmatrix.targets.qnn import values as qnn_values
from hwmatrix.targets.qnn.descriptor import QNN
from hwmatrix.targets.qnn.graph import CONSTANTS, OPERATORS, make_graph
from hwmatrix.targets.qnn.trace import CHANGED, look

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import Settings
    from hwmatrix.records.traces import Trace
    from hwmatrix.targets.protocol import Arrays

_SOC_MODEL: Final = 57
"""SM8650 (HTP v75), whose HTP computes in float16. QNN cannot finalize a graph unless a chip is set."""
_LOG_ERRORS: Final = 3
"""ONNX Runtime's log severity for errors and worse."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accepted:
    """A session for one export. ``nodes`` counts operator types by their execution provider."""

    session: Any
    export: OnnxExport
    nodes: dict[str, Counter[str]]
    prepared: Prepared

    @property
    def count(self) -> int:
        """The number of nodes after ONNX Runtime's own optimization."""
        return sum(kinds.total() for kinds in self.nodes.values())

    @property
    def on_qnn(self) -> int:
        """The number of nodes that QNN accepted."""
        return self.nodes[hardware.PROVIDER].total() if hardware.PROVIDER in self.nodes else 0

    @property
    def share(self) -> float:
        """The share of nodes on QNN."""
        return self.on_qnn / self.count if self.count else 0.0


class Qnn:
    """Runs the ONNX export with the better placement on QNN's HTP backend.

    ``options["soc_model"]`` is QNN's number of the chip. ``options["rewrite"]`` replaces operators and constants (:mod:`.graph`).
    """

    reserves_address_space = False

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        self._settings = settings
        self._export = options.get("export")
        self._rewrite = bool(options.get("rewrite"))
        self._soc_model = int(options.get("soc_model", _SOC_MODEL))
        self._devices: list[Any] = []
        self._exports: tuple[OnnxExport, ...] = ()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._failures: tuple[OnnxFailure, ...] = ()
        self._ids = TokenIds(count=0, special=frozenset())
        self._calibration: list[dict[str, np.ndarray[Any, Any]]] = []
        self._prepared: Accepted | None = None
        self._feed: dict[str, np.ndarray[Any, Any]] = {}
        self._wanted: dict[str, str] = {}
        self._had: dict[str, np.ndarray[Any, Any]] = {}

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Import nothing beyond this module's own imports: onnxruntime starts a thread when it is imported."""

    @staticmethod
    def service(options: Mapping[str, Any]) -> None:
        """Return None: cells share nothing, because QNN keeps state between the sessions of a process."""

    def check(self) -> str:
        """Load the provider, and check that the chip accepts a graph of one Transpose, which every HTP can run.

        Raises:
            UnavailableError: the emulation cannot be loaded here, or QNN has no such chip (``qnn_soc_model``).
            UnsupportedError: the HTP does not compute in this precision.
        """
        if self._settings.dtype not in QNN.precisions:
            message = f"the HTP computes in {', '.join(QNN.precisions)}, not in {self._settings.dtype}"
            raise UnsupportedError(message, needs=(self._settings.dtype.value,), error_type="unsupported_dtype")
        name, _ = hardware.detect()
        import onnxruntime

        onnxruntime.set_default_logger_severity(_LOG_ERRORS)
        self._devices = hardware.provider_devices()
        if hardware.PROVIDER not in nodes_of(self.session(_transpose())):
            message = f"QNN created no device for soc_model {self._soc_model}: a graph that every HTP can run was assigned to the CPU"
            raise UnavailableError(message, error_type="qnn_soc_model")
        return f"{name}, soc_model {self._soc_model}"

    def load(self, bundle: Bundle) -> int:
        """Read and verify the exports. Return the model's number of parameters, since graphs also hold constant-folded copies.

        Raises:
            UnsupportedError: operators are to be replaced, and no export has any (``nothing_to_rewrite``).
        """
        found = read_all(bundle, bundle.path.parent, only=self._export)
        self._exports = tuple(export for export in found if isinstance(export, OnnxExport))
        self._failures = tuple(failure for failure in found if isinstance(failure, OnnxFailure))
        if self._rewrite:
            self._folder = tempfile.TemporaryDirectory(prefix="hwmatrix-qnn-")
            constants = {} if self._settings.dtype is Dtype.FLOAT16 else CONSTANTS
            self._exports = rewritten(self._exports, Path(self._folder.name), operators=OPERATORS, constants=constants)
        self._ids = TokenIds.of(bundle)
        self._calibration = bundle.calibration()
        return bundle.parameters

    def prepare(self, inputs: Arrays) -> Prepared:
        """Prepare the exports until QNN accepts one entirely. Keep the one with the largest share on QNN.

        Raises:
            UnsupportedError: no exporter can express an operator, or neither QNN nor the CPU supports it. The message names it.
            CellFailure: no exporter produced a graph, or QNN can prepare none (``qnn_graph_failed``).
        """
        if not self._exports:
            raise no_graph(self._failures)
        best: Accepted | None = None
        failures: list[Exception] = []
        for export in self._exports:
            try:
                prepared = self._prepare(export, inputs)
            except MemoryError:
                raise
            except Exception as failure:  # noqa: BLE001 - whatever the tools and the runtime raise, the other export is tried
                failure.add_note(f"This was the export by {export.exporter}.")
                failures.append(failure)
                continue
            if best is None or prepared.share > best.share:
                best = prepared
            if best.share == 1.0:
                break
        if best is None:
            told = "; ".join(f"{type(failure).__name__}: {failure}" for failure in failures)
            refused = ort_graph.refusal(str(failures[0]))
            if refused is not None:
                raise UnsupportedError(told, needs=refused.needs, error_type=refused.error_type) from failures[0]
            raise CellFailure(f"QNN can prepare no export of this model: {told}", error_type="qnn_graph_failed") from failures[0]
        self._prepared = best
        self.feed(inputs)
        names = [output.name for output in best.session.get_outputs()]
        self._wanted = {own: name for own, name in zip(names, best.export.outputs, strict=True) if name is not None}
        return best.prepared

    def precision(self) -> None:
        """Return None: the graph fixes the precision."""

    def feed(self, inputs: Arrays) -> None:
        """Replace the inputs of the session. Keeps those that the export uses."""
        assert self._prepared is not None  # noqa: S101 - the order of the protocol
        self._feed = {name: np.ascontiguousarray(inputs[name]) for name in self._prepared.export.inputs}

    def run(self) -> Any:
        """Run one synchronous inference, in emulation."""
        assert self._prepared is not None  # noqa: S101 - the order of the protocol
        return self._prepared.session.run(list(self._wanted), self._feed)

    def elapsed_ns(self) -> int | None:
        """None: there is no device with a clock of its own."""
        return None

    def outputs(self, result: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Return the outputs by the reference's names."""
        self._had = dict(zip(self._wanted, result, strict=True))
        arrays = dict(zip(self._wanted.values(), result, strict=True))
        return {name: data.astype(np.float32) if np.issubdtype(data.dtype, np.floating) else data for name, data in arrays.items()}

    def placement(self) -> Placement:
        """The session's own record of which provider got which nodes, with the operators of those outside QNN."""
        assert self._prepared is not None  # noqa: S101 - the order of the protocol
        prepared = self._prepared
        elsewhere = [
            f"{provider}: {', '.join(f'{kind} {count}' for kind, count in kinds.most_common())}"
            for provider, kinds in sorted(prepared.nodes.items())
            if provider != hardware.PROVIDER
        ]
        taken = f"{prepared.on_qnn} of {prepared.count} nodes assigned to {hardware.PROVIDER} (soc_model {self._soc_model})"
        return Placement(on_target=prepared.share, detail="; ".join([taken, *elsewhere]))

    def device_use(self) -> None:
        """Return None: the HTP's memory is emulated in the host's, and measured there."""

    def trace(self, bundle: Bundle) -> Trace:
        """Compare the values of the graph that QNN runs, quantized if the cell is, to those of the CPU provider on the same graph."""
        assert self._prepared is not None  # noqa: S101 - the order of the protocol
        export, self._prepared = self._prepared.export, None  # frees its memory for the sessions below
        with tempfile.TemporaryDirectory(prefix="hwmatrix-trace-") as name:
            folder = Path(name)
            made = make_graph(export, folder, dtype=self._settings.dtype, samples=self._samples(export, bundle.input_arrays()))
            with tempfile.TemporaryDirectory(dir=folder) as place:
                kept = onnx_trace.all_values(made.path, Path(place))
                expected = onnx_trace.reference_values(kept.path, self._feed, kept.names, threads=self._settings.threads)

            def read(names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
                with tempfile.TemporaryDirectory(dir=folder) as place:  # a graph may contain its weights, so keep only one copy at a time
                    part = onnx_trace.all_values(made.path, Path(place), only=frozenset(names))
                    soc_model, threads = self._soc_model, self._settings.threads
                    return qnn_values.read_apart(part.path, self._feed, part.names, soc_model=soc_model, threads=threads)

            looked = look(kept, read, had=self._had, expected=expected)
        against = onnx_trace.AGAINST if looked.faithful else onnx_trace.AGAINST + CHANGED
        return onnx_trace.traced(kept, values=looked.values, expected=expected, outputs=export.outputs, against=against)

    def _samples(self, export: OnnxExport, inputs: Arrays) -> Iterable[Arrays]:
        """What quantization takes value ranges from: the bundle's inputs for that, never those that are evaluated, if it has any."""
        return self._calibration or random_samples({name: inputs[name] for name in export.inputs}, self._ids)

    def _prepare(self, export: OnnxExport, inputs: Arrays) -> Accepted:
        with tempfile.TemporaryDirectory(prefix="hwmatrix-qnn-") as folder:
            graph = make_graph(export, Path(folder), dtype=self._settings.dtype, samples=self._samples(export, inputs))
            session = self.session(str(graph.path))
        return Accepted(session=session, export=export, nodes=nodes_of(session), prepared=graph.prepared)

    def session(self, model: str | bytes) -> Any:
        """Create a session that never falls back as a whole, and that records which nodes QNN accepted."""
        return qnn_values.session(model, self._devices, soc_model=self._soc_model, threads=self._settings.threads)


def nodes_of(session: Any) -> dict[str, Counter[str]]:
    """Count operator types by execution provider, from the session's record of its assignment."""
    nodes: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        nodes.setdefault(str(part.ep_name), Counter()).update(str(node.op_type) for node in part.get_nodes())
    return nodes


def _transpose() -> bytes:
    """Return a model with a single Transpose."""
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", (2, 4)), ("y", (4, 2)))]
    graph = helper.make_graph([helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])], "probe", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())
