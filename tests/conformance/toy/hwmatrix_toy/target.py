"""The toy's target class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hwmatrix.models.onnx_export import OnnxExport, OnnxFailure, no_graph, read_all
from hwmatrix.records import Placement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import Prepared, Settings
    from hwmatrix.targets.protocol import Arrays


class Toy:
    """Executes the first export of a bundle, node by node in Python."""

    reserves_address_space = False

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        del settings, options, service
        self._found: tuple[OnnxExport | OnnxFailure, ...] = ()
        self._names: tuple[str | None, ...] = ()
        self._feed: dict[str, Any] = {}
        self._graph: Any = None
        self._runs = 0

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        del model_classes
        import onnx.reference  # noqa: F401

    @staticmethod
    def service(options: Mapping[str, Any]) -> None:
        del options

    def check(self) -> str:
        return "the toy"

    def load(self, bundle: Bundle) -> int:
        self._found = read_all(bundle, bundle.path.parent)
        return bundle.parameters

    def prepare(self, inputs: Arrays) -> Prepared:
        from onnx.reference import ReferenceEvaluator
        from onnx.reference.op_run import OpRun

        class GatherElements(OpRun):
            """Replaces onnx's own implementation, which fails if the first of several dimensions is 1 (onnx 1.23)."""

            def _run(self, data: Any, indices: Any, axis: int = 0) -> tuple[Any]:
                return (np.take_along_axis(data, indices, axis=axis),)

        exports = [each for each in self._found if isinstance(each, OnnxExport)]
        if not exports:
            raise no_graph([each for each in self._found if isinstance(each, OnnxFailure)])
        self._graph, self._names = ReferenceEvaluator(str(exports[0].path), new_ops=[GatherElements]), exports[0].outputs
        self._feed = dict.fromkeys(exports[0].inputs)
        self.feed(inputs)
        return exports[0].prepared

    def precision(self) -> None:
        return None

    def feed(self, inputs: Arrays) -> None:
        self._feed = {name: inputs[name] for name in self._feed}

    def run(self) -> Any:
        self._runs += 1
        return self._graph.run(None, self._feed)

    def elapsed_ns(self) -> int | None:
        return None

    def outputs(self, result: Any) -> dict[str, np.ndarray[Any, Any]]:
        return {name: np.asarray(value) for name, value in zip(self._names, result, strict=True) if name is not None}

    def placement(self) -> Placement:
        return Placement(on_target=1.0, detail=f"{self._runs} runs by onnx.reference")

    def device_use(self) -> None:
        return None

    def trace(self, bundle: Bundle) -> None:
        del bundle
