"""The ONNX graphs of a model that generates: one for the prompt (prefill) and one for each further token (decode), or one for both.

A step's logits and cache are outputs of a graph, and its cache is an input of the next: names link them. All lengths and the batch are
dynamic axes. An axis that tracing turned into a constant is recorded, since a prompt of another length then cannot be processed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import UnsupportedError
from hwmatrix.models import onnx_graph
from hwmatrix.models.onnx_graph import INPUT_PREFIX, OUTPUT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from hwmatrix.models.bundle import Bundle

    Array = np.ndarray[Any, Any]

PREFILL: Final = "prefill"
DECODE: Final = "decode"
LOGITS: Final = "logits"
_ENCODED: Final = ("encoder_last_hidden_state", "encoder_outputs.last_hidden_state")
"""What an encoder made, as prefill returns it, and as decoding takes it."""
_SOME: Final = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphInput:
    """An input of a graph.

    ``own`` is the argument's name, or the state's. ``shape`` has None for each dynamic axis. ``state``: it comes from the step before.
    """

    name: str
    own: str
    shape: tuple[int | None, ...]
    dtype: str
    state: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph:
    """A graph: its inputs, the own name of each output by the graph's name (``logits`` is one of them), and its file, if it is in one."""

    component: str
    inputs: tuple[GraphInput, ...]
    outputs: dict[str, str]
    path: Path | None = None

    def feed(self, given: Mapping[str, Array]) -> dict[str, Array]:
        """The arguments of a step by the names of the graph's inputs, without its state.

        Raises:
            UnsupportedError: an axis of the graph is a constant, and the argument has another size (``shape_specialized``); or the step
                has no such argument (``no_generation``).
        """
        found: dict[str, Array] = {}
        for each in (each for each in self.inputs if not each.state):
            array = given.get(each.own)
            if array is None:
                message = f"the exported {self.component} takes {each.own}, which this step does not have"
                raise UnsupportedError(message, needs=(each.own,), error_type="no_generation")
            self._check_shape(each, array.shape)
            found[each.name] = array
        return found

    def _check_shape(self, each: GraphInput, shape: tuple[int, ...]) -> None:
        fixed = [axis for axis, size in enumerate(each.shape) if size is not None and size != shape[axis]]
        if len(each.shape) != len(shape) or fixed:
            message = f"the exported {self.component} takes {each.own} of the shape {list(each.shape)} only, not {list(shape)}"
            raise UnsupportedError(message, needs=(f"dynamic axes of {each.own}",), error_type="shape_specialized")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationExport:
    """The verified graphs of a model. ``prefill`` None: ``decode`` processes prompts, too, with an empty state.

    ``token`` is the argument that holds the next token.
    """

    prefill: Graph | None
    decode: Graph
    token: str
    opset: int
    seconds: float

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Its graphs, in the order of the first steps."""
        return (self.decode,) if self.prefill is None else (self.prefill, self.decode)

    def graph_of(self, step: int) -> Graph:
        """The graph that computes a step."""
        return self.prefill if self.prefill is not None and step == 0 else self.decode

    def first_state(self, rows: int) -> dict[str, Array]:
        """The state before the first step, by own name: empty caches if decoding processes the prompt, else nothing."""
        import numpy as np

        if self.prefill is not None:
            return {}
        shapes = {each.own: (rows, *(size or 0 for size in each.shape[1:])) for each in self.decode.inputs if each.state}
        return {each.own: np.zeros(shapes[each.own], dtype=each.dtype) for each in self.decode.inputs if each.state}


def make(bundle: Bundle, folder: Path) -> dict[str, Any]:
    """Export the graphs of a bundle into a folder. Returns their fields for a manifest. Whatever an exporter raises is passed on.

    Raises:
        FactoryError: the bundle asks for no generation, or the reference's passes are no steps of a graph (``no_generation``).
        ValueError: a graph has an input that nothing gives.
    """
    import torch

    from hwmatrix.models import generation_calls, onnx_exporters
    from hwmatrix.models.generation import Prompt

    asked = bundle.generation().forced[0]
    model = onnx_exporters.loaded(bundle, cache=True)
    inputs = {name: torch.from_numpy(array) for name, array in asked.inputs.items()}
    found = generation_calls.samples(model, Prompt(name=asked.name, inputs=inputs, tokens=torch.from_numpy(asked.tokens)))
    made: dict[str, dict[str, Any]] = {}
    opset = 0
    for component, sample in ((PREFILL, found.prefill), (DECODE, found.decode)):
        if sample is not None:
            program, prepared = onnx_exporters.traced_with_any_shape(model, sample)
            made[component] = _described(program, sample, prepared)
            onnx_exporters.save(program, folder / file_of(component))
            opset = int(program.opset_imports[""])
    _check_linked(made)
    return {"graphs": made, "token": generation_calls.token_argument(model), "opset": opset}


def read(folder: Path, manifest: Mapping[str, Any]) -> GenerationExport:
    """The graphs of a verified folder.

    Raises:
        KeyError: the manifest lacks something; TypeError: something in it has another type.
    """

    def graph(component: str) -> Graph | None:
        described = manifest["graphs"].get(component)
        if described is None:
            return None
        inputs = tuple(GraphInput(**{**each, "shape": tuple(each["shape"])}) for each in described["inputs"])
        return Graph(component=component, path=folder / file_of(component), inputs=inputs, outputs=dict(described["outputs"]))

    decode = graph(DECODE)
    if decode is None:
        raise KeyError(DECODE)
    return GenerationExport(
        prefill=graph(PREFILL), decode=decode, token=manifest["token"], opset=manifest["opset"], seconds=manifest["seconds"]
    )


def file_of(component: str) -> str:
    """The name of a graph's file."""
    return f"{component}.onnx"


def _described(program: Any, sample: Mapping[str, Any], prepared: Mapping[str, Array]) -> dict[str, Any]:
    """The inputs and outputs of an ``onnx_ir.Model``. Its inputs that the exporter computed from others become constants.

    Raises:
        ValueError: an input is none of the sample's.
    """
    import torch
    from transformers.exporters.utils import get_leaf_tensors

    given = {name for name, value in sample.items() if isinstance(value, torch.Tensor)}
    states = get_leaf_tensors({name: value for name, value in sample.items() if name not in given}).keys()
    inputs: list[dict[str, Any]] = []
    for value in list(program.graph.inputs):
        own = str(value.name).removeprefix(INPUT_PREFIX)
        if own not in given and own not in states:
            if own not in prepared:
                raise ValueError(f"the exported graph has an input that the model does not have: {value.name}")
            onnx_graph.make_constant(program.graph, value, prepared[own])
            continue
        shape = [size if isinstance(size, int) else None for size in value.shape]
        inputs.append({"name": value.name, "own": own, "shape": shape, "dtype": value.dtype.numpy().name, "state": own in states})
    outputs = {str(value.name): own_output(str(value.name)) for value in program.graph.outputs}
    if LOGITS not in outputs.values():
        raise ValueError(f"the exported graph has no logits: {', '.join(outputs)}")
    return {"inputs": inputs, "outputs": outputs}


def own_output(name: str) -> str:
    """The own name of a graph's output: of a state, the name that the next step has for it."""
    own = name.removeprefix(OUTPUT_PREFIX)
    return _ENCODED[1] if own == _ENCODED[0] else own


def _check_linked(made: Mapping[str, Any]) -> None:
    """Check that each state that decoding takes is an output of prefill, or of decoding if that processes prompts."""
    needed = {each["own"] for each in made[DECODE]["inputs"] if each["state"]}
    lacking = sorted(needed - set(made.get(PREFILL, made[DECODE])["outputs"].values()))
    if lacking:
        some = ", ".join(lacking[:_SOME])
        raise ValueError(f"no step gives the state that the exported decode takes: {some}")
