"""OpenVINO's values beside those of the same graph without a plugin: what is computed, and where a wrong result begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hwmatrix.errors import TraceError
from hwmatrix.measure.divergence import locate
from hwmatrix.records import Origin

pytest.importorskip("openvino")
torch = pytest.importorskip("torch")

from hwmatrix.targets.openvino import trace as openvino_trace  # noqa: E402 - needs openvino and torch
from hwmatrix.targets.openvino.trace import trace_graph  # noqa: E402

pytestmark = pytest.mark.torch
TOLERANCE = 1e-4
CONFIG = {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32"}
AGAINST = "the same graph, operator by operator: OpenVINO's reference implementations, and PyTorch's where it has none"
random = np.random.default_rng(0)


def parameter(shape: list[int], kind: Any = np.float32, name: str = "x") -> Any:
    from openvino import opset13

    made = opset13.parameter(shape, kind, name=name)
    made.output(0).get_tensor().set_names({name})
    return made


def traced(made: list[Any], feed: dict[str, Any], parameters: list[Any]) -> Any:
    """A trace of the graph that ends in ``made``, whose outputs are named ``y0``, ``y1`` and so on."""
    import openvino

    program = openvino.Model(made, parameters, "graph")
    names = [f"y{number}" for number in range(len(made))]
    return trace_graph(openvino.Core(), "CPU", CONFIG, program, names, feed)


def floats(*shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


def test_a_division_that_rounds_the_other_way_is_named() -> None:
    from openvino import opset13 as ops

    x, eight = np.array([-1, -8, -9, 17], np.int64), np.array([8], np.int64)
    places = parameter([4], np.int64)
    rows = ops.divide(ops.add(places, ops.constant(np.array([0], np.int64))), ops.constant(eight), name="rows")
    trace = traced([ops.multiply(ops.convert(rows, "f32"), ops.constant(np.float32(0.5)))], {"x": x}, [places])
    found = locate(trace, {"y0": (x // eight * 0.5).astype(np.float32)}, TOLERANCE)
    assert (found.origin, found.at, found.operator, found.inputs_error) == (Origin.STEP, "rows", "Divide", 0.0)
    assert found.against == AGAINST


def test_a_graph_that_is_wrong_itself_is_told_from_its_device() -> None:
    from openvino import opset13 as ops

    x = floats(2, 3)
    given = parameter([2, 3])
    found = locate(traced([ops.relu(given)], {"x": x}, [given]), {"y0": x}, TOLERANCE)
    assert found.origin is Origin.GRAPH


def test_values_that_are_right_one_by_one_are_wrong_together() -> None:
    from openvino import opset13 as ops

    x = floats(2, 3)
    given = parameter([2, 3])
    trace = traced([ops.exp(ops.relu(given)), given], {"x": x}, [given])
    assert locate(trace, {"y0": np.exp(np.maximum(x, 0))}, TOLERANCE).origin is Origin.FUSED
    assert set(trace.results) == {"y0"}  # what is an input too has been made by nobody
    assert [(step.name, step.operator) for step in trace.steps] == [("Relu_0", "Relu"), ("Exp_1", "Exp")]
    assert trace.steps[0].outputs == trace.steps[1].inputs


def attended(kind: str) -> tuple[list[Any], dict[str, Any], list[Any], Any]:
    from openvino import opset13 as ops

    feed = {name: floats(1, 2, 5, 4) for name in "qkv"}
    taken = [parameter([1, 2, 5, 4], name=name) for name in "qkv"]
    keep = np.tril(np.ones((5, 5), dtype=bool), 1)
    extra = {"attention_mask": ops.constant(keep)} if kind == "mask" else {}
    made = ops.scaled_dot_product_attention(*taken, causal=kind == "causal", **extra)
    scores = feed["q"] @ feed["k"].swapaxes(-1, -2) / 2
    seen = {"plain": np.ones((5, 5), dtype=bool), "mask": keep, "causal": np.tril(np.ones((5, 5), dtype=bool))}[kind]
    weights = np.exp(scores) * seen
    return [made], feed, taken, weights / weights.sum(-1, keepdims=True) @ feed["v"]


@pytest.mark.parametrize("kind", ["plain", "mask", "causal"])
def test_attention_is_computed_as_it_is_defined(kind: str) -> None:
    made, feed, taken, expected = attended(kind)
    trace = traced(made, feed, taken)
    np.testing.assert_allclose(trace.expected[trace.results["y0"]], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trace.values[trace.results["y0"]], expected, rtol=1e-4, atol=1e-5)
    assert trace.against == AGAINST


CONVOLUTIONS: dict[str, Any] = {
    "plain": (
        "convolution",
        (1, 4, 9, 8),
        (6, 4, 3, 2),
        {"strides": [2, 1], "pads_begin": [0, 1], "pads_end": [2, 0], "dilations": [1, 2]},
    ),
    "groups": ("group_convolution", (2, 4, 10), (2, 3, 2, 3), {"strides": [1], "pads_begin": [1], "pads_end": [2], "dilations": [2]}),
    "one group": ("group_convolution", (2, 4, 10), (1, 3, 4, 3), {"strides": [1], "pads_begin": [0], "pads_end": [0], "dilations": [1]}),
    "transposed": (
        "convolution_backprop_data",
        (1, 4, 5, 6),
        (4, 3, 3, 3),
        {"strides": [2, 3], "pads_begin": [1, 0], "pads_end": [0, 2], "output_padding": [1, 2]},
    ),
    "transposed groups": (
        "group_convolution_backprop_data",
        (1, 4, 7),
        (2, 2, 3, 4),
        {"strides": [3], "pads_begin": [1], "pads_end": [2], "output_padding": [2]},
    ),
    "same": (
        "convolution",
        (1, 2, 7),
        (3, 2, 3),
        {"strides": [2], "pads_begin": [0], "pads_end": [0], "dilations": [1], "auto_pad": "same_upper"},
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_the_plugins_to_rounding(name: str) -> None:
    from openvino import opset13 as ops

    kind, shape, filters, how = CONVOLUTIONS[name]
    given = parameter(list(shape))
    made = getattr(ops, kind)(given, ops.constant(floats(*filters)), **how)
    trace = traced([made], {"x": floats(*shape)}, [given])
    value = trace.results["y0"]
    np.testing.assert_allclose(trace.values[value], trace.expected[value], rtol=1e-4, atol=1e-5)
    assert trace.against == (f"{AGAINST}; 1 Convolution by the device alone" if name == "same" else AGAINST)


def test_groups_are_normalized_as_the_plugin_does() -> None:
    from openvino import opset13 as ops

    given = parameter([2, 6, 5])
    made = ops.group_normalization(given, ops.constant(floats(6)), ops.constant(floats(6)), 3, 1e-3)
    trace = traced([made], {"x": floats(2, 6, 5)}, [given])
    value = trace.results["y0"]
    np.testing.assert_allclose(trace.values[value], trace.expected[value], rtol=1e-4, atol=1e-5)
    assert trace.against == AGAINST


def test_bits_are_compared_exactly() -> None:
    from openvino import opset13 as ops

    x = np.array([True, False, True])
    given = parameter([3], np.bool_)
    other = ops.constant(np.array([True, True, False]))
    made = [kind(given, other) for kind in (ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor)] + [ops.bitwise_not(given)]
    trace = traced(made, {"x": x}, [given])
    told = [trace.expected[trace.results[f"y{number}"]].tolist() for number in range(4)]
    assert told == [[True, False, False], [True, True, True], [False, True, True], [False, True, False]]
    assert trace.against == AGAINST


def test_shapes_that_only_a_run_tells_are_compared() -> None:
    from openvino import opset13 as ops

    given = parameter([4])
    trace = traced([ops.non_zero(ops.relu(given))], {"x": np.array([1, -1, 0, 2], np.float32)}, [given])
    assert trace.expected[trace.results["y0"]].tolist() == trace.values[trace.results["y0"]].tolist() == [[0, 3]]


def test_what_fails_as_it_runs_is_told_on_one_thread_too() -> None:
    from openvino import opset13 as ops

    given = parameter([4])
    three = ops.reshape(ops.non_zero(given), ops.constant(np.array([3], np.int64)), special_zero=False)
    made = [ops.multiply(three, ops.constant(np.int64(2)))]
    fits = traced(made, {"x": np.array([1, 2, 3, 0], np.float32)}, [given])
    assert fits.values[fits.results["y0"]].tolist() == [0, 2, 4]
    with pytest.raises(RuntimeError, match="Reshape node"):
        traced(made, {"x": np.array([1, 2, 3, 4], np.float32)}, [given])


def test_too_many_values_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from openvino import opset13 as ops

    monkeypatch.setattr(openvino_trace, "MOST_BYTES", 2 * 2**20)
    given = parameter([512, 1024])
    with pytest.raises(TraceError, match="the values of all operators take more than 2 MiB"):
        traced([ops.exp(ops.relu(given))], {"x": floats(512, 1024)}, [given])
