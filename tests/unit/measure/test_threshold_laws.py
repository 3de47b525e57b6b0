"""Laws of the verdict's limits: whatever the numbers are, the parts that use a limit agree on it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmatrix.measure import paired, verdict
from hwmatrix.measure.divergence import locate
from hwmatrix.measure.parity import compare
from hwmatrix.measure.verdict import Allowance, Judgement, Twin, judge
from hwmatrix.records import Dtype, NoiseFloor, Origin, Placement, Status, Tolerance
from hwmatrix.records.traces import Step, Trace

ONES = np.ones(64)
ON_TARGET = Placement(on_target=1.0, detail="all on the target")
ERRORS = st.floats(1e-9, 0.9)
FLOORS = st.floats(1e-9, 0.3)
TOLERANCES = st.builds(
    lambda error, excess, more: Tolerance(
        relative_error=error, reason="a law", excess=excess, bound=None if excess is None else excess * more
    ),
    st.floats(1e-5, 0.5),
    st.none() | st.floats(1, 200),
    st.floats(1, 4),
)
SIMULATED = st.sampled_from([Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.A16W8, Dtype.A8W8])
ROUNDED = st.sampled_from([Dtype.INT8, Dtype.INT4, Dtype.INT4_FLOAT16, Dtype.INT8_DYNAMIC, Dtype.A8W8])


def off(error: float) -> Any:
    """Outputs that are this far from those of the reference."""
    return {"y": ONES * (1 + error)}


def apart(error: float) -> Any:
    return compare(off(error), {"y": ONES})


def beside_reference(error: float, dtype: Dtype, tolerance: Tolerance, floor: float | None, **more: Any) -> Judgement:
    floors = NoiseFloor(outputs=None if floor is None else {"y": floor})
    return judge(apart(error), ON_TARGET, Allowance(dtype=dtype, tolerance=tolerance, floor=floors), **more)


def beside_twin(own: float, loss: float, dtype: Dtype, tolerance: Tolerance, floor: float | None) -> Judgement:
    twin = Twin(apart=apart(own), loss=apart(loss), floor=None if floor is None else {"y": floor})
    return judge(apart(own + loss), ON_TARGET, Allowance(dtype=dtype, tolerance=tolerance), twin=twin)


@given(error=ERRORS, dtype=SIMULATED, tolerance=TOLERANCES, floor=st.none() | FLOORS)
def test_a_mismatch_exceeds_what_was_allowed_and_a_pass_does_not(
    error: float, dtype: Dtype, tolerance: Tolerance, floor: float | None
) -> None:
    judged = beside_reference(error, dtype, tolerance, floor)
    measured = apart(error).worst.relative_error
    assert (measured > judged.allowed) is (judged.status is Status.MISMATCH)
    assert (judged.failing == ("y",)) is (judged.status is Status.MISMATCH)


@given(own=ERRORS, loss=ERRORS, dtype=ROUNDED, tolerance=TOLERANCES, floor=st.none() | FLOORS)
def test_the_deciding_comparison_exceeds_what_was_allowed(
    own: float, loss: float, dtype: Dtype, tolerance: Tolerance, floor: float | None
) -> None:
    judged = beside_twin(own, loss, dtype, tolerance, floor)
    measured = apart(own if judged.by_twin else own + loss).worst.relative_error
    assert (measured > judged.allowed) is (judged.status is Status.MISMATCH)


@given(error=st.floats(1e-7, 0.5), dtype=SIMULATED, tolerance=TOLERANCES, floor=st.none() | FLOORS)
def test_the_search_never_says_that_nothing_differs_where_the_verdict_says_that_it_does(
    error: float, dtype: Dtype, tolerance: Tolerance, floor: float | None
) -> None:
    judged = beside_reference(error, dtype, tolerance, floor)
    if judged.status is not Status.MISMATCH:
        return
    steps = (Step(name="only", operator="MatMul", inputs=("x",), outputs=("y",)),)
    trace = Trace(
        steps=steps, values={"x": ONES, **off(error)}, expected={"x": ONES, "y": ONES}, results={"y": "y"}, against="another runtime"
    )
    found = locate(trace, {"y": ONES}, judged.allowed, same_graph=judged.by_twin)
    assert (found.origin, found.at) == (Origin.STEP, "only")
    assert found.relative_error is not None
    assert found.relative_error > judged.allowed


@given(error=ERRORS, dtype=SIMULATED, tolerance=TOLERANCES, floor=FLOORS)
def test_an_unknown_floor_is_never_stricter(error: float, dtype: Dtype, tolerance: Tolerance, floor: float) -> None:
    if beside_reference(error, dtype, tolerance, floor).status is Status.PASS:
        assert beside_reference(error, dtype, tolerance, None).status is Status.PASS


@given(own=ERRORS, loss=ERRORS, dtype=ROUNDED, tolerance=TOLERANCES, floor=FLOORS)
def test_an_unknown_floor_is_never_stricter_beside_a_twin(
    own: float, loss: float, dtype: Dtype, tolerance: Tolerance, floor: float
) -> None:
    known, unknown = (beside_twin(own, loss, dtype, tolerance, each) for each in (floor, None))
    if known.status is Status.PASS:
        assert unknown.status is Status.PASS
    if known.error_type == "precision_loss":
        assert unknown.error_type in {None, "precision_loss"} or apart(own).worst.relative_error > tolerance.relative_error


@given(own=ERRORS, loss=ERRORS, more=st.floats(1, 3), dtype=ROUNDED, tolerance=TOLERANCES, floor=st.none() | FLOORS)
def test_a_target_that_comes_nearer_to_both_is_never_judged_worse(  # noqa: PLR0917 - what a verdict is made from
    own: float, loss: float, more: float, dtype: Dtype, tolerance: Tolerance, floor: float | None
) -> None:
    if beside_twin(own, loss, dtype, tolerance, floor).status is Status.PASS:
        assert beside_twin(own / more, loss, dtype, tolerance, floor).status is Status.PASS


@dataclasses.dataclass(frozen=True)
class Task:
    """A task's result."""

    lost: int
    gained: int
    answered: int
    value: float = 0.5
    reference: float | None = 0.5
    agreement: float = 1.0
    metric: str = "accuracy"


@given(count=st.integers(0, 40))
def test_few_examples_never_show_that_a_target_does_as_well(count: int) -> None:
    assert paired.as_well(lost=0, gained=0, count=count) is None


@given(count=st.integers(0, 300), lost=st.integers(0, 300), gained=st.integers(0, 300))
def test_more_losses_are_never_better_and_more_gains_never_worse(count: int, lost: int, gained: int) -> None:
    order = {False: 0, None: 1, True: 2}
    lost, gained = min(lost, count), min(gained, max(count - lost, 0))
    found = order[paired.as_well(lost=lost, gained=gained, count=count)]
    if lost:
        assert found <= order[paired.as_well(lost=lost - 1, gained=gained, count=count)]
    if gained:
        assert found >= order[paired.as_well(lost=lost, gained=gained - 1, count=count)]


@pytest.mark.parametrize(
    ("lost", "gained", "count", "as_well"),
    [
        (0, 0, 64, True),
        (1, 0, 64, None),
        (4, 0, 64, None),
        (5, 0, 64, False),
        (8, 8, 64, None),
        (4, 0, 8, None),
        (8, 0, 8, False),
        (410, 5, 4096, False),
        (8, 0, 4096, True),
    ],
)
def test_as_well_as_the_reference_is_shown_by_pairs(lost: int, gained: int, count: int, *, as_well: bool | None) -> None:
    assert paired.as_well(lost=lost, gained=gained, count=count) is as_well


@given(error=ERRORS, dtype=SIMULATED, tolerance=TOLERANCES, floor=st.none() | FLOORS, count=st.integers(0, 58))
def test_a_task_that_cannot_tell_changes_no_status(
    error: float, dtype: Dtype, tolerance: Tolerance, floor: float | None, count: int
) -> None:
    few = Task(lost=0, gained=0, answered=count)
    assert (
        beside_reference(error, dtype, tolerance, floor, task=few).error_type == beside_reference(error, dtype, tolerance, floor).error_type
    )


@pytest.mark.parametrize("dtype", [Dtype.INT8, Dtype.INT4, Dtype.INT8_DYNAMIC, Dtype.A8W8])
def test_faults_of_kernels_are_found_and_clean_ones_are_not(dtype: Dtype) -> None:
    """A product by rounded weights with a wrong scale, zero point or weight, beside its twin in float32; and in another order of sums."""
    random = np.random.default_rng(0)
    tolerance = Tolerance(relative_error=0.5, reason="a test", excess=100)
    for _ in range(8):
        plain, given = random.normal(size=(32, 48)).astype(np.float32), random.normal(size=(16, 32)).astype(np.float32)
        step = np.float32(np.abs(plain).max() / (7 if dtype is Dtype.INT4 else 127))
        integers = np.round(plain / step)
        if dtype.quantizes_activations:
            size = np.float32(np.abs(given).max() / 127)
            given = np.round(given / size) * size
        weights = integers * step
        expected, in_float = {"y": (given @ plain).astype(np.float64)}, {"y": given @ weights}
        floor = {"y": max(float(compare(in_float, {"y": given.astype(np.float64) @ weights}).worst.relative_error), 2.0**-24)}  # type: ignore[union-attr]
        reordered = given[:, ::-1] @ np.ascontiguousarray(weights[::-1])
        wrong = {
            "scale": given @ (weights * np.where(np.arange(48) == 5, 1.25, 1.0).astype(np.float32)),
            "zero point": given @ ((integers - 1) * step),
            "weight": given @ np.roll(weights, 1, axis=0),
        }

        def status(outputs: Any, in_float: Any = in_float, expected: Any = expected, floor: Any = floor) -> Judgement:
            twin = verdict.twin({"y": outputs}, in_float, expected, floor)
            return judge(compare({"y": outputs}, expected), ON_TARGET, Allowance(dtype=dtype, tolerance=tolerance), twin=twin)

        assert status(reordered).status is Status.PASS
        assert [status(outputs).error_type for outputs in wrong.values()] == ["mismatch"] * 3
        assert all(math.isfinite(status(outputs).allowed) for outputs in wrong.values())
