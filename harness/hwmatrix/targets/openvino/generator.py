"""Text generation with OpenVINO. A graph that processes prompts and tokens alike keeps the cache as its state, as in a deployment."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from hwmatrix.models import generation_calls, onnx_exporters
from hwmatrix.models.generation import Prompt
from hwmatrix.models.generation_export import DECODE, LOGITS, PREFILL, Graph, GraphInput, own_output
from hwmatrix.models.onnx_graph import INPUT_PREFIX
from hwmatrix.targets.openvino.conversion import fit_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from hwmatrix.models.bundle import GenerationPrompt
    from hwmatrix.targets.protocol import Arrays, OnStep

_BEAMS: Final = "beam_idx"
"""The input that transformers' exporter adds for beam search: which row of the state each row continues."""
_ENCODER: Final = "encoder_outputs."
_MIB: Final = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """An OpenVINO graph and its description."""

    program: Any
    graph: Graph


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """The graphs of a model. ``prefill`` None: ``decode`` processes prompts, too. ``token`` is the argument that holds the next token."""

    prefill: Program | None
    decode: Program
    token: str

    @property
    def states(self) -> frozenset[str]:
        """The own names of what decoding takes from the step before."""
        return frozenset(each.own for each in self.decode.graph.inputs if each.state)

    @property
    def described(self) -> str:
        """Which graphs there are, and where the cache is."""
        return f"{DECODE}, stateful" if self.prefill is None else f"{PREFILL} and {DECODE}, the cache as inputs and outputs"


class OpenVinoGenerator:
    """Runs a prompt step by step. A graph that does both is stateful: the cache never leaves it. Else it is an input and an output."""

    def __init__(self, programs: Programs, compiled_of: Callable[[Any], Any]) -> None:
        self._programs = programs
        self.decoding = compiled_of(programs.decode.program)
        self._requests = {DECODE: self.decoding.create_infer_request()}
        if programs.prefill is not None:
            self._requests[PREFILL] = compiled_of(programs.prefill.program).create_infer_request()
        self._state: dict[str, np.ndarray[Any, Any]] = {}

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> None:
        """As in :class:`hwmatrix.targets.protocol.Generating`."""
        self._begin()
        beams = {_BEAMS: np.arange(prompt.tokens.shape[0], dtype=np.int32)}
        token: np.ndarray[Any, Any] | None = None
        for number, given in enumerate(prompt.steps):
            program = self._programs.prefill if number == 0 and self._programs.prefill is not None else self._programs.decode
            own = {} if forced or token is None else {self._programs.token: token[:, None]}
            logits = self._step(program.graph, {**beams, **given, **own})
            token = logits.argmax(axis=-1)
            on_step(number, lambda logits=logits: np.array(logits, dtype=np.float32))  # type: ignore[misc]

    def cache_mb(self) -> float:
        """The size of the cache after the last step: that of the graph's states, or of the tensors between its steps."""
        states = sum(state.state.byte_size for state in self._requests[DECODE].query_state())
        between = sum(value.nbytes for name, value in self._state.items() if not name.startswith(_ENCODER))
        return float(states + between) / _MIB

    def _begin(self) -> None:
        """Start with an empty cache."""
        self._requests[DECODE].reset_state()
        self._state = {}

    def _step(self, graph: Graph, given: Arrays) -> np.ndarray[Any, Any]:
        """Run a graph on the arguments of a step and the state. Keep the new state, and return the last logits of each row.

        The request copies its inputs: with tensors of ours, OpenVINO 2026.4.1 corrupts the heap when their shapes grow (t5, third token).
        """
        request = self._requests[graph.component]
        state = {each.name: self._state[each.own] for each in graph.inputs if each.state}
        request.infer({**graph.feed(given), **state}, share_inputs=False, share_outputs=True)
        for name, own in graph.outputs.items():
            if own in self._programs.states:
                self._state[own] = np.array(request.get_tensor(name).data)
        logits: np.ndarray[Any, Any] = np.array(request.get_tensor(LOGITS).data[:, -1])
        return logits


def convert(model: torch.nn.Module, prompt: GenerationPrompt) -> Programs:
    """Convert the graphs of a model by transformers' exporter, traced with a prompt. Whatever the exporter raises is passed on.

    Raises:
        FactoryError: the reference's passes are no steps of a graph (``no_generation``).
        ValueError: a graph has an input that nothing gives.
    """
    onnx_exporters.with_batched_experts(model)
    inputs = {name: torch.from_numpy(array) for name, array in prompt.inputs.items()}
    samples = generation_calls.samples(model, Prompt(name=prompt.name, inputs=inputs, tokens=torch.from_numpy(prompt.tokens)))
    one = samples.prefill is None
    return Programs(
        prefill=None if samples.prefill is None else _converted(model, samples.prefill, PREFILL, stateful=False),
        decode=_converted(model, samples.decode, DECODE, stateful=one),
        token=generation_calls.token_argument(model),
    )


def _converted(model: torch.nn.Module, sample: Mapping[str, Any], component: str, *, stateful: bool) -> Program:
    from transformers.exporters.configs import OpenVINOConfig
    from transformers.exporters.exporter_openvino import OpenVINOExporter
    from transformers.exporters.utils import get_leaf_tensors

    exporter: Any = OpenVINOExporter
    given = dict(sample)  # the exporter adds to it what it computes in advance
    known = get_leaf_tensors(given)
    program = exporter().export(model, given, OpenVINOConfig(dynamic=True, stateful=stateful)).program
    prepared = {name: value for name, value in get_leaf_tensors(given).items() if name not in known}
    states = {name for name in known if name not in sample}
    fit_inputs(program, {**{name: value for name, value in known.items() if name not in states}, _BEAMS: torch.zeros(1)}, prepared, states)
    inputs = tuple(_described(port, states) for port in program.inputs)
    names = [next(iter(port.get_names())) for port in program.outputs]
    return Program(program=program, graph=Graph(component=component, inputs=inputs, outputs={name: own_output(name) for name in names}))


def _described(port: Any, states: Collection[str]) -> GraphInput:
    shape = tuple(None if axis.is_dynamic else int(axis.get_length()) for axis in port.get_partial_shape())
    name = next(iter(port.get_names()))
    own = name.removeprefix(INPUT_PREFIX)
    return GraphInput(name=name, own=own, shape=shape, dtype=port.get_element_type().to_dtype().name, state=own in states)
