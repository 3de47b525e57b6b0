"""A graph in float32 on ONNX Runtime's CPU provider, with rounded weights as numbers: what targets that execute ONNX are compared with."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hwmatrix.hardware.onnxruntime import PROVIDER
from hwmatrix.targets.onnx.weights import in_float32

if TYPE_CHECKING:
    from hwmatrix.models.onnx_export import OnnxExport
    from hwmatrix.targets.protocol import Arrays


class GraphInFloat:
    """:class:`hwmatrix.targets.protocol.InFloat` of an ONNX graph. ``export`` is what it was made from.

    Raises:
        TwinError: the graph has rounded weights in an unknown form.
    """

    def __init__(self, graph: Path, export: OnnxExport, *, threads: int) -> None:
        self._session = session_in_float(graph, threads)
        self._inputs = export.inputs
        names = [output.name for output in self._session.get_outputs()]
        self._wanted = {own: name for own, name in zip(names, export.outputs, strict=True) if name is not None}

    def outputs(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Run one synchronous inference."""
        results = self._session.run(list(self._wanted), {name: np.ascontiguousarray(inputs[name]) for name in self._inputs})
        arrays = dict(zip(self._wanted.values(), results, strict=True))
        return {name: array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array for name, array in arrays.items()}


def session_in_float(graph: Path, threads: int) -> Any:
    """A session for a graph with its rounded weights as float32 numbers, whose file is gone again: it is several times as large.

    Raises:
        TwinError: as for :class:`GraphInFloat`.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory(prefix="hwmatrix-float32-") as folder:
        return onnxruntime.InferenceSession(in_float32(graph, Path(folder)), options, providers=[PROVIDER])
