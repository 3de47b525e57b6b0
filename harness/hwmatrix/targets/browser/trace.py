"""Intermediate values of a model in a page, compared with those of the same graph on ONNX Runtime's CPU provider."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import TraceError
from hwmatrix.targets.onnx import trace as onnx_trace

if TYPE_CHECKING:
    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records.traces import Trace
    from hwmatrix.targets.browser.cell import CellPage, Made
    from hwmatrix.targets.protocol import Arrays

LIMIT_MB: Final = 512
"""The limit in MiB for the values of one graph. A page has 4 GiB, in which the runtime and JavaScript each keep a copy."""
_FOLDER: Final = "values"
"""The folder name under which the page finds the graph. No exporter has this name."""


def trace(page: CellPage, made: Made, bundle: Bundle) -> Trace:
    """Run the chosen export once with every value of its graph as an output. The new session replaces the page's prepared one.

    Raises:
        TraceError: the values take too much memory.
        CellFailure: the runtime does not accept a graph with so many outputs.
    """
    export, inputs = made.export, bundle.input_arrays()
    with tempfile.TemporaryDirectory(prefix="hwmatrix-values-") as folder:
        kept = onnx_trace.all_values(export.path, Path(folder))
        expected = onnx_trace.reference_values(kept.path, {name: inputs[name] for name in export.inputs}, kept.names)
        _check_size(expected)
        graph = dataclasses.replace(export, exporter=_FOLDER, path=kept.path)
        page.fetch(graph)
    values = page.values(graph, inputs)  # after the folder is removed: a cell that is killed during the run leaves nothing behind
    return onnx_trace.traced(kept, values=values, expected=expected, outputs=export.outputs)


def _check_size(values: Arrays) -> None:
    size_mb = sum(array.nbytes for array in values.values()) / 2**20
    if size_mb > LIMIT_MB:
        message = f"the {len(values)} values of the graph take {size_mb:.0f} MiB, more than the limit of {LIMIT_MB} for a page"
        raise TraceError(message)
