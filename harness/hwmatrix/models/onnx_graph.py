"""Adapts an exported graph to its bundle: its inputs get the bundle's names, and its outputs are matched with the reference.

Two things stand between a graph and its bundle. In a graph every value has one name, so a model that returns an input, or something of
the same name, has an input and an output that cannot both be called so. And transformers' exporter computes in advance what a model
derives from the extents of its inputs (positions from a grid, say), because no graph can hold the Python that does it, and makes the
graph take that as further inputs. Nobody who calls the model has those: as the shapes are, they are fixed at the export.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np

INPUT_PREFIX: Final = "input."
OUTPUT_PREFIX: Final = "output."
"""What transformers' exporter (5.23, ``disambiguate_io_names``) puts before a name that an input and an output have in common."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphNames:
    """What a fitted graph takes and gives.

    ``inputs`` are its inputs, each one of the bundle's. ``outputs`` has the reference's name of each output in order, or None where the
    reference has no such output. ``fixed`` are inputs that the exporter had added, and that are constants of the graph now.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str | None, ...]
    fixed: tuple[str, ...]


def output_names(names: Sequence[str], inputs: Collection[str]) -> list[str]:
    """How a graph can call its outputs when its inputs have their own names: ``output.height`` where an input is called ``height``."""
    return [f"{OUTPUT_PREFIX}{name}" if name in inputs else name for name in names]


def name_outputs(graph: Any, names: Sequence[str]) -> None:
    """Name the outputs of an ``onnx_ir.Graph``, in order.

    What is an input, a weight or another output as well keeps its name: an ``Identity`` makes the output of it.

    Raises:
        ValueError: there are more or fewer outputs than names.
    """
    import onnx_ir

    if len(graph.outputs) != len(names):
        raise ValueError(f"the exported graph has {len(graph.outputs)} outputs, and the model has {len(names)}: {', '.join(names)}")
    seen: set[int] = set()
    for index, (value, name) in enumerate(zip(list(graph.outputs), names, strict=True)):
        output = value
        if value.is_graph_input() or value.is_initializer() or id(value) in seen:
            node = onnx_ir.node("Identity", [value])
            output = node.outputs[0]
            output.shape, output.type = value.shape, value.type
            graph.append(node)
            graph.outputs[index] = output
        seen.add(id(value))
        _make_way(graph, name, output)
        output.name = name


def fit(program: Any, *, inputs: Collection[str], expected: Sequence[str], prepared: Mapping[str, np.ndarray[Any, Any]]) -> GraphNames:
    """Give the inputs of an ``onnx_ir.Model`` the bundle's names, make constants of what the exporter prepared, and check what is left.

    Args:
        program: the graph, which is changed in place.
        inputs: the names of the bundle's inputs.
        expected: the names of the reference's outputs.
        prepared: what the exporter computed from the inputs before it traced the model, by name.

    Raises:
        ValueError: an input of the graph is none of the bundle's and was not prepared, or an output of the reference is missing.
    """
    graph = program.graph
    fixed: list[str] = []
    for value in list(graph.inputs):
        own = str(value.name).removeprefix(INPUT_PREFIX)
        if value.name not in inputs and own in inputs:
            _make_way(graph, own, value)
            value.name = own
        elif value.name not in inputs and value.name in prepared:
            _fix(graph, value, prepared[value.name])
            fixed.append(value.name)
    taken = tuple(str(value.name) for value in graph.inputs)
    unknown = sorted(set(taken) - set(inputs))
    if unknown:
        raise ValueError(f"the exported graph has inputs that the model has not: {', '.join(unknown)}")
    given = tuple(_reference_name(str(value.name), expected) for value in graph.outputs)
    missing = sorted(set(expected) - set(given))
    if missing:
        raise ValueError(f"the exported graph lacks outputs of the model: {', '.join(missing)}")
    return GraphNames(inputs=taken, outputs=given, fixed=tuple(fixed))


def _reference_name(name: str, expected: Sequence[str]) -> str | None:
    own = name.removeprefix(OUTPUT_PREFIX)
    return next((known for known in (name, own) if known in expected), None)


def _fix(graph: Any, value: Any, array: np.ndarray[Any, Any]) -> None:
    """Make a constant of an input."""
    import onnx_ir

    graph.inputs.remove(value)
    value.const_value = onnx_ir.tensor(array, name=value.name)
    graph.register_initializer(value)


def _make_way(graph: Any, name: str, owner: Any) -> None:
    """Let no inner value keep a name that an input or output is about to get: two of one name make a graph invalid."""
    inner = [value for node in graph.all_nodes() for value in node.outputs]
    others = [value for value in (*inner, *graph.initializers.values()) if value.name == name and value is not owner]
    for number, value in enumerate(others):
        value.name = f"{name}.inner.{number}"
