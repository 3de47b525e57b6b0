"""Text generation with ExecuTorch: one program for the prompt (prefill) and one for each further token (decode).

Their lengths are dynamic up to a bound, for which memory is planned in advance. The cache is an output of each step, and an input of the
next. One program for both would begin with an empty cache, of which XNNPACK's delegate (ExecuTorch 1.5) cannot compute the shapes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from hwmatrix.errors import FactoryError
from hwmatrix.models import generation_calls
from hwmatrix.models.generation_export import (
    DECODE,
    ENCODER,
    LOGITS,
    PREFILL,
    GraphInput,
    Takes,
    check_given,
    own_output,
    samples_of,
    still_of,
)
from hwmatrix.models.onnx_exporters import dynamic_axes, loaded, traced_with_any_shape
from hwmatrix.records import Prepared
from hwmatrix.records.vocabulary import Preparation, exported_by
from hwmatrix.targets.decoding import run_steps
from hwmatrix.targets.executorch import lowering, runtime
from hwmatrix.targets.executorch.descriptor import TRANSFORMERS
from hwmatrix.targets.executorch.operators import Replacing, drop_shifts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.models.bundle import Bundle, GenerationPrompt
    from hwmatrix.targets.protocol import Arrays, OnStep

_MIB: Final = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Component(Takes):
    """A program in the runtime. ``order`` has its arguments: names, and constants.

    ``results`` is the structure of the model's outputs. The program returns others before them: states that the model changes in place.
    """

    order: tuple[Any, ...]
    results: Any
    lowered: lowering.Lowered
    program: runtime.Program

    def run(self, given: Arrays, state: Mapping[str, torch.Tensor]) -> tuple[list[Any], dict[str, torch.Tensor]]:
        """Run the program on the arguments of a step and the state. Return all arguments, and the outputs by own name."""
        from transformers.exporters.utils import get_leaf_tensors

        known = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in self.feed(given).items()} | dict(state)
        values = [known[each.name] if isinstance(each, lowering.Argument) else each for each in self.order]
        returned = list(self.program.run(values))[-self.results.num_leaves :]
        outputs = torch.utils._pytree.tree_unflatten(returned, self.results)  # noqa: SLF001 - as torch.export writes it
        return values, {own_output(name): tensor for name, tensor in get_leaf_tensors(outputs).items()}


class Generator:
    """Runs a prompt step by step."""

    def __init__(self, *, prefill: Component, decode: Component, token: str, prepared: Prepared) -> None:
        self.decode = decode
        self.prepared = prepared
        self._prefill = prefill
        self._token = token
        self._state: dict[str, torch.Tensor] = {}
        self._values: list[Any] = []

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> None:
        """As in :class:`hwmatrix.targets.protocol.Generating`."""
        self._state = {}
        run_steps(prompt, self._token, self._step, on_step, forced=forced)

    def times(self) -> runtime.Times | None:
        """How long the calls of the last step take; None: not known."""
        return self.decode.program.times(self._values) if self._values else None

    def cache_mb(self) -> float:
        """The size of the cache after the last step."""
        return float(sum(value.nbytes for name, value in self._state.items() if not name.startswith(ENCODER))) / _MIB

    def _step(self, number: int, given: Arrays) -> np.ndarray[Any, Any]:
        component = self.decode if number else self._prefill
        values, found = component.run(given, {name: self._state[name] for name in component.states})
        check_given(self.decode.states - self._state.keys(), found)
        self._state |= {name: found[name] for name in self.decode.states & found.keys()}
        if component is self.decode:
            self._values = values
        return found[LOGITS][:, -1:].numpy()


def make(bundle: Bundle, *, rewrite: bool) -> Generator:
    """Export, lower and load the programs of a bundle's model that generates. ``rewrite`` as in :func:`lowering.make`.

    Raises:
        FactoryError: the reference's passes are no steps of a graph (``no_generation``).
        UnmakableError: the bundle has nothing to generate (``no_generation``).
        UnsupportedError: ExecuTorch lacks an operator of the model, or nothing can be replaced (``nothing_to_rewrite``).
    """
    model = loaded(bundle, attention=None, cache=True)
    samples, still, longest = samples_of(model, bundle, joint=False), still_of(bundle), _longest(bundle)
    replaced = set[str]() if rewrite else None

    def made(component: str, sample: dict[str, Any]) -> Component:
        try:
            return _component(bundle, component, sample, still=still, longest=longest, replaced=replaced)
        except Exception as failure:
            named = lowering.unsupported(failure)
            if named is None:
                raise
            raise named from failure

    assert samples.prefill is not None  # noqa: S101 - the samples are not joint
    prefill, decode = made(PREFILL, samples.prefill), made(DECODE, samples.decode)
    method = f"{TRANSFORMERS} export of {PREFILL} and {DECODE}, lowered to XNNPACK for at most {longest} tokens"
    prepared = Prepared(method=method, preparation=(exported_by(TRANSFORMERS), Preparation.BOUNDED_LENGTHS))
    return Generator(
        prefill=prefill,
        decode=decode,
        token=generation_calls.token_argument(model),
        prepared=prepared if replaced is None else prepared.rewritten(replaced),
    )


def _component(
    bundle: Bundle, component: str, sample: dict[str, Any], *, still: frozenset[str], longest: int, replaced: set[str] | None
) -> Component:
    def export(model: torch.nn.Module, given: dict[str, Any], axes: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        with contextlib.nullcontext() if replaced is None else Replacing(replaced):
            return _traced(model, given, axes)

    (program, given), prepared = traced_with_any_shape(lambda: loaded(bundle, attention=None, cache=True), sample, export, still=still)
    if replaced is not None:
        drop_shifts(program.graph_module, replaced)
    state, constant = generation_calls.states(sample)
    order, inputs = _arguments(program, given, constants=prepared.keys() | constant.keys(), states=state.keys())
    _bound(program, longest)
    lowered = lowering.lower(program, TRANSFORMERS, checked=False)
    return Component(
        component=component,
        inputs=inputs,
        order=order,
        results=program.call_spec.out_spec,
        lowered=lowered,
        program=runtime.Program(lowered.data, kernels=lowered.kernels),
    )


def _traced(
    model: torch.nn.Module, given: dict[str, Any], axes: dict[str, Any] | None
) -> tuple[torch.export.ExportedProgram, dict[str, Any]]:
    """Export a pass with dynamic lengths; the number of rows, the first axis, is that of the sample. Also return all its arguments."""
    from transformers.exporters.configs import DynamoConfig
    from transformers.exporters.exporter_dynamo import DynamoExporter
    from transformers.exporters.exporter_executorch import prepare_for_xnnpack

    exporter: Any = DynamoExporter
    prepare_for_xnnpack(model, given)  # type: ignore[arg-type] # it takes any module
    lengths = _without_rows(axes if axes is not None else dynamic_axes(model, given, given.keys()))
    with lowering.repaired(TRANSFORMERS):
        program, _ = exporter().export_program(model, given, DynamoConfig(dynamic=True, dynamic_shapes=lengths))
    return program, given


def _without_rows(axes: Any) -> Any:
    """The same axes, with the first of each tensor fixed. A tensor's are a dictionary by number, structures one by name or a list."""
    if isinstance(axes, dict):
        return {name: None if name == 0 else _without_rows(each) for name, each in axes.items()}
    return type(axes)(map(_without_rows, axes)) if isinstance(axes, (list, tuple)) else axes


def _arguments(
    program: torch.export.ExportedProgram, given: Mapping[str, Any], *, constants: frozenset[str] | set[str], states: Any
) -> tuple[tuple[Any, ...], tuple[GraphInput, ...]]:
    """The arguments of a program in their order: names of tensors, and constants; and what is known of the former.

    Raises:
        FactoryError: the program has other arguments than the model (``no_generation``).
    """
    from torch.export.graph_signature import InputKind
    from transformers.exporters.utils import get_leaf_tensors

    structure: Any = program.call_spec.in_spec
    named = {name: given[name] for name in structure.child(1).context}
    leaves = [leaf for value in named.values() for leaf in torch.utils._pytree.tree_leaves(value)]  # noqa: SLF001 - as torch.export does
    names = {id(tensor): name for name, tensor in get_leaf_tensors(named).items()}
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    taken = [nodes[spec.arg.name] for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    if len(taken) != len(leaves):
        message = f"the exported program takes {len(taken)} arguments, and the model {len(leaves)}"
        raise FactoryError(message, error_type="no_generation")
    order: list[Any] = []
    inputs: list[GraphInput] = []
    for leaf, node in zip(leaves, taken, strict=True):
        name = names.get(id(leaf))
        if name is None or name in constants:
            order.append(leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf)
            continue
        order.append(lowering.Argument(name=name))
        shape = tuple(size if isinstance(size, int) else None for size in node.meta["val"].shape)
        dtype = str(leaf.dtype).removeprefix("torch.")
        inputs.append(GraphInput(name=name, own=name, shape=shape, dtype=dtype, state=name in states))
    return tuple(order), tuple(inputs)


def _longest(bundle: Bundle) -> int:
    """The largest number of tokens that any step has before it or in it."""
    prompts = (*bundle.generation().forced, *bundle.generation().free)
    steps = [step for prompt in prompts for step in prompt.steps]
    widths = [array.shape[1] for step in steps for array in step.values() if array.ndim == 2 and array.dtype.kind in "ib"]  # noqa: PLR2004 - rows of tokens
    totals = [_tokens(prompt) + prompt.tokens.shape[1] for prompt in prompts]
    longest: int = max(*widths, *totals)
    return longest


def _tokens(prompt: GenerationPrompt) -> int:
    """The length of a prompt of text; 0 if it is none."""
    text = prompt.inputs.get("input_ids")
    return 0 if text is None else int(text.shape[1])


def _bound(program: torch.export.ExportedProgram, longest: int) -> None:
    """Bound every dynamic length that has no bound: memory is planned for the largest."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    values = (node.meta.get("val") for node in program.graph.nodes)
    environment = next(value.fake_mode.shape_env for value in values if hasattr(value, "fake_mode"))
    hints = environment.backed_var_to_val
    for ranges in (program.range_constraints, environment.var_to_range):
        for symbol, known in list(ranges.items()):
            if known.upper is int_oo:
                ranges[symbol] = ValueRanges(known.lower, max(longest, int(hints.get(symbol, 0)), int(known.lower)))
