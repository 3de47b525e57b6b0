"""Graphs fitted to a bundle's names: what exporters add, rename and pass through, proved by running the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hwmatrix.models.onnx_graph import fit, name_outputs, output_names
from hwmatrix.targets.onnx.rewriting import keep_longer_axes

pytestmark = pytest.mark.torch

X = np.array([1.0, 2.0, 3.0], np.float32)


def value(name: str) -> Any:
    import onnx_ir

    return onnx_ir.Value(name=name, shape=onnx_ir.Shape([3]), type=onnx_ir.TensorType(onnx_ir.DataType.FLOAT))


def model(inputs: list[Any], outputs: list[Any], nodes: list[Any], weights: list[Any] | None = None) -> Any:
    import onnx_ir

    graph = onnx_ir.Graph(inputs, outputs, nodes=nodes, initializers=weights or [], opset_imports={"": 20}, name="g")
    return onnx_ir.Model(graph, ir_version=10)


def node(kind: str, takes: list[Any], gives: str) -> Any:
    import onnx_ir

    return onnx_ir.node(kind, takes, outputs=[value(gives)])


def run(program: Any, feed: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """What onnx's own implementation makes of a graph that its checker finds valid."""
    import onnx
    import onnx_ir
    from onnx.reference import ReferenceEvaluator

    proto = onnx_ir.to_proto(program)
    onnx.checker.check_model(proto, full_check=True)
    return list(ReferenceEvaluator(proto).run(None, feed))


def test_an_input_that_is_an_output_too_has_its_own_name_again() -> None:
    taken = value("input.height")
    twice, same = node("Add", [taken, taken], "logits"), node("Identity", [taken], "output.height")
    program = model([taken], [twice.outputs[0], same.outputs[0]], [twice, same])
    names = fit(program, inputs=["height"], expected=["logits", "height"], prepared={})
    assert (names.inputs, names.outputs, names.fixed) == (("height",), ("logits", "height"), ())
    logits, height = run(program, {"height": X})
    assert logits.tolist() == [2, 4, 6]
    assert height.tolist() == X.tolist()


def test_a_bundle_may_really_have_names_that_look_prefixed() -> None:
    taken = value("input.x")
    same = node("Identity", [taken], "output.x")
    names = fit(model([taken], [same.outputs[0]], [same]), inputs=["input.x", "x"], expected=["output.x"], prepared={})
    assert (names.inputs, names.outputs) == (("input.x",), ("output.x",))


def test_what_the_exporter_computed_in_advance_becomes_a_constant() -> None:
    taken, positions = value("pixel_values"), value("position_ids")
    both = node("Add", [taken, positions], "last_hidden_state")
    program = model([taken, positions], [both.outputs[0]], [both])
    prepared = {"position_ids": np.array([10, 20, 30], np.float32), "max_seqlen": np.array(4)}
    names = fit(program, inputs=["pixel_values", "grid_thw"], expected=["last_hidden_state"], prepared=prepared)
    assert (names.inputs, names.fixed) == (("pixel_values",), ("position_ids",))
    assert run(program, {"pixel_values": X})[0].tolist() == [11, 22, 33]


def test_an_input_that_nobody_has_and_an_output_that_is_not_there_are_refused() -> None:
    taken, foreign = value("x"), value("cache")
    both = node("Add", [taken, foreign], "y")
    with pytest.raises(ValueError, match="inputs that the model does not have: cache"):
        fit(model([taken, foreign], [both.outputs[0]], [both]), inputs=["x"], expected=["y"], prepared={"other": X})
    taken = value("x")
    one = node("Neg", [taken], "y")
    with pytest.raises(ValueError, match="lacks outputs of the model: z"):
        fit(model([taken], [one.outputs[0]], [one]), inputs=["x"], expected=["y", "z"], prepared={})


def test_outputs_that_are_inputs_weights_or_the_same_value_get_names_of_their_own() -> None:
    import onnx_ir

    taken, weight = value("x"), value("bias")
    weight.const_value = onnx_ir.tensor(X, name="bias")
    total = node("Add", [taken, weight], "val_1")
    program = model([taken], [taken, weight, total.outputs[0], total.outputs[0]], [total], [weight])
    name_outputs(program.graph, output_names(["x", "w", "a", "b"], ["x"]))
    names = fit(program, inputs=["x"], expected=["x", "w", "a", "b"], prepared={})
    assert (names.inputs, names.outputs) == (("x",), ("x", "w", "a", "b"))
    assert [found.tolist() for found in run(program, {"x": X * 2})] == [(X * 2).tolist(), X.tolist(), (X * 3).tolist(), (X * 3).tolist()]


def test_an_inner_value_makes_way_for_a_name_that_is_needed() -> None:
    taken = value("input.y")
    inner = node("Neg", [taken], "y")
    last = node("Neg", [inner.outputs[0]], "val_9")
    program = model([taken], [last.outputs[0]], [inner, last])
    name_outputs(program.graph, ["output.y"])
    names = fit(program, inputs=["y"], expected=["y"], prepared={})
    assert (names.inputs, names.outputs) == (("y",), ("y",))
    assert run(program, {"y": X})[0].tolist() == X.tolist()


def test_another_number_of_outputs_than_names_is_refused() -> None:
    taken = value("x")
    one = node("Neg", [taken], "y")
    with pytest.raises(ValueError, match="1 outputs, but the model has 2: y, z"):
        name_outputs(model([taken], [one.outputs[0]], [one]).graph, ["y", "z"])


@pytest.mark.parametrize(
    ("shape", "axes", "kept", "found"),
    [
        ([3, 1], [0], 1, [3, 1]),  # the converter of PyTorch's squeeze(0)
        ([3, 1], [-1], 0, [3]),
        ([1, 3], [0], 0, [3]),
        (["rows", 1], [0], 0, None),  # only running it tells
        ([3, 1], None, 0, [3]),  # every axis of 1, as ONNX defines it
    ],
)
def test_a_squeeze_of_a_longer_axis_does_nothing_as_in_pytorch(
    shape: list[int | str], axes: list[int] | None, kept: int, found: list[int] | None
) -> None:
    import onnx_ir

    taken = onnx_ir.Value(name="x", shape=onnx_ir.Shape(shape), type=onnx_ir.TensorType(onnx_ir.DataType.FLOAT))
    takes, weights = [taken], []
    if axes is not None:
        weights = [onnx_ir.Value(name="axes", const_value=onnx_ir.tensor(np.array(axes), name="axes"))]
        takes += weights
    free = onnx_ir.Shape([None] * len(found or shape))
    given = onnx_ir.Value(name="y", shape=free, type=onnx_ir.TensorType(onnx_ir.DataType.FLOAT))
    program = model([taken], [given], [onnx_ir.node("Squeeze", takes, outputs=[given])], weights)
    assert keep_longer_axes(program) == kept
    assert keep_longer_axes(program) == 0
    if found is not None:
        (array,) = run(program, {"x": np.zeros(shape, np.float32)})
        assert list(array.shape) == found
