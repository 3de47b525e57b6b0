"""The values of an ONNX graph: steps between known values, and the memory limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwmatrix.errors import TraceError
from hwmatrix.records.traces import Step
from hwmatrix.targets.onnx import trace as onnx_trace

STEPS = (
    Step(name="fold", operator="Reshape", inputs=("x",), outputs=("a",)),
    Step(name="norm", operator="LayerNormalization", inputs=("a",), outputs=("b",)),
    Step(name="mix", operator="MatMul", inputs=("a", "b"), outputs=("c",)),
    Step(name="pick", operator="TopK", inputs=("c",), outputs=("y", "i")),
)


def test_with_all_values_known_each_node_is_a_step() -> None:
    assert onnx_trace.joined(STEPS, {"a", "b", "c", "y", "i"}) == STEPS


def test_nodes_between_known_values_are_one_step() -> None:
    first, last = onnx_trace.joined(STEPS, {"a", "y"})
    assert first == STEPS[0]
    assert last == Step(name="norm to pick", operator="LayerNormalization+MatMul+TopK", inputs=("a",), outputs=("y", "i"))


def test_an_unknown_value_that_two_steps_use_is_in_both() -> None:
    second, third, _ = onnx_trace.joined(STEPS, {"b", "c", "y"})
    assert (second.name, second.inputs) == ("fold to norm", ("x",))
    assert (third.name, third.operator, third.inputs) == ("fold to mix", "Reshape+MatMul", ("x", "b"))


def test_only_the_first_and_the_last_of_many_operators_are_named() -> None:
    names = [f"v{number}" for number in range(12)]
    chain = [Step(name=f"n{n}", operator=f"Op{n}", inputs=(names[n],), outputs=(names[n + 1],)) for n in range(11)]
    (only,) = onnx_trace.joined(chain, {"v11"})
    assert (only.name, only.operator, only.inputs) == ("n0 to n10", "Op0+...+Op10", ("v0",))


def test_quantization_nodes_are_not_named_with_the_quantized_operator() -> None:
    steps = (
        Step(name="q0", operator="QuantizeLinear", inputs=("x",), outputs=("x.q",)),
        Step(name="d0", operator="DequantizeLinear", inputs=("x.q",), outputs=("x.d",)),
        Step(name="mix", operator="MatMul", inputs=("x.d",), outputs=("a",)),
        Step(name="q1", operator="QuantizeLinear", inputs=("a",), outputs=("a.q",)),
        Step(name="d1", operator="DequantizeLinear", inputs=("a.q",), outputs=("a.d",)),
    )
    given, made = onnx_trace.joined(steps, {"x.d", "a.d"})
    assert (given.name, given.operator) == ("q0 to d0", "QuantizeLinear+DequantizeLinear")
    assert made == Step(name="mix", operator="MatMul", inputs=("x.d",), outputs=("a.d",))


def test_unknown_values_after_a_step() -> None:
    _, last = onnx_trace.joined(STEPS, {"a", "y"})
    assert onnx_trace.behind(STEPS, last, {"a", "y"}) == ("b", "c", "i")
    assert onnx_trace.behind(STEPS, STEPS[0], {"a"}) == ()


def test_results_have_the_reference_s_names() -> None:
    kept = onnx_trace.AllValues(path=Path("model.onnx"), steps=STEPS, names=("y", "a"), results=("y", "i"))
    values: dict[str, np.ndarray[Any, Any]] = {"y": np.ones(2), "a": np.ones(2)}
    made = onnx_trace.traced(kept, values=values, expected={**values, "b": np.ones(2)}, outputs=("logits", None))
    assert made.results == {"logits": "y"}
    assert [step.name for step in made.steps] == ["fold", "norm to pick"]
    assert made.against == "the same graph on ONNX Runtime's CPU provider, without optimizations"


def test_values_that_take_too_much_memory_are_refused_before_they_are_computed() -> None:
    mebibyte = (1024, 1024)
    onnx_trace.check_size({"a": ("tensor(float)", (255, *mebibyte)), "i": ("tensor(bool)", mebibyte), "?": ("tensor(float)", ("n", 2**40))})
    with pytest.raises(TraceError, match=r"^the 2 values of the graph take 1026 MiB, more than the limit of 1024$"):
        onnx_trace.check_size({"a": ("tensor(double)", (128, *mebibyte)), "h": ("tensor(float16)", mebibyte)})
