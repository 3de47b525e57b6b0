"""A graph in float32 on ONNX Runtime's CPU provider, with rounded weights as numbers: what targets that execute ONNX are compared with."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hwmatrix.hardware.onnxruntime import PROVIDER
from hwmatrix.targets.onnx.generator import OnnxGenerator, with_graphs
from hwmatrix.targets.onnx.weights import in_float32, nudged

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.models.generation_export import GenerationExport
    from hwmatrix.models.onnx_export import OnnxExport
    from hwmatrix.targets.protocol import Arrays


class GraphInFloat:
    """:class:`hwmatrix.targets.protocol.InFloat` of an ONNX graph in float32. ``export`` is what it was made from, or is."""

    @classmethod
    def of(cls, graph: Path, export: OnnxExport, *, threads: int) -> Self | None:
        """Read the rounded weights back. None if the graph has them in an unknown form."""
        found = in_float32(graph, graph.parent)
        return None if found is None else cls(found, export, threads=threads)

    def __init__(self, graph: Path, export: OnnxExport, *, threads: int) -> None:
        self._graph = graph
        self._threads = threads
        self._session = self._session_of(self._graph)
        self._inputs = export.inputs
        names = [output.name for output in self._session.get_outputs()]
        self._wanted = {own: name for own, name in zip(names, export.outputs, strict=True) if name is not None}

    def outputs(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Run one synchronous inference."""
        results = self._session.run(list(self._wanted), {name: np.ascontiguousarray(inputs[name]) for name in self._inputs})
        arrays = dict(zip(self._wanted.values(), results, strict=True))
        return {name: array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array for name, array in arrays.items()}

    def nudged(self, draw: int) -> Self | None:
        """The same graph with other weights (:func:`hwmatrix.targets.onnx.weights.nudged`)."""
        path = nudged(self._graph, draw)
        if path is None:
            return None
        other = copy.copy(self)
        other._session = self._session_of(path)  # noqa: SLF001 - of this class
        return other

    def _session_of(self, path: Path) -> Any:
        return _session(path, self._threads)


class GenerationInFloat(OnnxGenerator):
    """:class:`hwmatrix.targets.protocol.GeneratingInFloat` of ONNX graphs in float32."""

    @classmethod
    def of(cls, graphs: GenerationExport, *, threads: int) -> Self | None:
        """Read the rounded weights back. None if a graph has them in an unknown form."""
        made = {graph.path: in_float32(graph.path, graph.path.parent) for graph in graphs.graphs}
        found = {path: new for path, new in made.items() if new is not None}
        return cls(with_graphs(graphs, found.__getitem__), threads) if len(found) == len(made) else None

    def __init__(self, graphs: GenerationExport, threads: int) -> None:
        super().__init__(graphs, lambda path: _session(path, threads))
        self._threads = threads

    def nudged(self, draw: int) -> Self | None:
        """The same graphs with other weights. None if none of them rounds an input of a product as it runs."""
        made = {graph.path: nudged(graph.path, draw) for graph in self._export.graphs}
        if not any(made.values()):
            return None
        return type(self)(with_graphs(self._export, lambda path: made[path] or path), self._threads)


def _session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=[PROVIDER])
