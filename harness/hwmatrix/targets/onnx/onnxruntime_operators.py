"""The ONNX standard's operator tests in ONNX Runtime on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwmatrix.hardware import onnxruntime as hardware
from hwmatrix.records import Dtype
from hwmatrix.targets.onnx import graph as ort_graph
from hwmatrix.targets.protocol import Executed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.models.operator_tests import OperatorTest

_FATAL: Final = 4
"""ONNX Runtime's log severity for fatal errors. A test's failure is raised as an exception, so the log is not needed."""


class OnnxRuntimeOperators:
    """One session per test, with ONNX Runtime's usual optimizations."""

    packages: tuple[str, ...] = ("onnxruntime",)
    precision = Dtype.FLOAT32
    keeps_state = False
    reserves_address_space = False

    def __init__(self, *, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        """Store nothing."""

    @staticmethod
    def preload() -> None:
        """Import nothing: onnxruntime starts a thread when it is imported."""

    @staticmethod
    def service(options: Mapping[str, Any]) -> None:
        """Return None: nothing is shared."""

    def check(self) -> str:
        """Import the runtime.

        Raises:
            UnavailableError: it is not installed.
        """
        name, _ = hardware.detect()
        import onnxruntime

        onnxruntime.set_default_logger_severity(_FATAL)
        return f"{name}, {hardware.PROVIDER}"

    def execute(self, test: OperatorTest) -> Executed:
        """Run one session once.

        Raises:
            UnsupportedError: an operator has no implementation for these types, or this version of ONNX is not supported.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        with ort_graph.refusing():
            session = onnxruntime.InferenceSession(test.model, options, providers=[hardware.PROVIDER])
            outputs = ort_graph.run(session, test)
        nodes = [part.ep_name for part in session.get_provider_graph_assignment_info() for _ in part.get_nodes()]
        # Some graphs have no nodes left, because this provider computed them all when the session was created.
        return Executed(outputs=outputs, on_target=nodes.count(hardware.PROVIDER) / len(nodes) if nodes else 1.0)
