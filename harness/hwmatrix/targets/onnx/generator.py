"""Text generation with the exported graphs of prefill and decoding in ONNX Runtime."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.models.generation_export import ENCODER, LOGITS
from hwmatrix.records import Dtype
from hwmatrix.targets.decoding import run_steps
from hwmatrix.targets.onnx.weights import reduced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hwmatrix.models.bundle import GenerationPrompt
    from hwmatrix.models.generation_export import GenerationExport
    from hwmatrix.targets.protocol import Arrays, OnStep

_MIB: Final = 2**20


class OnnxGenerator:
    """Runs a prompt step by step. The cache of a step stays in the runtime's memory, and is the input of the next."""

    def __init__(self, export: GenerationExport, session_of: Callable[[Path], Any]) -> None:
        self._export = export
        self._sessions = {graph.component: session_of(graph.path) for graph in export.graphs}
        self._needed = {each.own for each in export.decode.inputs if each.state}
        self._state: dict[str, Any] = {}

    @property
    def sessions(self) -> tuple[Any, ...]:
        """The sessions, one per graph."""
        return tuple(self._sessions.values())

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> None:
        """As in :class:`hwmatrix.targets.protocol.Generating`."""
        self._begin(prompt.tokens.shape[0])
        run_steps(prompt, self._export.token, self._step, on_step, forced=forced)

    def cache_mb(self) -> float:
        """The size of the cache after the last step."""
        sizes = (value.tensor_size_in_bytes() for name, value in self._state.items() if not name.startswith(ENCODER))
        return float(sum(sizes)) / _MIB

    def _begin(self, rows: int) -> None:
        """Start with an empty cache."""
        self._state = _values(self._export.first_state(rows))

    def _step(self, number: int, given: Arrays) -> np.ndarray[Any, Any]:
        """Run a step's graph on its arguments and the state. Keep the new state, and return the last logits of each row."""
        graph = self._export.graph_of(number)
        feed = _values(graph.feed(given)) | {each.name: self._state[each.own] for each in graph.inputs if each.state}
        wanted = {name: own for name, own in graph.outputs.items() if own == LOGITS or own in self._needed}
        found = self._sessions[graph.component].run_with_ort_values(list(wanted), feed)
        by_name = dict(zip(wanted.values(), found, strict=True))
        logits: np.ndarray[Any, Any] = by_name.pop(LOGITS).numpy()[:, -1:]
        self._state |= by_name
        return logits


def with_graphs(export: GenerationExport, path_of: Callable[[Path], Path]) -> GenerationExport:
    """The same graphs in other files."""
    prefill = export.prefill and dataclasses.replace(export.prefill, path=path_of(export.prefill.path))
    return dataclasses.replace(export, prefill=prefill, decode=dataclasses.replace(export.decode, path=path_of(export.decode.path)))


def in_precision(export: GenerationExport, folder: Path, dtype: Dtype) -> GenerationExport:
    """The graphs of a generation in a precision, written to a folder. ``prepared`` says how they were made.

    Raises:
        UnsupportedError: as for :func:`hwmatrix.targets.onnx.weights.reduced`.
    """
    if dtype is Dtype.FLOAT32:
        return export
    made = {graph.path: reduced(graph.path, folder, dtype) for graph in export.graphs}
    prepared = export.prepared.then("; ".join(dict.fromkeys(graph.how for graph in made.values())))
    return dataclasses.replace(with_graphs(export, lambda path: made[path].path), prepared=prepared)


def _values(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    import onnxruntime

    return {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
