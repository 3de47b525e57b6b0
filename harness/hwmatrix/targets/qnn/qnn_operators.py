"""The ONNX standard's operator tests on QNN's HTP backend, emulated: float graphs, which the HTP computes in float16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hwmatrix.hardware import qnn as hardware
from hwmatrix.records import Dtype, Settings
from hwmatrix.targets.onnx import graph as ort_graph
from hwmatrix.targets.protocol import Executed
from hwmatrix.targets.qnn.target import Qnn, nodes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.models.operator_tests import OperatorTest


class QnnOperators:
    """One session per test. QNN keeps state between the sessions of a process, so that some tests fail only after others."""

    packages: tuple[str, ...] = ("onnxruntime-qnn", "onnxruntime")
    precision = Dtype.FLOAT16
    keeps_state = True
    reserves_address_space = False

    def __init__(self, *, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        settings = Settings(dtype=Dtype.FLOAT16, batch=1, sequence_length=1, threads=1)
        self._target = Qnn(settings=settings, options=options)

    @staticmethod
    def preload() -> None:
        """Import nothing beyond this module's own imports: onnxruntime starts a thread when it is imported."""

    @staticmethod
    def service(options: Mapping[str, Any]) -> None:
        """Return None: nothing is shared."""

    def check(self) -> str:
        """Load the provider, and check that the chip accepts a graph that every HTP can run.

        Raises:
            UnavailableError: the emulation cannot be loaded here, or QNN has no such chip.
            UnsupportedError: the chip does not compute in float16.
        """
        return self._target.check()

    def execute(self, test: OperatorTest) -> Executed:
        """Run one session once. Nodes that QNN does not accept fall back to the CPU, and are counted there.

        Raises:
            UnsupportedError: neither QNN nor the CPU has an operator for these types, or this version of ONNX is not supported.
        """
        with ort_graph.refusing():
            session = self._target.session(test.model)
            outputs = ort_graph.run(session, test)
        nodes = nodes_of(session)
        total = sum(kinds.total() for kinds in nodes.values())
        taken = nodes[hardware.PROVIDER].total() if hardware.PROVIDER in nodes else 0
        # Some graphs have no nodes left, because the CPU computed them all when the session was created.
        return Executed(outputs=outputs, on_target=taken / total if total else 0.0)
