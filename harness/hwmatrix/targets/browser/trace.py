"""Intermediate values of a model in a page, with those of the same graph on ONNX Runtime's CPU provider."""

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
"""MiB that the values of one graph may take: a page has 4 GiB, in which the runtime keeps them, and JavaScript once more."""
_FOLDER: Final = "values"
"""The name under which the page finds the graph: no exporter is called so."""


def trace(page: CellPage, made: Made, bundle: Bundle) -> Trace:
    """One run of the export that was chosen, with every value of its graph as an output. The session takes the place of the page's own.

    Raises:
        TraceError: the values are too many, or the runtime does not take a graph with so many outputs.
    """
    export, inputs = made.export, bundle.input_arrays()
    with tempfile.TemporaryDirectory(prefix="hwmatrix-values-") as folder:
        kept = onnx_trace.all_values(export.path, Path(folder))
        expected = onnx_trace.reference_values(kept.path, {name: inputs[name] for name in export.inputs}, kept.names)
        _check_size(expected)
        graph = dataclasses.replace(export, exporter=_FOLDER, path=kept.path)
        page.fetch(graph)
    values = page.values(graph, inputs)  # without the folder: a cell that is ended meanwhile leaves nothing behind
    return onnx_trace.traced(kept, values=values, expected=expected, outputs=export.outputs)


def _check_size(values: Arrays) -> None:
    size_mb = sum(array.nbytes for array in values.values()) / 2**20
    if size_mb > LIMIT_MB:
        message = f"the {len(values)} values of the graph take {size_mb:.0f} MiB, more than the {LIMIT_MB} that a page is asked for"
        raise TraceError(message)
