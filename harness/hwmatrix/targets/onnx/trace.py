"""Intermediate values of an ONNX graph: which ones exist, which node computes them, and their reference values."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.errors import TraceError
from hwmatrix.records.traces import Step, Trace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    Array = np.ndarray[Any, np.dtype[Any]]

AGAINST: Final = "the same graph on ONNX Runtime's CPU provider, without optimizations"
"""Describes the reference values in reports."""
LIMIT_MB: Final = 1024
"""The limit in MiB for the values of one graph. The target's values and the reference's are in the cell's memory at the same time."""
_NUMBERS: Final = ("FLOAT", "FLOAT16", "DOUBLE", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
"""Element types that ONNX Runtime returns as the same numpy type."""
_SIZES: Final = {"double": 8, "int64": 8, "uint64": 8, "float16": 2, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1}
"""Bytes per element by ONNX Runtime's type name; 4 for others."""
_QUANTIZING: Final = frozenset({"QuantizeLinear", "DequantizeLinear"})
_OPERATORS: Final = 8
"""The largest number of operators of a step that are named one by one."""
_RANDOM: Final = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllValues:
    """A copy of a graph that outputs all its values.

    ``steps`` are the nodes in the graph's order. ``names`` are the copy's outputs that are numeric tensors: the graph's own outputs in
    order, then the intermediate values. ``results`` are the names of the graph's own outputs only, whatever their types.
    """

    path: Path
    steps: tuple[Step, ...]
    names: tuple[str, ...]
    results: tuple[str, ...]


def all_values(path: Path, folder: Path, *, only: frozenset[str] | None = None) -> AllValues:
    """Write a copy of a graph into ``folder`` in which intermediate values are outputs too, along with its external data files.

    Constants are left out, as is everything computed from constants alone: runtimes fold these when they create a session. A node with
    subgraphs (``If``, ``Loop``, ``Scan``) is one step, whose inputs include what the subgraphs read. Sequences, optional values and strings
    are left out. A node without a name is named after its operator and its position in the graph, counted from 0 (``MatMul_17``).

    In a quantized graph, the values are those after DequantizeLinear: runtimes fuse an operator with the QuantizeLinear behind it, unless
    the value between them is an output.

    Args:
        path: the graph, an ONNX file.
        folder: a folder other than the graph's.
        only: the intermediate values to output by name; by default all.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    constants = _constants(model.graph)
    kinds = _kinds(model)
    steps = tuple(
        Step(
            name=node.name or f"{node.op_type}_{number}",
            operator=node.op_type,
            inputs=tuple(dict.fromkeys(name for name in _reads(node) if name not in constants)),
            outputs=tuple(name for name in node.output if name),
        )
        for number, node in enumerate(model.graph.node)
        if not constants.issuperset(name for name in node.output if name)
    )
    results = tuple(output.name for output in model.graph.output)
    hidden = _before_dequantize(model.graph)
    between = [name for step in steps for name in step.outputs if name not in results and name not in hidden and kinds.get(name, True)]
    between = [name for name in between if only is None or name in only]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in between)
    copy = folder / path.name
    for place in _external_files(model.graph):
        _link_or_copy(path.with_name(place), folder / place)
    copy.write_bytes(model.SerializeToString())
    names = (*(name for name in results if kinds.get(name, True)), *between)
    return AllValues(path=copy, steps=steps, names=names, results=results)


def reference_values(path: Path, feed: Mapping[str, Array], names: Sequence[str], *, threads: int = 1) -> dict[str, Array]:
    """Compute these outputs of a graph on ONNX Runtime's CPU provider, without optimizations: each node separately, as written.

    Raises:
        TraceError: they take more than ``LIMIT_MB``.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return read(onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]), feed, names)


def read(session: Any, feed: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """Return outputs of an ONNX Runtime session by name: floating-point values as float32, others unchanged.

    Raises:
        TraceError: they take more than ``LIMIT_MB``.
    """
    wanted = frozenset(names)
    check_size({output.name: (output.type, output.shape) for output in session.get_outputs() if output.name in wanted})
    results = session.run(list(names), dict(feed))
    return {name: _in_float32(array) for name, array in zip(names, results, strict=True) if isinstance(array, np.ndarray)}


def check_size(outputs: Mapping[str, tuple[str, Sequence[Any]]]) -> None:
    """Check before a run that the values take at most ``LIMIT_MB``, as far as their shapes are known.

    Args:
        outputs: by name, the type in ONNX Runtime's notation (``tensor(float)``), and the shape; a dimension that is not a number is
            unknown.

    Raises:
        TraceError: they take more.
    """
    known = [(kind, shape) for kind, shape in outputs.values() if all(isinstance(extent, int) for extent in shape or ())]
    total = sum(math.prod(shape or ()) * _SIZES.get(kind.removeprefix("tensor(").removesuffix(")"), 4) for kind, shape in known)
    if total > LIMIT_MB * 2**20:
        message = f"the {len(outputs)} values of the graph take {total / 2**20:.0f} MiB, more than the limit of {LIMIT_MB}"
        raise TraceError(message)


def traced(
    kept: AllValues,
    *,
    values: Mapping[str, Array],
    expected: Mapping[str, Array],
    outputs: Sequence[str | None],
    against: str = AGAINST,
) -> Trace:
    """Combine a target's values with the expected ones. Nodes between two known values count as one step.

    Args:
        kept: the graph whose values these are.
        values: the target's values by name.
        expected: the reference values, from :func:`reference_values`.
        outputs: for each output of the graph in order, its name in the reference, or None (as in an export).
        against: describes the reference values.
    """
    results = {name: own for own, name in zip(kept.results, outputs, strict=True) if name is not None}
    steps = joined(kept.steps, values.keys() & expected.keys())
    return Trace(steps=steps, values=values, expected=expected, results=results, against=against)


def joined(steps: Sequence[Step], known: Collection[str]) -> tuple[Step, ...]:
    """Merge each step that has a known output with the preceding steps that have none, since these cannot be told apart.

    A merged step is named after its first and last node (``conv_1 to relu_1``); its operator joins theirs (``Conv+Relu``). QuantizeLinear
    and DequantizeLinear are not named beside others.
    """
    made_by = {name: number for number, step in enumerate(steps) for name in step.outputs}
    return tuple(
        _as_one([steps[each] for each in _with_unknown(steps, made_by, number, known)], step.outputs, known, made_by)
        for number, step in enumerate(steps)
        if any(name in known for name in step.outputs)
    )


def behind(steps: Sequence[Step], step: Step, known: Collection[str]) -> tuple[str, ...]:
    """Return the unknown values inside a step merged by :func:`joined`, in the graph's order."""
    made_by = {name: number for number, each in enumerate(steps) for name in each.outputs}
    parts = _with_unknown(steps, made_by, made_by[step.outputs[0]], known)
    return tuple(name for part in parts for name in steps[part].outputs if name not in known)


def _with_unknown(steps: Sequence[Step], made_by: Mapping[str, int], number: int, known: Collection[str]) -> list[int]:
    """Return a step and the steps that its unknown inputs lead back to, in the graph's order."""
    found, waiting = {number}, [number]
    while waiting:
        behind = {made_by[name] for name in steps[waiting.pop()].inputs if name not in known and name in made_by}
        waiting += behind - found
        found |= behind
    return sorted(found)


def _as_one(parts: Sequence[Step], outputs: tuple[str, ...], known: Collection[str], made_by: Mapping[str, int]) -> Step:
    named = [part for part in parts if part.operator not in _QUANTIZING] or list(parts)
    operators = [part.operator for part in named]
    if len(operators) > _OPERATORS:
        operators = [operators[0], "...", operators[-1]]
    return Step(
        name=named[0].name if len(named) == 1 else f"{named[0].name} to {named[-1].name}",
        operator="+".join(operators),
        inputs=tuple(dict.fromkeys(name for part in parts for name in part.inputs if name in known or name not in made_by)),
        outputs=outputs,
    )


def _in_float32(array: Array) -> Array:
    return array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array


def _constants(graph: Any) -> frozenset[str]:
    """The names of initializers, and of values computed from constants alone."""
    known = {tensor.name for tensor in graph.initializer} | {sparse.values.name for sparse in graph.sparse_initializer}
    known -= {value.name for value in graph.input}
    for node in graph.node:
        if node.op_type not in _RANDOM and known.issuperset(_reads(node)):
            known.update(name for name in node.output if name)
    return frozenset(known)


def _reads(node: Any) -> Iterator[str]:
    """Yield the names of the values that a node reads, including those that its subgraphs read."""
    yield from (name for name in node.input if name)
    for graph in _graphs(node):
        yield from _read_from_outside(graph)


def _read_from_outside(graph: Any) -> Iterator[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        yield from (name for name in _reads(node) if name not in own)
        own.update(node.output)
    yield from (value.name for value in graph.output if value.name not in own)


def _before_dequantize(graph: Any) -> frozenset[str]:
    """The names of quantized values, and of values that are only used to be quantized."""
    quantized = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    used = {name for node in graph.node if node.op_type != "QuantizeLinear" for name in _reads(node)}
    return frozenset(quantized - used).union(*(node.output for node in graph.node if node.op_type == "QuantizeLinear"))


def _graphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _kinds(model: Any) -> dict[str, bool]:
    """Whether each value is a numeric tensor, by name. Values of unknown type are missing."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(model).graph
    numbers = {onnx.TensorProto.DataType.Value(name) for name in _NUMBERS}
    return {
        value.name: value.type.HasField("tensor_type") and value.type.tensor_type.elem_type in numbers
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.WhichOneof("value") is not None
    }


def _external_files(graph: Any) -> frozenset[str]:
    """The files beside a graph that hold its constants."""
    places = {entry.value for tensor in graph.initializer for entry in tensor.external_data if entry.key == "location"}
    return frozenset(places).union(*(_external_files(inner) for node in graph.node for inner in _graphs(node)))


def _link_or_copy(source: Path, place: Path) -> None:
    """Hard-link a file to another place, or copy it: ONNX Runtime does not follow symbolic links out of a graph's folder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # on another file system, or if links are not allowed
        os.link(source, place)
        return
    shutil.copyfile(source, place)
