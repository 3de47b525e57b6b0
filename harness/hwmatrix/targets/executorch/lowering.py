"""Turns a PyTorch model into an ExecuTorch program: exported by torch.export, with the parts that XNNPACK supports delegated to it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from hwmatrix.errors import UnsupportedError
from hwmatrix.models import onnx_extents
from hwmatrix.models.onnx_exporters import told_of, with_extents
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.records import Prepared
from hwmatrix.records.vocabulary import Preparation, exported_by
from hwmatrix.targets.executorch.descriptor import TORCH, TRANSFORMERS
from hwmatrix.targets.executorch.operators import Replacing, drop_shifts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hwmatrix.targets.protocol import Arrays

    Load = Callable[[], torch.nn.Module]
    Tensors = Mapping[str, torch.Tensor]

_NOT_CORE: Final = re.compile(r"Operator torch\._ops\.([\w.]+) is not in Core ATen opset")
"""How ExecuTorch (1.5) reports an operator that is still in the graph after all decompositions, and that it does not know."""
_NO_OUT_VARIANT: Final = re.compile(r"Missing out variants: \{(.+)\}")
"""How it reports operators that it cannot give memory for their results."""
_PRIMITIVES: Final = "executorch_prim"
"""The namespace of kernels that compute sizes, and of views, which move no data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Argument:
    """The input of the bundle that an argument of the program gets."""

    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """A model as torch.export has traced it.

    ``arguments`` of the program are inputs of the bundle or constants: what the exporter computed from the inputs in advance, and numbers.
    ``results`` is the structure of its outputs, for :func:`named`.
    """

    program: torch.export.ExportedProgram
    arguments: tuple[Any, ...]
    results: Any
    exporter: str
    prepared: Prepared

    def values(self, inputs: Tensors) -> list[Any]:
        """Return the arguments of a run with these inputs."""
        return [inputs[each.name].contiguous() if isinstance(each, Argument) else each for each in self.arguments]

    def called(self, inputs: Tensors) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the traced module for these inputs, by position and by name."""
        structure = self.program.call_spec.in_spec
        args, kwargs = torch.utils._pytree.tree_unflatten(self.values(inputs), structure)  # noqa: SLF001 - as torch.export writes it
        return tuple(args), dict(kwargs)

    def named(self, values: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Return the outputs of a run by the reference's names. The program returns buffers that the model changes in place before them."""
        returned = list(values)[-self.results.num_leaves :]
        return flatten_outputs(torch.utils._pytree.tree_unflatten(returned, self.results))  # noqa: SLF001 - as torch.export writes it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lowered:
    """A program as bytes, with the number of nodes by operator: ``delegated`` to XNNPACK, in ``delegates`` parts, and of kernels.

    ``kernels`` are the calls that the runtime executes itself, with the names of its registry (``aten::embedding.out``). In bytes:
    ``delegated_weights`` of the delegates, ``constants`` of the kernels, and ``planned`` for the values that are passed between calls.
    """

    data: bytes
    delegates: int
    delegated: Counter[str]
    kernels: Counter[str]
    delegated_weights: int = 0
    constants: int = 0
    planned: int = 0


def make(
    load: Load, inputs: Tensors, *, only: str | None = None, samples: Sequence[Tensors] = (), rewrite: bool = False
) -> tuple[Exported, Lowered]:
    """Export and lower as transformers' ExecuTorch exporter does; if that fails, as ExecuTorch documents it, with torch.export alone.

    ``load`` returns a new model. ``only`` selects one of the two. With ``samples``, weights and activations are rounded to 8 bits, in
    ranges that these inputs show. ``rewrite`` replaces operators that ExecuTorch lacks or computes incorrectly. If both exports fail, the
    second error's message includes the first.

    Raises:
        UnsupportedError: ExecuTorch named operators that it does not have, nothing can be rounded (``nothing_to_quantize``), or nothing can
            be replaced (``nothing_to_rewrite``).
    """
    ways = {TRANSFORMERS: _by_transformers, TORCH: _by_torch}
    first: Exception | None = None
    for name in (only,) if only is not None else ways:
        try:
            return _made(ways[name], load, inputs, samples, rewrite=rewrite)
        except (MemoryError, UnsupportedError):  # another export needs just as much memory, or has nothing to round or to replace either
            raise
        except Exception as failure:
            if first is not None:
                failure.add_note(f"The export by transformers had failed before: {told_of(first)}")
            elif only is None:
                first = failure
                continue
            named = unsupported(failure) or unsupported(first)
            if named is None:
                raise
            raise named from failure
    raise AssertionError("unreachable")


def _made(
    way: Callable[..., Exported], load: Load, inputs: Tensors, samples: Sequence[Tensors], *, rewrite: bool
) -> tuple[Exported, Lowered]:
    """Export in one way and lower, with the inputs that describe sizes held constant; if that fails, with all of them as arguments.

    ExecuTorch plans memory in advance. Where a shape depends on data, lowering fails, or the program does when it runs.
    """

    def exported_and_lowered(fixed: Sequence[str]) -> tuple[Exported, Lowered]:
        model, replaced = load(), set[str]()
        with Replacing(replaced) if rewrite else contextlib.nullcontext():
            exported = way(model, inputs, fixed=fixed)
        steps: tuple[Preparation, ...] = ()
        if rewrite:
            drop_shifts(exported.program.graph_module, replaced)
        if samples:
            exported, steps = _rounded(exported, inputs, samples, rewrite=rewrite)
        if rewrite:
            exported = dataclasses.replace(exported, prepared=exported.prepared.rewritten(replaced, *steps))
        return exported, lower(exported.program, exported.exporter)

    fixed = onnx_extents.extents(inputs)
    if not fixed:
        return exported_and_lowered(())
    try:
        return exported_and_lowered(fixed)
    except (MemoryError, UnsupportedError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever the tools raise, the model may not like its inputs held
        first = told_of(error)
    # Outside the handler, so that the first attempt's error does not become the cause of the second's.
    try:
        return exported_and_lowered(())
    except Exception as second:
        second.add_note(f"The first attempt, with {', '.join(fixed)} held, had failed: {first}")
        raise


def _rounded(exported: Exported, inputs: Tensors, samples: Sequence[Tensors], *, rewrite: bool) -> tuple[Exported, tuple[Preparation, ...]]:
    """Quantize the traced model as PyTorch documents it for XNNPACK (PT2E): observed with the samples, then converted and traced again.

    ``rewrite``: the quantizer leaves integers alone, and the numbers that are added to them; if there are any, that is the second result.
    By itself it takes some for activations, and makes float32 of the others, with which no table can be read (ExecuTorch 1.5).

    The samples run without the exporter's patches: one replaces ``torch.bucketize``, which the observers call, by 67 million comparisons.
    """
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    left_alone: list[str] = []

    class WithoutIntegers(XNNPACKQuantizer):  # type: ignore[misc]
        def transform_for_annotation(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            given = [node for node in model.graph.nodes if _holds_integers(node) and any(isinstance(each, int) for each in node.args)]
            left_alone.extend(node.name for node in given)
            return model if given else super().transform_for_annotation(model)

        def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            annotated: torch.fx.GraphModule = super().annotate(model)
            for node in annotated.graph.nodes:
                rounding = node.meta.get("quantization_annotation")
                if rounding is not None and any(map(_holds_integers, (node, *rounding.input_qspec_map))):
                    del node.meta["quantization_annotation"]
                    left_alone.append(node.name)
            return annotated

    config = get_symmetric_quantization_config(is_per_channel=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantizer = WithoutIntegers() if rewrite else XNNPACKQuantizer()
        observed = prepare_pt2e(exported.program.module(), quantizer.set_global(config))
        for sample in samples:
            args, kwargs = exported.called(sample)
            observed(*args, **kwargs)
        args, kwargs = exported.called(inputs)
        with repaired(exported.exporter):
            program = torch.export.export(convert_pt2e(observed), args, kwargs)
    count = sum("quantize_per" in str(node.target) for node in program.graph.nodes)
    if not count:
        message = "XNNPACK's quantizer found nothing to round in the graph; float32 works"
        raise UnsupportedError(message, needs=("a linear layer or a convolution",), error_type="nothing_to_quantize")
    prepared = exported.prepared.then(f"quantized by PT2E from {len(samples)} inputs: {count} conversions")
    return dataclasses.replace(exported, program=program, prepared=prepared), (Preparation.KEPT_INTEGERS,) if left_alone else ()


def _holds_integers(node: torch.fx.Node) -> bool:
    """Whether a node's value is a tensor of integers."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point()


def _by_transformers(model: torch.nn.Module, inputs: Tensors, *, fixed: Sequence[str]) -> Exported:
    """Export as transformers' own ExecuTorch exporter does, which patches models that torch.export cannot trace."""
    from transformers.exporters.configs import DynamoConfig
    from transformers.exporters.exporter_dynamo import DynamoExporter
    from transformers.exporters.exporter_executorch import prepare_for_xnnpack

    exporter: Any = DynamoExporter
    sample: dict[str, Any] = dict(inputs)  # the exporter adds what it computes in advance
    with with_extents(model, sample, fixed), repaired(TRANSFORMERS):
        prepare_for_xnnpack(model, sample)  # type: ignore[arg-type] # it takes any module
        program, _ = exporter().export_program(model, sample, DynamoConfig())
    return _described(program, sample, inputs, TRANSFORMERS, fixed)


def _by_torch(model: torch.nn.Module, inputs: Tensors, *, fixed: Sequence[str]) -> Exported:
    """Export by torch.export, of a module that returns the reference's outputs."""
    options = call_options(model)

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return flatten_outputs(self.inner(**given, **options))

    sample = dict(inputs)
    with with_extents(model, sample, fixed), torch.no_grad(), repaired(TORCH):
        program = torch.export.export(Flat().eval(), (sample,))
    return _described(program, sample, inputs, TORCH, fixed)


def _described(
    program: torch.export.ExportedProgram, sample: Mapping[str, Any], inputs: Tensors, exporter: str, fixed: Sequence[str]
) -> Exported:
    """Find out what the program's arguments are."""
    from torch.fx._pytree import tree_flatten_spec

    marked = {name: Argument(name=name) if name in inputs else value for name, value in sample.items()}
    structure = program.call_spec.in_spec
    positional = structure is not None and structure.child(0).num_children > 0
    leaves = tree_flatten_spec(((marked,), {}) if positional else ((), marked), structure)
    constants = [leaf.contiguous() if isinstance(leaf, torch.Tensor) else None if isinstance(leaf, str) else leaf for leaf in leaves]
    method = f"{exporter} export, lowered to XNNPACK"
    return Exported(
        program=program,
        arguments=tuple(constants),
        results=program.call_spec.out_spec,
        exporter=exporter,
        prepared=Prepared(
            method=f"{method}, with constant {', '.join(fixed)}" if fixed else method,
            preparation=(exported_by(exporter), Preparation.FIXED_SHAPES, *((Preparation.CONSTANT_INPUTS,) if fixed else ())),
        ),
    )


def lower(program: torch.export.ExportedProgram, exporter: str, *, checked: bool = True) -> Lowered:
    """Lower an exported program to XNNPACK as its exporter does: as ExecuTorch documents it, or as transformers' exporter does.

    ``checked`` False leaves out ExecuTorch's own check of the graph, which turns a dynamic first axis into a constant (1.5): it takes the
    length of a tensor as the number of an operator's results.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from transformers.exporters.exporter_executorch import _get_edge_compile_config
    from transformers.exporters.utils import apply_fx_node_fixes, apply_fx_program_fixes

    with repaired(exporter):
        config: Any = EdgeCompileConfig()
        if exporter == TRANSFORMERS:
            apply_fx_program_fixes("executorch", program)
            apply_fx_node_fixes("executorch", program.graph_module)
            config = _get_edge_compile_config("xnnpack")  # lets through operators outside the core set
        config._check_ir_validity &= checked  # noqa: SLF001 - a documented field in spite of its name
        edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()], compile_config=config)
        made = edge.to_executorch()
    parts = _parts(made.exported_program().graph_module)
    emitted: Any = made.executorch_program
    return Lowered(
        data=made.buffer,
        delegates=len(parts),
        delegated=_delegated(parts),
        kernels=_kernels(emitted),
        delegated_weights=_weights(parts),
        constants=sum(len(buffer.storage) for buffer in emitted.constant_buffer),
        planned=sum(sum(plan.non_const_buffer_sizes) for plan in emitted.execution_plan),
    )


def _parts(module: torch.nn.Module) -> list[torch.export.ExportedProgram]:
    """The parts of a lowered graph that were given to delegates, as they were before, also in its branches and loops."""
    originals = (getattr(part, "original_module", None) for part in module.modules())  # a lowered part has it
    return [original for original in originals if original is not None]


def _delegated(parts: Iterable[torch.export.ExportedProgram]) -> Counter[str]:
    """Count the nodes of delegated parts by operator."""
    nodes = Counter(_operator(node.target) for part in parts for node in part.graph.nodes if node.op == "call_function")
    nodes.pop("getitem", None)
    return nodes


def _weights(parts: Iterable[torch.export.ExportedProgram]) -> int:
    """The bytes of the weights of delegated parts; those that several parts share count once."""
    tensors = (tensor for part in parts for tensor in (*part.state_dict.values(), *part.constants.values()))
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor)}.values())


def _operator(target: Any) -> str:
    """The name of an operator without its namespace: ``addmm.default``."""
    return str(getattr(target, "__name__", target)).removeprefix("aten.")


def _kernels(program: Any) -> Counter[str]:
    """Count the calls of kernels in a program's instructions."""
    kernels = Counter[str]()
    for plan in program.execution_plan:
        names = [f"{each.name}.{each.overload}" if each.overload else each.name for each in plan.operators]
        calls = (step.instr_args for chain in plan.chains for step in chain.instructions)
        kernels.update(names[call.op_index] for call in calls if hasattr(call, "op_index"))
    return kernels


def moving_data(kernels: Counter[str]) -> Counter[str]:
    """The calls that compute or move tensors."""
    return Counter({name: count for name, count in kernels.items() if not name.startswith(_PRIMITIVES)})


def tensors_of(inputs: Arrays) -> dict[str, torch.Tensor]:
    """Inputs as PyTorch's tensors."""
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}


def arrays_of(tensors: Tensors) -> dict[str, np.ndarray[Any, Any]]:
    """Outputs as arrays: numbers in float32; integers stay."""
    return {name: (tensor.float() if tensor.is_floating_point() else tensor).numpy() for name, tensor in tensors.items()}


def prepare_patterns() -> None:
    """Export the patterns that XNNPACK's passes look for in every delegate, which takes seconds: once, for all processes forked later."""
    from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bilinear_2d.get_graphs()
        sdpa.get_graphs()


@contextlib.contextmanager
def repaired(exporter: str) -> Iterator[None]:
    """With what transformers' exporter replaces in torch and ExecuTorch while it works, if it is the exporter. Warnings are ignored."""
    from transformers.exporters.utils import apply_patches

    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        for part in ("executorch", "executorch.xnnpack") if exporter == TRANSFORMERS else ():
            stack.enter_context(apply_patches(part))
        yield


def unsupported(failure: Exception | None) -> UnsupportedError | None:
    """The failure in our words, if it names operators that ExecuTorch does not have."""
    if failure is None or isinstance(failure, UnsupportedError):
        return failure
    told = told_of(failure)
    missing = _NO_OUT_VARIANT.search(told)
    names = set(_NOT_CORE.findall(told)) | (set(re.findall(r"[\w:.]+", missing[1])) if missing else set())
    if not names:
        return None
    needs = tuple(sorted(name.replace("aten.", "aten::", 1) if "::" not in name else name for name in names))
    return UnsupportedError(f"ExecuTorch has no {', '.join(needs)}: {told}", needs=needs)
