"""Where a wrong result begins: small graphs with one, several or no wrong steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hwmatrix.measure.divergence import locate
from hwmatrix.records import Divergence, Origin
from hwmatrix.records.traces import Step, Trace

RANDOM = np.random.default_rng(5)
RIGHT = {name: RANDOM.normal(size=(4, 8)) for name in ("x", "a", "b", "c", "y", "z")}
STEPS = (
    Step(name="first", operator="MatMul", inputs=("x",), outputs=("a",)),
    Step(name="second", operator="Softmax", inputs=("a",), outputs=("b",)),
    Step(name="aside", operator="Exp", inputs=("x",), outputs=("c",)),
    Step(name="third", operator="Add", inputs=("b", "c"), outputs=("y",)),
    Step(name="last", operator="Identity", inputs=("y",), outputs=("z",)),
)


def off(name: str, error: float) -> np.ndarray[Any, Any]:
    """A value with this relative L2 error."""
    noise = RANDOM.normal(size=RIGHT[name].shape)
    return RIGHT[name] + noise * (error * np.linalg.norm(RIGHT[name]) / np.linalg.norm(noise))


def trace(**errors: float | None) -> Trace:
    """A run whose values have these errors; None: the value is missing."""
    values = {name: off(name, errors.get(name) or 0.0) for name in RIGHT if errors.get(name, 0.0) is not None}
    return Trace(steps=STEPS, values=values, expected=RIGHT, results={"logits": "z"}, against="the same graph elsewhere")


def begins(found: Trace, tolerance: float = 1e-2, **expected: Any) -> Divergence:
    return locate(found, {"logits": RIGHT["z"], **expected}, tolerance)


def test_the_first_wrong_step_is_named_with_both_errors() -> None:
    found = begins(trace(a=1e-6, b=0.5, y=0.3, z=0.3))
    assert (found.origin, found.at, found.operator, found.detail) == (Origin.STEP, "second", "Softmax", None)
    assert found.relative_error == pytest.approx(0.5)
    assert found.inputs_error == pytest.approx(1e-6)
    assert found.against == "the same graph elsewhere"


def test_of_two_wrong_steps_the_first_in_order_is_named() -> None:
    assert begins(trace(b=0.5, c=0.5, y=0.5, z=0.5)).at == "second"


def test_a_wrong_value_that_leads_to_no_wrong_output_is_not_named() -> None:
    steps = (Step(name="unused", operator="Sub", inputs=("x",), outputs=("u",)), *STEPS)
    run = trace(c=0.5, y=0.3, z=0.3)
    run = Trace(
        steps=steps,
        values={**run.values, "u": np.ones(3)},
        expected={**run.expected, "u": np.zeros(3)},
        results=run.results,
        against="elsewhere",
    )
    assert begins(run).at == "aside"


def test_a_wrong_value_that_is_corrected_later_is_not_named() -> None:
    assert begins(trace(a=0.5, b=1e-6, c=0.5, y=0.3, z=0.3)).at == "aside"


def test_a_missing_value_is_skipped() -> None:
    found = begins(trace(a=0.5, b=None, y=0.3, z=0.3))
    assert (found.at, found.operator) == ("first", "MatMul")
    found = begins(trace(a=1e-6, b=None, y=0.3, z=0.3))
    assert found.at == "third"  # the steps between the last right and the first wrong value
    assert found.inputs_error == pytest.approx(1e-6)


def test_gradually_growing_differences_are_gradual() -> None:
    found = begins(trace(a=2e-3, b=5e-3, c=2e-3, y=1.2e-2, z=1.2e-2))
    assert (found.origin, found.at) == (Origin.GRADUAL, "third")
    assert found.relative_error == pytest.approx(1.2e-2)
    assert found.inputs_error == pytest.approx(5e-3)


def test_a_step_that_stands_out_below_the_tolerance_is_preferred_to_the_one_that_exceeds_it() -> None:
    found = begins(trace(a=1e-6, b=7e-3, y=1.2e-2, z=1.2e-2))
    assert (found.origin, found.at) == (Origin.STEP, "second")


def test_a_graph_that_is_wrong_on_the_reference_runtime_too_is_not_the_target_s_fault() -> None:
    found = locate(trace(z=0.5), {"logits": RIGHT["z"] * 2}, 1e-2)
    assert found.origin is Origin.GRAPH
    assert found.at is None
    assert found.relative_error == pytest.approx(0.5)
    assert found.detail == "logits differs from the reference by 0.5 there too"


def test_a_result_that_is_right_with_all_values_kept_is_fused() -> None:
    found = begins(trace(a=1e-6, z=1e-4))
    assert found.origin is Origin.FUSED
    assert found.relative_error == pytest.approx(1e-4)


def test_the_large_numbers_of_masks_count_as_equal() -> None:
    run = trace(y=0.3, z=0.3, c=0.3)
    mask = {"a": np.full((4, 8), -3.4e38)}
    for other in (-np.inf, -65504.0, -3.4e38):
        made = Trace(
            steps=STEPS,
            values={**run.values, "a": np.full((4, 8), other)},
            expected={**run.expected, **mask},
            results=run.results,
            against="elsewhere",
        )
        assert begins(made).at == "aside"


@pytest.mark.parametrize("never", [-3.4e38, -100.0])
def test_scores_beside_a_mask_are_compared_without_it(never: float) -> None:
    """The mask's numbers are a thousand times larger than the error."""
    masked = np.tril(np.ones((4, 8), dtype=bool))
    scores, wrong = RIGHT["a"] + np.where(masked, never, 0.0), off("a", 0.5) + np.where(masked, never, 0.0)
    run = trace(b=0.5, y=0.3, z=0.3)
    made = Trace(
        steps=STEPS, values={**run.values, "a": wrong}, expected={**run.expected, "a": scores}, results=run.results, against="elsewhere"
    )
    found = begins(made)
    assert (found.origin, found.at, found.operator) == (Origin.STEP, "first", "MatMul")
    elsewhere = np.where(np.triu(np.ones((4, 8), dtype=bool)), never, RIGHT["a"])
    made = Trace(
        steps=STEPS, values={**run.values, "a": elsewhere}, expected={**run.expected, "a": scores}, results=run.results, against="elsewhere"
    )
    assert begins(made).at == "first"


def test_a_difference_caused_by_graph_and_target_together() -> None:
    """In quantized graphs each error is within the tolerance, but their sum exceeds it."""
    run = trace(a=1e-6, b=2e-3, y=2e-3, z=2.5e-3)
    found = begins(run, 1e-2, logits=run.values["z"] + (RIGHT["z"] - run.values["z"]) * 3)
    assert (found.origin, found.at) == (Origin.FUSED, None)  # the sum 0.0075 is within the tolerance
    reference = run.values["z"] + (RIGHT["z"] - run.values["z"]) * 4.5
    found = begins(run, 1e-2, logits=reference)
    assert (found.origin, found.at) == (Origin.GRADUAL, None)
    assert found.detail == "logits differs by 0.0025 from the output of that graph, and by 0.0112 from the reference"
    run = trace(a=1e-6, b=5e-3, y=5e-3, z=5e-3)
    found = begins(run, 1e-2, logits=run.values["z"] + (RIGHT["z"] - run.values["z"]) * 2.5)
    assert (found.origin, found.at) == (Origin.STEP, "second")


@pytest.mark.parametrize(
    ("value", "detail"),
    [(np.full((4, 8), math.nan), "NaN in 32 of 32 values"), (np.zeros((4, 2)), "[4, 2] instead of [4, 8]")],
)
def test_values_that_cannot_be_compared_are_wrong_with_the_reason(value: np.ndarray[Any, Any], detail: str) -> None:
    run = trace(y=0.3, z=0.3)
    found = begins(Trace(steps=STEPS, values={**run.values, "b": value}, expected=RIGHT, results=run.results, against="elsewhere"))
    assert (found.origin, found.at, found.detail) == (Origin.STEP, "second", detail)
    assert found.relative_error is None
    assert found.inputs_error == pytest.approx(0.0)


def test_selected_indices_are_compared_as_numbers() -> None:
    chosen, other = np.array([3, 1]), np.array([1, 3])
    steps = (
        Step(name="top", operator="TopK", inputs=("x",), outputs=("v", "i")),
        Step(name="take", operator="Gather", inputs=("i",), outputs=("z",)),
    )
    values = {"x": RIGHT["x"], "v": RIGHT["a"], "i": other, "z": off("z", 0.6)}
    expected = {"x": RIGHT["x"], "v": RIGHT["a"], "i": chosen, "z": RIGHT["z"]}
    found = begins(Trace(steps=steps, values=values, expected=expected, results={"logits": "z"}, against="elsewhere"))
    assert (found.origin, found.operator) == (Origin.STEP, "TopK")


def test_layers_whose_results_include_those_of_their_children() -> None:
    """A layer depends on its own inputs and on its children's results, and ends after them."""
    steps = (
        Step(name="block.norm", operator="Norm", inputs=("norm.in",), outputs=("norm.out",)),
        Step(name="block.mix", operator="Mix", inputs=("mix.in",), outputs=("mix.out",)),
        Step(name="block", operator="Block", inputs=("block.in", "norm.out", "mix.out"), outputs=("z",)),
    )
    wrong = {"mix.out", "z"}
    names = ("norm.in", "norm.out", "mix.in", "mix.out", "block.in", "z")
    values = {name: RIGHT["z"] * (2 if name in wrong else 1) for name in names}
    run = Trace(steps=steps, values=values, expected=dict.fromkeys(names, RIGHT["z"]), results={"logits": "z"}, against="elsewhere")
    assert begins(run).at == "block.mix"
    only = {**values, "mix.out": RIGHT["z"]}
    assert begins(Trace(steps=steps, values=only, expected=run.expected, results=run.results, against="elsewhere")).at == "block"


def test_outputs_missing_in_the_trace_are_not_judged() -> None:
    found = begins(Trace(steps=(), values={}, expected={}, results={"logits": "z"}, against="elsewhere"))
    assert (found.origin, found.detail) == (Origin.UNKNOWN, "no output could be compared")


def test_a_wrong_output_that_no_step_produces() -> None:
    found = begins(Trace(steps=(), values={"z": off("z", 0.5)}, expected=RIGHT, results={"logits": "z"}, against="elsewhere"))
    assert (found.origin, found.detail) == (Origin.UNKNOWN, "no step was found")
    assert found.relative_error == pytest.approx(0.5)


def test_a_graph_with_rounded_weights_is_compared_with_itself_alone() -> None:
    """It may be far from the model, for which another number is allowed."""
    model = {"logits": off("z", 0.4)}
    assert locate(trace(b=0.05, y=0.04, z=0.03), model, 0.2).origin is Origin.GRAPH
    assert locate(trace(b=0.05, y=0.04, z=0.03), {"logits": RIGHT["z"]}, 0.2).origin is Origin.FUSED
    found = locate(trace(a=1e-6, b=0.05, y=0.04, z=0.03), model, 1e-3, same_graph=True)
    assert (found.origin, found.at, found.operator) == (Origin.STEP, "second", "Softmax")
    assert locate(trace(z=1e-4), model, 1e-3, same_graph=True).origin is Origin.FUSED
