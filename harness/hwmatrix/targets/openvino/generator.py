"""Text generation with OpenVINO. A graph that processes prompts and tokens alike keeps the cache as its state, as in a deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.models.generation_export import BEAMS, DECODE, ENCODER, LOGITS
from hwmatrix.targets.decoding import run_steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hwmatrix.models.bundle import GenerationPrompt
    from hwmatrix.models.generation_export import GenerationExport
    from hwmatrix.targets.protocol import Arrays, OnStep

_MIB: Final = 2**20


class OpenVinoGenerator:
    """Runs a prompt step by step. A graph that does both is stateful: the cache never leaves it. Else it is an input and an output."""

    def __init__(self, export: GenerationExport, compiled_of: Callable[[Path], Any]) -> None:
        self._export = export
        self._compiled = {graph.component: compiled_of(graph.path) for graph in export.graphs}
        self._requests = {component: compiled.create_infer_request() for component, compiled in self._compiled.items()}
        self._state: dict[str, np.ndarray[Any, Any]] = {}

    @property
    def stateful(self) -> bool:
        """Whether the graph of decoding keeps the cache as its state."""
        return bool(self._requests[DECODE].query_state())

    @property
    def decoding(self) -> Any:
        """The compiled graph of decoding."""
        return self._compiled[DECODE]

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> None:
        """As in :class:`hwmatrix.targets.protocol.Generating`."""
        self._begin()
        beams = {BEAMS: np.arange(prompt.tokens.shape[0], dtype=np.int32)}
        run_steps(prompt, self._export.token, lambda number, given: self._step(number, {**beams, **given}), on_step, forced=forced)

    def cache_mb(self) -> float:
        """The size of the cache after the last step: that of the graph's states, or of the tensors between its steps."""
        states = sum(state.state.byte_size for state in self._requests[DECODE].query_state())
        between = sum(value.nbytes for name, value in self._state.items() if not name.startswith(ENCODER))
        return float(states + between) / _MIB

    def _begin(self) -> None:
        """Start with an empty cache."""
        self._requests[DECODE].reset_state()
        self._state = {}

    def _step(self, number: int, given: Arrays) -> np.ndarray[Any, Any]:
        """Run a step's graph on its arguments and the state. Keep the new state, and return the last logits of each row.

        The request copies its inputs: with tensors of ours, OpenVINO 2026.4.1 corrupts the heap when their shapes grow (t5, third token).
        """
        graph = self._export.graph_of(number)
        request = self._requests[graph.component]
        state = {each.name: self._state[each.own] for each in graph.inputs if each.state}
        request.infer({**graph.feed(given), **state}, share_inputs=False, share_outputs=True)
        for name, own in graph.outputs.items():
            if own in self._export.states:
                self._state[own] = np.array(request.get_tensor(name).data)
        logits: np.ndarray[Any, Any] = np.array(request.get_tensor(LOGITS).data[:, -1:])
        return logits
