"""Text generation in a page, with the exported graphs of prefill and decoding in ONNX Runtime Web."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.models.generation_export import ENCODER, LOGITS
from hwmatrix.targets.browser.cell import encoded, together

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.models.bundle import GenerationPrompt
    from hwmatrix.models.generation_export import GenerationExport, Graph
    from hwmatrix.targets.browser.cell import CellPage, Session
    from hwmatrix.targets.protocol import Arrays, OnStep

HOST: Final = "cpu"
"""ONNX Runtime Web's name for the page's own memory."""
_MIB: Final = 2**20


class PageGenerator:
    """Runs a prompt step by step, one command of the page for each. The tensors that a step takes from the last one stay in the page.

    ``place`` is where they are kept: ``gpu-buffer``, ``ml-tensor`` or ``cpu``.
    """

    def __init__(self, page: CellPage, export: GenerationExport, provider: Mapping[str, Any], *, place: str) -> None:
        self._page = page
        self._export = export
        self._needed = export.states
        self._sessions = [
            page.create(graph.component, graph.path, provider, kept=self._kept(graph, place) if place != HOST else {})
            for graph in export.graphs
        ]

    @property
    def session(self) -> Session:
        """Its sessions as one."""
        return together(self._sessions)

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> tuple[int, ...]:
        """As in :class:`hwmatrix.targets.protocol.Generating`. The page's clock gives the times."""
        self._begin(prompt.tokens.shape[0])
        tokens: list[int] | None = None
        times: list[int] = []
        for number, given in enumerate(prompt.steps):
            own = {} if forced or tokens is None else {self._export.token: np.array(tokens, dtype=np.int64)[:, None]}
            answer = self._step(self._export.graph_of(number), {**given, **own})
            tokens = answer["tokens"]
            times.append(round(answer["ms"] * 1e6))
            on_step(number, lambda number=number: self._logits(number))  # type: ignore[misc]
        return tuple(times)

    def cache_mb(self) -> float:
        """The size of the cache after the last step."""
        return sum(size for _, size in self._places()) / _MIB

    def where(self) -> str:
        """Where the cache is after the last step, in words."""
        places = [place for place, _ in self._places()]
        told = (f"{places.count(place)} of {len(places)} in {place}" for place in sorted(set(places)))
        return f"tensors of the cache: {', '.join(told)}"

    def _places(self) -> list[tuple[str, int]]:
        """The place and the size in bytes of each tensor of the cache."""
        return [(str(each["location"]), int(each["bytes"])) for each in self._page.call("state") if not each["name"].startswith(ENCODER)]

    def _kept(self, graph: Graph, place: str) -> dict[str, str]:
        """The place of each output of a graph that the next step needs."""
        return {name: place for name, own in graph.outputs.items() if own in self._needed}

    def _begin(self, rows: int) -> None:
        """Start with an empty cache."""
        self._page.call("begin", first=_encoded(self._export.first_state(rows)))

    def _step(self, graph: Graph, given: Arrays) -> dict[str, Any]:
        """Run a graph on the arguments of a step and the state. The page keeps the new state."""
        answer: dict[str, Any] = self._page.call(
            "step",
            name=graph.component,
            inputs=_encoded(graph.feed(given)),
            taken={each.name: each.own for each in graph.inputs if each.state},
            outputs={name: own for name, own in graph.outputs.items() if own == LOGITS or own in self._needed},
        )
        return answer

    def _logits(self, step: int) -> np.ndarray[Any, Any]:
        rows = self._page.call("logits", step=step)
        return np.stack([np.frombuffer(base64.b64decode(row), dtype=np.float32) for row in rows])


def _encoded(arrays: Arrays) -> dict[str, Any]:
    return {name: encoded(array) for name, array in arrays.items()}
