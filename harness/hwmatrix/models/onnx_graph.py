"""Adapts an exported graph to its bundle: its inputs get the bundle's names, and its outputs are matched with the reference.

A graph and its bundle differ in two ways. Names in a graph are unique, so an input and an output of a model that have the same name
cannot both keep it. And transformers' exporter computes in advance what a model derives from the sizes of its inputs (positions from a
grid, for example), because a graph cannot express that Python code. It adds the results to the graph as further inputs. Callers of the
model do not have them, so they become constants, as the shapes are.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np

INPUT_PREFIX: Final = "input."
OUTPUT_PREFIX: Final = "output."
"""The prefixes of transformers' exporter (5.23, ``disambiguate_io_names``) for a name shared by an input and an output."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphNames:
    """The inputs and outputs of an adapted graph.

    ``inputs`` are its inputs, all of them inputs of the bundle. ``outputs`` has the reference's name of each output in order, or None if
    the reference has no such output. ``fixed`` are inputs that the exporter added and that are now constants of the graph.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str | None, ...]
    fixed: tuple[str, ...]


def output_names(names: Sequence[str], inputs: Collection[str]) -> list[str]:
    """Unique names for a graph's outputs: ``output.height`` if an input is called ``height``."""
    return [f"{OUTPUT_PREFIX}{name}" if name in inputs else name for name in names]


def name_outputs(graph: Any, names: Sequence[str]) -> None:
    """Name the outputs of an ``onnx_ir.Graph``, in order.

    A value that is also an input, a weight or another output keeps its name; an ``Identity`` node makes the output.

    Raises:
        ValueError: there are more or fewer outputs than names.
    """
    import onnx_ir

    if len(graph.outputs) != len(names):
        raise ValueError(f"the exported graph has {len(graph.outputs)} outputs, but the model has {len(names)}: {', '.join(names)}")
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
        _free_name(graph, name, output)
        output.name = name


def fit(program: Any, *, inputs: Collection[str], expected: Sequence[str], prepared: Mapping[str, np.ndarray[Any, Any]]) -> GraphNames:
    """Give the inputs of an ``onnx_ir.Model`` the bundle's names, make ``prepared`` inputs constants, and check the rest.

    Args:
        program: the graph, which is changed in place.
        inputs: the names of the bundle's inputs.
        expected: the names of the reference's outputs.
        prepared: the arrays that the exporter computed from the inputs before it traced the model, by name.

    Raises:
        ValueError: an input of the graph is neither in the bundle nor prepared, or an output of the reference is missing.
    """
    graph = program.graph
    fixed: list[str] = []
    for value in list(graph.inputs):
        own = str(value.name).removeprefix(INPUT_PREFIX)
        if value.name not in inputs and own in inputs:
            _free_name(graph, own, value)
            value.name = own
        elif value.name not in inputs and value.name in prepared:
            make_constant(graph, value, prepared[value.name])
            fixed.append(value.name)
    taken = tuple(str(value.name) for value in graph.inputs)
    unknown = sorted(set(taken) - set(inputs))
    if unknown:
        raise ValueError(f"the exported graph has inputs that the model does not have: {', '.join(unknown)}")
    given = tuple(_reference_name(str(value.name), expected) for value in graph.outputs)
    missing = sorted(set(expected) - set(given))
    if missing:
        raise ValueError(f"the exported graph lacks outputs of the model: {', '.join(missing)}")
    return GraphNames(inputs=taken, outputs=given, fixed=tuple(fixed))


def _reference_name(name: str, expected: Sequence[str]) -> str | None:
    own = name.removeprefix(OUTPUT_PREFIX)
    return next((known for known in (name, own) if known in expected), None)


def make_constant(graph: Any, value: Any, array: np.ndarray[Any, Any]) -> None:
    """Turn an input into a constant."""
    import onnx_ir

    graph.inputs.remove(value)
    value.const_value = onnx_ir.tensor(array, name=value.name)
    graph.register_initializer(value)


def _free_name(graph: Any, name: str, owner: Any) -> None:
    """Rename inner values that have the name an input or output is about to get: names in a graph must be unique."""
    inner = [value for node in graph.all_nodes() for value in node.outputs]
    others = [value for value in (*inner, *graph.initializers.values()) if value.name == name and value is not owner]
    for number, value in enumerate(others):
        value.name = f"{name}.inner.{number}"
