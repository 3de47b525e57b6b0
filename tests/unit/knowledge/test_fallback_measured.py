from __future__ import annotations

import pytest
from factory_advice import evidence, failed
from factory_plans import model_plan

from hwmatrix.knowledge.fallback import Likeness, measured_cost, measured_hardware
from hwmatrix.records import Execution, Isolation, Size, Status

LIKE = Likeness(model=model_plan(hub_id=None), size=Size.FULL, host="f00d", isolation=Isolation.CONTAINER)


def test_the_fastest_per_sample_comes_first() -> None:
    rows = [
        evidence("bert", "cpu", p50_ms=40.0),
        evidence("bert", "openvino", p50_ms=80.0, batch=8),
        evidence("bert", "cuda", p50_ms=20.0),
    ]
    assert measured_hardware(rows, LIKE) == ("openvino", "cuda", "cpu")


def test_the_newest_row_of_each_hardware_counts() -> None:
    rows = [evidence("bert", "cpu", p50_ms=50.0, run_id="new"), evidence("bert", "openvino"), evidence("bert", "cpu", p50_ms=1.0)]
    assert measured_hardware(rows, LIKE) == ("openvino", "cpu")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "gpt2"},
        {"size": Size.TINY},
        {"host": "another machine"},
        {"host": None},
        {"isolation": Isolation.NONE},
        {"execution": Execution.EMULATED},
        {"execution": Execution.SOFTWARE},
        {"status": Status.MISMATCH},
        {"p50_ms": None},
    ],
)
def test_measurements_with_other_settings_do_not_count(changes: dict[str, object]) -> None:
    row = evidence(**{"model": "bert", "hardware": "openvino", **changes})  # type: ignore[arg-type]
    assert measured_hardware([row], LIKE) == ()
    cost = measured_cost([row], LIKE, expected="openvino", batch=1, actual_ms=3.0, actual_batch=1)
    assert (cost.expected_ms, cost.actual_ms, cost.note) == (None, 3.0, "not measured on the expected hardware")


def test_recorded_failures_are_no_recommendation() -> None:
    assert measured_hardware([failed("bert", "openvino"), evidence("bert", "cpu")], LIKE) == ("cpu",)


def test_a_cost_is_per_sample_and_names_its_run() -> None:
    rows = [evidence("bert", "cuda", p50_ms=2.0), evidence("bert", "cuda", p50_ms=8.0, batch=8, run_id="run-8")]
    cost = measured_cost(rows, LIKE, expected="cuda", batch=8, actual_ms=20.0, actual_batch=4)
    assert (cost.expected_ms, cost.actual_ms, cost.factor) == (1.0, 5.0, 5.0)
    assert cost.note.endswith("expected: run run-8, batch 8")
    other_batch = measured_cost(rows, LIKE, expected="cuda", batch=3, actual_ms=20.0, actual_batch=1)
    assert (other_batch.expected_ms, other_batch.note.endswith("batch 1")) == (2.0, True)


def test_hardware_that_did_not_run_has_no_cost() -> None:
    cost = measured_cost([evidence("bert", "cuda")], LIKE, expected="cuda", batch=1, actual_ms=None, actual_batch=1)
    assert (cost.actual_ms, cost.factor) == (None, None)
    assert cost.note.startswith("not measured on the actual one")
