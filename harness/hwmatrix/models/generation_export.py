"""The graphs of a model that generates: one for the prompt (prefill) and one for each further token (decode), or one for both.

They are made in two formats by the exporters of transformers, ONNX and OpenVINO, since an OpenVINO graph keeps its cache as a state.

A step's logits and cache are outputs of a graph, and its cache is an input of the next: names link them. Lengths are
dynamic axes, the batch is the bundle's own. An axis that tracing turned into a constant is recorded, since a prompt of another length then
cannot be processed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import FactoryError, UnsupportedError
from hwmatrix.models import onnx_exporters, onnx_graph, openvino_graph
from hwmatrix.models.onnx_graph import INPUT_PREFIX, OUTPUT_PREFIX
from hwmatrix.records import Dtype, Preparation, Prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    import numpy as np
    import torch

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.models.generation_calls import Samples

    Array = np.ndarray[Any, Any]

PREFILL: Final = "prefill"
DECODE: Final = "decode"
LOGITS: Final = "logits"
SPECIALIZED: Final = "shape_specialized"
"""The type of the error of an export that is right for prompts of the traced length only."""
BEAMS: Final = "beam_idx"
"""The input that transformers' exporter adds to a stateful OpenVINO graph, for beam search: which row of the state each row continues."""
ENCODER: Final = "encoder_outputs."
"""How the names of states begin that are no cache, but what an encoder made of the prompt."""
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
class Takes:
    """What the graph of a component (``prefill`` or ``decode``) takes."""

    component: str
    inputs: tuple[GraphInput, ...]

    @property
    def states(self) -> frozenset[str]:
        """The own names of what it takes from the step before."""
        return frozenset(each.own for each in self.inputs if each.state)

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
            raise UnsupportedError(message, needs=(f"dynamic axes of {each.own}",), error_type=SPECIALIZED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph(Takes):
    """A graph: its file, its inputs, and the own name of each output by the graph's name; ``logits`` is one of them."""

    path: Path
    outputs: dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationExport:
    """The verified graphs of a model. ``prefill`` None: ``decode`` processes prompts, too, with an empty state.

    ``token`` is the argument that holds the next token. ``prepared`` says how the graphs were made.
    """

    prefill: Graph | None
    decode: Graph
    token: str
    prepared: Prepared
    seconds: float

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Its graphs, in the order of the first steps."""
        return (self.decode,) if self.prefill is None else (self.prefill, self.decode)

    @property
    def states(self) -> frozenset[str]:
        """The own names of what decoding takes from the step before."""
        return self.decode.states

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


def make_onnx(bundle: Bundle, folder: Path) -> dict[str, Any]:
    """Export the ONNX graphs of a bundle into a folder. Returns their fields for a manifest. Whatever an exporter raises is passed on.

    Raises:
        FactoryError: the reference's passes, or the graphs made of them, are no steps of a generation (``no_generation``).
        UnmakableError: the bundle has nothing to generate (``no_generation``).
    """

    def load() -> Any:
        return onnx_exporters.loaded(bundle, cache=True)

    opsets, still = list[int](), still_of(bundle)

    def export(sample: Mapping[str, Any], component: str) -> dict[str, Any]:
        program, prepared = onnx_exporters.traced_with_any_shape(load, sample, onnx_exporters.with_any_shape, still=still)
        described = _described_onnx(program, sample, prepared)
        file = f"{component}.onnx"
        onnx_exporters.save(program, folder / file)
        opsets.append(int(program.opset_imports[""]))
        return {"file": file, **described}

    model = load()
    samples = samples_of(model, bundle)
    graphs = _graphs(samples, export)
    return _fields(model, graphs, f"transformers ONNX export of {' and '.join(graphs)}, opset {max(opsets)}")


def make_openvino(bundle: Bundle, folder: Path) -> dict[str, Any]:
    """Export the OpenVINO graphs of a bundle, as :func:`make_onnx` does. A graph that processes prompts, too, is stateful."""
    import torch

    from hwmatrix.models import generation_calls
    from hwmatrix.models.build import load_model

    openvino_graph.without_telemetry()
    torch.set_num_threads(1)

    def load() -> Any:
        model = load_model(bundle.model_dir, bundle.model_class, Dtype.FLOAT32, attention=None, cache=True)
        onnx_exporters.with_batched_experts(model)
        return model

    model = load()
    samples, still = samples_of(model, bundle), still_of(bundle)

    def traced(model: torch.nn.Module, given: dict[str, Any], axes: dict[str, Any] | None) -> Any:
        from transformers.exporters.configs import OpenVINOConfig
        from transformers.exporters.exporter_openvino import OpenVINOExporter

        exporter: Any = OpenVINOExporter
        config = OpenVINOConfig(dynamic=True, dynamic_shapes=axes, stateful=samples.prefill is None)
        return exporter().export(model, given, config).program

    def export(sample: Mapping[str, Any], component: str) -> dict[str, Any]:
        import openvino

        state, constant = generation_calls.states(sample)
        program, prepared = onnx_exporters.traced_with_any_shape(load, sample, traced, still=still)
        own = {name: value for name, value in sample.items() if isinstance(value, torch.Tensor)}
        openvino_graph.fit_inputs(program, {**own, BEAMS: torch.zeros(1)}, {**prepared, **constant}, state)
        file = f"{component}.xml"
        openvino.save_model(program, folder / file, compress_to_fp16=False)
        outputs = [openvino_graph.name_of(port) for port in program.outputs]
        inputs = [_described_port(port, state) for port in program.inputs]
        return {"file": file, "inputs": inputs, "outputs": {name: own_output(name) for name in outputs}}

    graphs = _graphs(samples, export)
    how = "stateful" if samples.prefill is None else "the cache as inputs and outputs"
    return _fields(model, graphs, f"transformers OpenVINO export of {' and '.join(graphs)}, {how}")


def samples_of(model: Any, bundle: Bundle, *, joint: bool = True) -> Samples:
    """What to trace a bundle's model with: made of its first prompt (:func:`generation_calls.samples`).

    Raises:
        FactoryError: the reference's passes are no steps of a graph (``no_generation``).
        UnmakableError: the bundle has nothing to generate (``no_generation``).
    """
    import torch

    from hwmatrix.models import generation_calls
    from hwmatrix.models.generation import Prompt

    asked = bundle.generation().forced[0]
    inputs = {name: torch.from_numpy(array) for name, array in asked.inputs.items()}
    return generation_calls.samples(model, Prompt(name=asked.name, inputs=inputs, tokens=torch.from_numpy(asked.tokens)), joint=joint)


def still_of(bundle: Bundle) -> frozenset[str]:
    """The arguments that have the same shape in every prompt, such as an image."""
    forced = bundle.generation().forced
    shapes = [{(name, array.shape) for name, array in prompt.inputs.items()} for prompt in forced]
    return frozenset(name for name, _ in frozenset.intersection(*map(frozenset, shapes)))


def _graphs(samples: Samples, export: Callable[[Mapping[str, Any], str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Export each graph; check that each state that decoding takes is an output of prefill, or of decoding if that processes prompts."""
    found = {
        component: export(sample, component)
        for component, sample in ((PREFILL, samples.prefill), (DECODE, samples.decode))
        if sample is not None
    }
    needed = {each["own"] for each in found[DECODE]["inputs"] if each["state"]}
    check_given(needed, found.get(PREFILL, found[DECODE])["outputs"].values())
    return found


def check_given(needed: Collection[str], given: Iterable[str]) -> None:
    """Check that the first step gives every state that decoding needs.

    Raises:
        FactoryError: it does not (``no_generation``).
    """
    lacking = sorted(set(needed) - set(given))
    if lacking:
        message = f"no step gives the state that the exported decode takes: {', '.join(lacking[:_SOME])}"
        raise FactoryError(message, error_type="no_generation")


def _fields(model: Any, graphs: Mapping[str, Any], method: str) -> dict[str, Any]:
    from hwmatrix.models import generation_calls

    preparation = [Preparation.TRANSFORMERS_EXPORT]
    return {"graphs": graphs, "token": generation_calls.token_argument(model), "method": method, "preparation": preparation}


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
        return Graph(component=component, path=folder / described["file"], inputs=inputs, outputs=dict(described["outputs"]))

    decode = graph(DECODE)
    if decode is None:
        raise KeyError(DECODE)
    prepared = Prepared(method=manifest["method"], preparation=tuple(map(Preparation, manifest["preparation"])))
    return GenerationExport(prefill=graph(PREFILL), decode=decode, token=manifest["token"], prepared=prepared, seconds=manifest["seconds"])


def _described_onnx(program: Any, sample: Mapping[str, Any], prepared: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The inputs and outputs of an ``onnx_ir.Model``. Its inputs that the exporter computed from others become constants.

    Raises:
        FactoryError: an input is none of the sample's, or there are no logits (``no_generation``).
    """
    import torch

    from hwmatrix.models import generation_calls

    given = {name for name, value in sample.items() if isinstance(value, torch.Tensor)}
    states, constant = generation_calls.states(sample)
    fixed = {name: tensor.numpy() for name, tensor in {**prepared, **constant}.items()}
    inputs: list[dict[str, Any]] = []
    for value in list(program.graph.inputs):
        own = str(value.name).removeprefix(INPUT_PREFIX)
        if own not in given and own not in states:
            if own not in fixed:
                message = f"the exported graph has an input that the model does not have: {value.name}"
                raise FactoryError(message, error_type="no_generation")
            onnx_graph.make_constant(program.graph, value, fixed[own])
            continue
        shape = [size if isinstance(size, int) else None for size in value.shape]
        inputs.append({"name": value.name, "own": own, "shape": shape, "dtype": value.dtype.numpy().name, "state": own in states})
    outputs = {str(value.name): own_output(str(value.name)) for value in program.graph.outputs}
    if LOGITS not in outputs.values():
        raise FactoryError(f"the exported graph has no logits: {', '.join(outputs)}", error_type="no_generation")
    return {"inputs": inputs, "outputs": outputs}


def own_output(name: str) -> str:
    """The own name of a graph's output: of a state, the name that the next step has for it."""
    own = name.removeprefix(OUTPUT_PREFIX)
    return _ENCODED[1] if own == _ENCODED[0] else own


def _described_port(port: Any, states: Collection[str]) -> dict[str, Any]:
    shape = [None if axis.is_dynamic else int(axis.get_length()) for axis in port.get_partial_shape()]
    name = openvino_graph.name_of(port)
    own = name.removeprefix(INPUT_PREFIX)
    return {"name": name, "own": own, "shape": shape, "dtype": port.get_element_type().to_dtype().name, "state": own in states}
