"""The verdict on outputs: by the noise floor, by the task, and by the largest error if there is no floor."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from hwmatrix.measure import verdict
from hwmatrix.measure.parity import compare
from hwmatrix.measure.verdict import LEAST_FLOOR, Allowance, Judgement, judge
from hwmatrix.records import Dtype, NoiseFloor, Placement, Status, Tolerance

TOLERANCE = Tolerance(relative_error=0.1, reason="a test", excess=16, bound=100)
OF_KERNELS = Tolerance(relative_error=0.1, reason="a test", excess=16)
FLOOR = NoiseFloor(outputs={"logits": 1e-3})
ONES = np.full(100, 1.0)
ON_TARGET = Placement(on_target=1.0, detail="all on cpu")


@dataclasses.dataclass(frozen=True)
class Task:
    """The result of a task with 64 examples, on which the reference is always right."""

    value: float = 1.0
    reference: float | None = 1.0
    high: float = 1.0
    agreement: float = 1.0
    metric: str = "exact_match"


def allowance(floor: NoiseFloor | None) -> Allowance:
    return Allowance(dtype=Dtype.FLOAT16, tolerance=TOLERANCE, floor=floor)


def judged(
    error: float,
    *,
    dtype: Dtype = Dtype.FLOAT16,
    tolerance: Tolerance = TOLERANCE,
    floor: NoiseFloor | None = FLOOR,
    task: Task | None = None,
    held_out: float | None = None,
) -> Judgement:
    """The verdict on outputs with this relative L2 error, and perhaps another one on held-out inputs."""
    comparison, held_out_comparison = (
        compare({"logits": ONES * (1 + each)}, {"logits": ONES}) if each is not None else None for each in (error, held_out)
    )
    assert comparison is not None
    return judge(comparison, ON_TARGET, Allowance(dtype=dtype, tolerance=tolerance, floor=floor), task, held_out_comparison)


@pytest.mark.parametrize(
    ("error", "task", "expected"),
    [
        (0.015, None, (Status.PASS, None, False)),
        (0.015, Task(), (Status.PASS, None, False)),
        (0.017, None, (Status.MISMATCH, "mismatch", None)),
        (0.017, Task(), (Status.PASS, None, True)),
        (0.017, Task(value=0.9, high=0.95), (Status.MISMATCH, "mismatch", None)),
        (0.017, Task(agreement=0.98), (Status.MISMATCH, "mismatch", None)),
        (0.099, Task(), (Status.PASS, None, True)),
        (0.101, Task(), (Status.MISMATCH, "mismatch", None)),
        (0.015, Task(value=0.9, high=0.95), (Status.MISMATCH, "precision_loss", None)),
        (0.015, Task(value=0.9, reference=0.9, high=0.95), (Status.PASS, None, False)),
        (0.015, Task(value=0.995, agreement=0.995, reference=None, high=0.999), (Status.PASS, None, False)),
        (0.017, Task(value=0.995, agreement=0.995, reference=None, high=0.999), (Status.PASS, None, True)),
        (0.015, Task(value=0.98, agreement=0.98, reference=None, high=0.999), (Status.MISMATCH, "precision_loss", None)),
        (0.017, Task(value=0.98, agreement=0.98, reference=None, high=0.999), (Status.MISMATCH, "mismatch", None)),
    ],
)
def test_the_excess_decides_or_the_task(error: float, task: Task | None, expected: tuple[Status, str | None, bool | None]) -> None:
    found = judged(error, task=task)
    assert (found.status, found.error_type, found.approximate) == expected
    assert found.loss == 1e-3
    assert found.excess == pytest.approx(error / 1e-3)


@pytest.mark.parametrize("task", [Task(), Task(value=0.9, high=0.95), None])
def test_a_wrong_kernel_that_only_held_out_inputs_show_is_a_mismatch(task: Task | None) -> None:
    assert judged(0.001, task=task, held_out=0.099).error_type != "mismatch"
    wrong = judged(0.001, task=task, held_out=0.101)
    assert (wrong.status, wrong.error_type, wrong.excess) == (Status.MISMATCH, "mismatch", pytest.approx(1.0))
    assert wrong.message == (
        "relative L2 error 0.101 of logits on held-out inputs is 101 times the noise floor of float16 (0.001); at most 100 times is allowed"
        " (largest difference 0.101, cosine 1.000000)"
    )


def test_without_a_floor_the_largest_error_also_limits_held_out_inputs() -> None:
    assert judged(0.099, floor=None, held_out=0.099).status is Status.PASS
    wrong = judged(0.0, floor=None, held_out=0.101)
    assert (wrong.status, wrong.error_type) == (Status.MISMATCH, "mismatch")
    assert wrong.message is not None
    assert "exceeds 0.1 on held-out inputs" in wrong.message


@pytest.mark.parametrize(("overflows", "error_type"), [(False, "non_finite_output"), (True, "precision_loss")])
def test_outputs_on_held_out_inputs_must_be_finite(overflows: bool, error_type: str) -> None:  # noqa: FBT001
    wrong = judged(0.0, floor=dataclasses.replace(FLOOR, overflows=overflows), held_out=math.nan)
    assert wrong.error_type == error_type
    assert wrong.message is not None
    assert "NaN or infinity in logits on held-out inputs" in wrong.message


def test_without_a_task_an_error_above_the_limit_is_a_precision_loss() -> None:
    floor = NoiseFloor(outputs={"logits": 0.2})
    assert judged(0.3, floor=floor).error_type == "precision_loss"
    assert judged(0.3, floor=floor, task=Task()).status is Status.PASS
    assert judged(0.05, floor=floor).status is Status.PASS


@pytest.mark.parametrize("floor", [None, NoiseFloor(outputs=None, reason="no kernel"), NoiseFloor(outputs={})])
def test_without_a_floor_the_largest_error_decides(floor: NoiseFloor | None) -> None:
    assert judged(0.09, floor=floor) == Judgement(status=Status.PASS)
    found = judged(0.11, floor=floor, task=Task())
    assert (found.status, found.error_type, found.excess) == (Status.MISMATCH, "mismatch", None)


def test_without_excess_in_matrix_yaml_the_largest_error_decides() -> None:
    plain = Tolerance(relative_error=0.1, reason="a test")
    assert judged(0.09, tolerance=plain) == Judgement(status=Status.PASS)
    assert judged(0.11, tolerance=plain).error_type == "mismatch"


def test_without_a_bound_the_task_does_not_help() -> None:
    assert judged(0.017, tolerance=dataclasses.replace(TOLERANCE, bound=None), task=Task()).error_type == "mismatch"


@pytest.mark.parametrize("dtype", LEAST_FLOOR)
def test_a_very_small_floor_counts_as_half_a_unit_in_the_last_place(dtype: Dtype) -> None:
    floor = NoiseFloor(outputs={"logits": 0.0})
    assert judged(15 * LEAST_FLOOR[dtype], dtype=dtype, floor=floor).excess == pytest.approx(15, rel=1e-3)


def test_each_output_has_its_own_floor() -> None:
    """The output that exceeds its floor most decides, even if another has a larger error."""
    expected = {"noisy": np.ones(4), "quiet": np.ones(4)}
    actual = {"noisy": np.full(4, 1.1), "quiet": np.full(4, 1.02)}
    found = judge(compare(actual, expected), ON_TARGET, allowance(NoiseFloor(outputs={"noisy": 0.1, "quiet": 1e-3})))
    assert found.error_type == "mismatch"
    assert found.excess == pytest.approx(20)
    assert found.loss == 0.1
    assert "0.02 of quiet is 20 times the noise floor of float16 (0.001); 16 times is allowed" in (found.message or "")


@pytest.mark.parametrize(("overflows", "error_type"), [(True, "precision_loss"), (False, "non_finite_output")])
def test_outputs_that_are_not_finite_on_the_cpu_either_are_a_precision_loss(overflows: bool, error_type: str) -> None:  # noqa: FBT001
    comparison = compare({"logits": np.array([math.inf])}, {"logits": np.array([1.0])})
    found = judge(comparison, ON_TARGET, allowance(NoiseFloor(outputs=None, overflows=overflows)))
    assert (found.status, found.error_type) == (Status.MISMATCH, error_type)


def plain(actual: dict[str, list[float]], expected: dict[str, list[float]], placement: Placement = ON_TARGET) -> tuple[Status, str | None]:
    """The verdict with a largest allowed error of 0.5."""
    arrays = [{name: np.asarray(value, dtype=np.float32) for name, value in each.items()} for each in (actual, expected)]
    tolerance = Tolerance(relative_error=0.5, reason="a test")
    found = judge(compare(*arrays), placement, Allowance(dtype=Dtype.FLOAT32, tolerance=tolerance))
    return found.status, found.error_type


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ({"a": [1.0, 1.0]}, (Status.PASS, None)),
        ({"a": [1.5, 1.5]}, (Status.PASS, None)),
        ({"a": [1.6, 1.6]}, (Status.MISMATCH, "mismatch")),
        ({"a": [math.nan, 1.0]}, (Status.MISMATCH, "non_finite_output")),
        ({"b": [1.0, 1.0]}, (Status.MISMATCH, "missing_output")),
        ({"a": [1.0, 1.0, 1.0]}, (Status.MISMATCH, "missing_output")),
        ({"a": [1.0, 1.0], "more": [9.0]}, (Status.PASS, None)),
    ],
)
def test_numbers_are_judged_against_the_tolerance(actual: dict[str, list[float]], expected: tuple[Status, str | None]) -> None:
    assert plain(actual, {"a": [1.0, 1.0]}) == expected


def test_a_reference_without_outputs_proves_nothing() -> None:
    assert plain({"a": [1.0]}, {}) == (Status.MISMATCH, "missing_output")
    assert plain({"a": [1.0]}, {"a": [math.nan]}) == (Status.MISMATCH, "non_finite_output")


def test_right_numbers_from_another_device_are_a_fallback_and_partly_so_a_pass() -> None:
    same = {"a": [1.0]}
    assert plain(same, same, Placement(on_target=0.0, detail="all on cpu")) == (Status.FALLBACK, "fallback")
    assert plain(same, same, Placement(on_target=0.3, detail="two layers")) == (Status.PASS, None)
    assert plain({"a": [9.0]}, same, Placement(on_target=0.0, detail="all on cpu")) == (Status.FALLBACK, "fallback")


EXPECTED = {
    "logits": np.random.default_rng(0).normal(size=(1, 16, 32)).astype(np.float32),
    "zeros": np.zeros((1, 4), np.float32),
    "ids": np.arange(4),
}


@pytest.mark.parametrize("floor", [None, NoiseFloor(outputs=None, reason="too large"), FLOOR, NoiseFloor(outputs={"logits": 1e-9})])
@pytest.mark.parametrize(
    "tolerance", [TOLERANCE, Tolerance(relative_error=1e-4, reason="a test"), Tolerance(relative_error=0.2, reason="-")]
)
def test_a_third_of_the_allowed_error_passes_and_three_times_does_not(floor: NoiseFloor | None, tolerance: Tolerance) -> None:
    given = Allowance(dtype=Dtype.FLOAT16, tolerance=tolerance, floor=floor)
    assert verdict.misjudged(EXPECTED, ON_TARGET, given) is None


@pytest.mark.parametrize(
    ("always", "reason"),
    [
        (Status.PASS, "outputs with 3 times the allowed error are judged pass, not mismatch"),
        (Status.MISMATCH, "outputs with 0.33 times the allowed error are judged mismatch, not pass"),
    ],
)
def test_a_judge_that_says_the_same_of_everything_is_found_out(monkeypatch: pytest.MonkeyPatch, always: Status, reason: str) -> None:
    monkeypatch.setattr(verdict, "judge", lambda *_: Judgement(status=always))
    assert verdict.misjudged(EXPECTED, ON_TARGET, allowance(FLOOR)) == reason


def test_a_comparison_that_sees_no_error_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "compare", lambda _actual, expected: compare(expected, expected))
    found = verdict.misjudged(EXPECTED, ON_TARGET, allowance(None))
    assert found == "outputs with 3 times the allowed error are judged pass, not mismatch"


def judged_beside(
    own: float,
    *,
    loss: float = 0.05,
    held_out: float | None = None,
    tipped: tuple[float, float] | None = None,
    floor: float | None = 1e-6,
    dtype: Dtype = Dtype.INT4,
    tolerance: Tolerance = OF_KERNELS,
) -> Judgement:
    """The verdict on a target that differs from its own rounded weights in float32, which differ from the reference by ``loss``."""

    def apart(error: float) -> Any:
        return compare({"logits": ONES * (1 + error)}, {"logits": ONES})

    rounded = verdict.Rounded(
        kernel=apart(own),
        loss=apart(loss),
        floor={} if floor is None else {"logits": floor},
        held_out=None if held_out is None else apart(held_out),
        tipped={} if tipped is None else {"logits": tipped[0]},
        tipped_held_out={} if tipped is None else {"logits": tipped[1]},
    )
    allowed = Allowance(dtype=dtype, tolerance=tolerance, floor=NoiseFloor(outputs=None))
    return judge(apart(loss + own), ON_TARGET, allowed, rounded=rounded)


def test_the_error_of_rounded_weights_is_the_loss_and_the_distance_from_them_the_excess() -> None:
    found = judged_beside(8e-6)
    assert found.status is Status.PASS
    assert found.loss == pytest.approx(0.05)
    assert found.excess == pytest.approx(8, rel=1e-3)


def test_a_kernel_that_differs_from_its_own_weights_is_wrong_although_rounding_costs_a_thousand_times_more() -> None:
    found = judged_beside(20e-6)
    assert found.error_type == "mismatch"
    assert "from its own rounded weights in float32 is 20 times the noise floor of float32 (1e-06); 16 times is allowed" in (
        found.message or ""
    )


def test_a_kernel_that_is_wrong_on_held_out_inputs_alone_is_wrong() -> None:
    assert judged_beside(1e-6, held_out=1e-6).status is Status.PASS
    assert judged_beside(1e-6, held_out=1e-3).error_type == "mismatch"


def test_a_mismatch_with_the_own_rounded_weights_tells_how_far_the_target_may_be_from_them() -> None:
    """Where it begins is looked for with that."""
    assert judged_beside(20e-6).allowed == pytest.approx(16e-6)
    assert judged_beside(1e-3, tipped=(4e-4, 0)).allowed == pytest.approx(8e-4)
    assert judged_beside(8e-6).allowed is None
    assert judged_beside(8e-6, loss=0.5).error_type == "precision_loss"
    assert judged_beside(8e-6, loss=0.5).allowed is None


def test_inputs_that_are_rounded_to_the_neighboring_step_make_no_kernel_wrong() -> None:
    """Weights that differ by a few roundings show how much that changes."""
    assert judged_beside(1e-6, held_out=1e-3, tipped=(0, 6e-4)).status is Status.PASS
    assert judged_beside(1e-6, held_out=1e-3, tipped=(0, 4e-4)).error_type == "mismatch"
    assert judged_beside(1e-3, tipped=(6e-4, 0)).status is Status.PASS
    assert judged_beside(1e-3, tipped=(6e-4, 0)).excess == pytest.approx(1000, rel=1e-3)
    assert judged_beside(1e-3, tipped=(4e-4, 0)).error_type == "mismatch"
    assert judged_beside(1e-3, held_out=1e-3, tipped=(0, 1e-3)).error_type == "mismatch", "other inputs explain nothing"


def test_a_mismatch_tells_what_nudged_weights_would_explain() -> None:
    here = judged_beside(1e-3, tipped=(4e-4, 0)).message or ""
    assert "; 16 times is allowed, or 2 times the 0.0004 by which nudged weights move the output (" in here
    there = judged_beside(1e-6, held_out=1e-3, tipped=(0, 3e-4)).message or ""
    assert "; at most 16 times is allowed, or 2 times the 0.0003 by which nudged weights move the output (" in there
    assert "nudged" not in (judged_beside(1e-3).message or ""), "none were drawn"


def test_the_distance_from_the_own_rounded_weights_is_that_of_the_output_with_the_largest_excess() -> None:
    given = {"loud": ONES, "quiet": ONES}
    rounded = verdict.Rounded(
        kernel=compare({"loud": ONES * 1.01, "quiet": ONES * 1.002}, given),
        loss=compare(given, given),
        floor={"loud": 1e-3, "quiet": 1e-5},
        held_out=compare({"quiet": ONES * 1.004}, {"quiet": ONES}),
    )
    allowed = allowance(None)
    found = verdict.kernels(rounded, dataclasses.replace(allowed, dtype=Dtype.A8W8))
    assert (found.kernel_error, found.quality_kernel_error) == (pytest.approx(2e-3, rel=1e-3), pytest.approx(4e-3, rel=1e-3))
    assert (found.nudged_error, found.quality_nudged_error) == (None, None)
    nudged = dataclasses.replace(rounded, tipped={"loud": 0.5, "quiet": 1.5e-3}, tipped_held_out={"loud": 0.7, "quiet": 2.5e-3})
    found = verdict.kernels(nudged, dataclasses.replace(allowed, dtype=Dtype.A8W8))
    assert (found.nudged_error, found.quality_nudged_error) == (1.5e-3, 2.5e-3)
    assert verdict.kernels(dataclasses.replace(nudged, held_out=None), allowed).quality_kernel_error is None


@pytest.mark.parametrize(
    ("own", "held_out", "tipped", "excess", "enough"),
    [
        (8e-6, None, (0, 0), 16, True),  # the noise floor explains it
        (1e-3, None, (0, 0), 16, False),
        (1e-3, None, (6e-4, 0), 16, True),  # nudged weights do
        (1e-3, None, (4e-4, 0), 16, False),
        (1e-6, 1e-3, (0, 0), 16, False),  # on held-out inputs
        (1e-6, 1e-3, (0, 6e-4), 16, True),
        (1e-3, None, (0, 0), None, True),  # the fixed limit decides
    ],
)
def test_weights_are_nudged_again_while_that_may_explain_more(
    own: float, held_out: float | None, tipped: tuple[float, float], excess: float | None, *, enough: bool
) -> None:
    def apart(error: float) -> Any:
        return compare({"logits": ONES * (1 + error)}, {"logits": ONES})

    rounded = verdict.Rounded(
        kernel=apart(own),
        loss=apart(0.05),
        floor={"logits": 1e-6},
        held_out=None if held_out is None else apart(held_out),
        tipped={"logits": tipped[0]},
        tipped_held_out={"logits": tipped[1]},
    )
    tolerance = Tolerance(relative_error=0.1, reason="a test", excess=excess, bound=excess)
    assert verdict.explained(rounded, Allowance(dtype=Dtype.INT8_DYNAMIC, tolerance=tolerance)) is enough


def test_kernels_that_multiply_in_float16_are_compared_with_its_noise_floor() -> None:
    of_halves = Tolerance(relative_error=0.1, reason="a test", excess=8, bound=16)
    found = judged_beside(7e-3, floor=1e-3, dtype=Dtype.INT4_FLOAT16, tolerance=of_halves)
    assert (found.status, found.excess) == (Status.PASS, pytest.approx(7, rel=1e-3))
    found = judged_beside(9e-3, floor=1e-3, dtype=Dtype.INT4_FLOAT16, tolerance=of_halves)
    assert "is 9 times the noise floor of float16 (0.001); 8 times is allowed" in (found.message or "")
    assert judged_beside(3e-3, floor=None, dtype=Dtype.INT4_FLOAT16, tolerance=of_halves).status is Status.PASS
    assert judged_beside(3e-3, floor=None, dtype=Dtype.INT4, tolerance=of_halves).error_type == "mismatch"
    assert judged_beside(1e-3, floor=1e-3, held_out=17e-3, dtype=Dtype.INT4_FLOAT16, tolerance=of_halves).error_type == "mismatch"


def test_a_precision_whose_floor_others_simulate_has_a_limit_of_its_own_for_kernels() -> None:
    """The floor of a8w8 is far larger than that of float32, of which its kernels' error is a multiple."""
    simulated = Tolerance(relative_error=0.1, reason="a test", excess=4, bound=8, kernel_excess=100)
    for own, error_type in ((90e-6, None), (110e-6, "mismatch")):
        found = judged_beside(own, dtype=Dtype.A8W8, tolerance=simulated)
        assert found.error_type == error_type
        assert found.excess == pytest.approx(own / 1e-6, rel=1e-3)
    assert judged_beside(1e-6, held_out=110e-6, dtype=Dtype.A8W8, tolerance=simulated).error_type == "mismatch"
    found = judged_beside(1e-6, loss=0.2, dtype=Dtype.A8W8, tolerance=simulated)
    assert "the rounded graph has an error of 0.2 in float32, too, so the kernels are not wrong" in (found.message or "")


def test_weights_that_are_rounded_too_much_are_a_precision_loss() -> None:
    assert judged_beside(1e-6, loss=0.2).error_type == "precision_loss"


@pytest.mark.parametrize(("own", "loss", "right"), [(1e-6, 0.0, True), (1e-6, 0.2, True), (20e-6, 0.0, False), (20e-6, 0.2, False)])
def test_a_time_says_something_if_the_kernels_are_right(own: float, loss: float, *, right: bool) -> None:
    assert judged_beside(own, loss=loss).computes_right is right


def test_without_a_floor_the_kernel_may_differ_by_multiples_of_one_rounding() -> None:
    assert judged_beside(15 * LEAST_FLOOR[Dtype.INT4], floor=None).status is Status.PASS
    assert judged_beside(18 * LEAST_FLOOR[Dtype.INT4], floor=None).error_type == "mismatch"


@pytest.mark.parametrize(
    ("before", "error_type"),
    [
        (1e-6, "precision_loss"),
        (90e-6, "precision_loss"),  # within the bound: without a task, no more can be told
        (110e-6, "mismatch"),
        (0.3, "mismatch"),
        (math.nan, "non_finite_output"),
    ],
)
def test_a_precision_is_not_to_blame_for_a_graph_that_was_wrong_before_it_was_rounded(before: float, error_type: str) -> None:
    judged = judged_beside(1e-6, loss=0.2)
    assert judged.error_type == "precision_loss"
    wide = Tolerance(relative_error=0.1, reason="a test", excess=16, bound=100)
    allowed = Allowance(dtype=Dtype.FLOAT32, tolerance=wide, floor=NoiseFloor(outputs={"logits": 1e-6}))
    found = verdict.judge_before_rounding(judged, compare({"logits": ONES * (1 + before)}, {"logits": ONES}), allowed)
    assert (found.error_type, found.loss, found.excess) == (error_type, judged.loss, judged.excess)
    told = "the graph is wrong before its weights are rounded: " in (found.message or "")
    assert told is (error_type != "precision_loss")
    assert found.computes_right is not told


@pytest.mark.parametrize(
    ("steps", "error_type"), [(0.5, "precision_loss"), (1.1, "precision_loss"), (1.2, "mismatch"), (math.inf, "mismatch")]
)
def test_a_precision_is_not_to_blame_for_a_weight_that_is_rounded_wrong(steps: float, error_type: str) -> None:
    judged = judged_beside(1e-6, loss=0.2)
    found = verdict.judge_rounding(judged, "layer.weight", steps)
    assert (found.error_type, found.loss, found.excess) == (error_type, judged.loss, judged.excess)
    told = found.message == f"a weight is rounded wrong: layer.weight is {steps:.3g} of its steps away from the one that it was made from"
    assert told is (error_type == "mismatch")
    assert found.computes_right is not told
