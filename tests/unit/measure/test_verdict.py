"""The verdict on outputs: by the noise floor, by the task, and by the largest error if there is no floor."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from hwmatrix.errors import TwinError
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

    lost: int = 0
    gained: int = 0
    answered: int = 64
    reference: float | None = 1.0
    agreement: float = 1.0
    metric: str = "exact_match"

    @property
    def value(self) -> float:
        """The share that is right."""
        return 1 - self.lost / max(self.answered, 1)


WORSE = Task(lost=6)


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
        (0.017, WORSE, (Status.MISMATCH, "mismatch", None)),
        (0.017, Task(agreement=0.98), (Status.MISMATCH, "mismatch", None)),
        (0.017, Task(answered=8), (Status.MISMATCH, "mismatch", None)),  # too few to tell
        (0.099, Task(), (Status.PASS, None, True)),
        (0.101, Task(), (Status.MISMATCH, "mismatch", None)),
        (0.015, WORSE, (Status.MISMATCH, "precision_loss", None)),
        (0.015, Task(lost=6, gained=6), (Status.PASS, None, False)),
        (0.015, Task(reference=None), (Status.PASS, None, False)),
        (0.017, Task(reference=None), (Status.PASS, None, True)),
        (0.015, Task(lost=6, reference=None), (Status.MISMATCH, "precision_loss", None)),
    ],
)
def test_the_excess_decides_or_the_task(error: float, task: Task | None, expected: tuple[Status, str | None, bool | None]) -> None:
    found = judged(error, task=task)
    assert (found.status, found.error_type, found.approximate) == expected
    assert found.loss == 1e-3
    assert found.excess == pytest.approx(error / 1e-3)


@pytest.mark.parametrize("task", [Task(), WORSE, None])
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
    assert judged(0.09, floor=floor) == Judgement(status=Status.PASS, allowed=0.1)
    found = judged(0.11, floor=floor, task=Task())
    assert (found.status, found.error_type, found.excess) == (Status.MISMATCH, "mismatch", None)


def test_without_excess_in_matrix_yaml_the_largest_error_decides() -> None:
    plain = Tolerance(relative_error=0.1, reason="a test")
    assert judged(0.09, tolerance=plain) == Judgement(status=Status.PASS, allowed=0.1)
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
    monkeypatch.setattr(verdict, "judge", lambda *_: Judgement(status=always, allowed=0.1))
    assert verdict.misjudged(EXPECTED, ON_TARGET, allowance(FLOOR)) == reason


def test_a_comparison_that_sees_no_error_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "compare", lambda _actual, expected: compare(expected, expected))
    found = verdict.misjudged(EXPECTED, ON_TARGET, allowance(None))
    assert found == "outputs with 3 times the allowed error are judged pass, not mismatch"


def apart(error: float) -> Any:
    return compare({"logits": ONES * (1 + error)}, {"logits": ONES})


def judged_beside(
    own: float,
    *,
    loss: float = 0.05,
    held_out: float | None = None,
    floor: float | None = 1e-6,
    dtype: Dtype = Dtype.INT4,
    tolerance: Tolerance = OF_KERNELS,
    task: Task | None = None,
) -> Judgement:
    """The verdict on a target that differs from its own rounded weights in float32, which differ from the reference by ``loss``."""
    floors = None if floor is None else {"logits": floor}
    twins = [None if error is None else verdict.Twin(apart=apart(error), loss=apart(loss), floor=floors) for error in (own, held_out)]
    given = Allowance(dtype=dtype, tolerance=tolerance, floor=NoiseFloor(outputs=None))
    there = None if held_out is None else apart(loss + held_out)
    return judge(apart(loss + own), ON_TARGET, given, task, there, twin=twins[0], held_out_twin=twins[1])


def test_the_error_of_rounded_weights_is_the_loss_and_the_distance_from_them_the_excess() -> None:
    found = judged_beside(8e-6)
    assert found.status is Status.PASS
    assert (found.loss, found.kernel_error) == (pytest.approx(0.05), pytest.approx(8e-6, rel=1e-3))
    assert found.excess == pytest.approx(8, rel=1e-3)


def test_a_kernel_that_differs_from_its_own_weights_is_wrong_although_rounding_costs_a_thousand_times_more() -> None:
    found = judged_beside(20e-6)
    assert found.error_type == "mismatch"
    assert "from its own rounded weights in float32 is 20 times the noise floor of float32 (1e-06); 16 times is allowed" in (
        found.message or ""
    )


def test_a_kernel_that_is_wrong_on_held_out_inputs_alone_is_wrong() -> None:
    assert judged_beside(1e-6, held_out=1e-6).status is Status.PASS
    found = judged_beside(1e-6, held_out=1e-3)
    assert (found.error_type, found.quality_kernel_error) == ("mismatch", pytest.approx(1e-3, rel=1e-3))


@pytest.mark.parametrize("dtype", [Dtype.INT8_DYNAMIC, Dtype.A8W8])
def test_where_activations_are_rounded_too_a_kernel_may_differ_by_what_rounding_costs(dtype: Dtype) -> None:
    """Sums in another order round some of them to the neighboring step, whatever the noise floor of float32 is."""
    for tolerance in (OF_KERNELS, Tolerance(relative_error=0.2, reason="a test")):
        found = judged_beside(0.07, dtype=dtype, tolerance=dataclasses.replace(tolerance, relative_error=0.2))
        assert (found.status, found.excess) == (Status.PASS, pytest.approx(1.4))
        wrong = judged_beside(0.08, dtype=dtype, tolerance=tolerance)
        assert (wrong.error_type, wrong.allowed) == ("mismatch", pytest.approx(0.075))
        assert "is 1.6 times what rounding costs (0.05); 1.5 times is allowed" in (wrong.message or "")
        assert judged_beside(1e-6, held_out=0.08, dtype=dtype, tolerance=tolerance).error_type == "mismatch"


def test_kernels_that_multiply_in_float16_are_compared_with_its_noise_floor() -> None:
    of_halves = Tolerance(relative_error=0.1, reason="a test", excess=8, bound=16)
    found = judged_beside(7e-3, floor=1e-3, dtype=Dtype.INT4_FLOAT16, tolerance=of_halves)
    assert (found.status, found.excess) == (Status.PASS, pytest.approx(7, rel=1e-3))
    found = judged_beside(9e-3, floor=1e-3, dtype=Dtype.INT4_FLOAT16, tolerance=of_halves)
    assert "is 9 times the noise floor of float16 (0.001); 8 times is allowed" in (found.message or "")
    assert judged_beside(1e-3, floor=1e-3, held_out=17e-3, dtype=Dtype.INT4_FLOAT16, tolerance=of_halves).error_type == "mismatch"


def test_weights_that_are_rounded_too_much_are_a_precision_loss() -> None:
    found = judged_beside(1e-6, loss=0.2)
    assert (found.error_type, found.failing) == ("precision_loss", ("logits",))
    assert "the rounded graph has an error of 0.2 in float32, too, so the kernels are not wrong" in (found.message or "")


@pytest.mark.parametrize(("own", "loss", "right"), [(1e-6, 0.0, True), (1e-6, 0.2, True), (20e-6, 0.0, False), (20e-6, 0.2, False)])
def test_a_time_says_something_if_the_kernels_are_right(own: float, loss: float, *, right: bool) -> None:
    assert judged_beside(own, loss=loss).computes_right is right


@pytest.mark.parametrize(
    ("own", "loss", "error_type"),
    [(1e-5, 0.05, None), (0.02, 0.05, None), (1e-5, 0.2, "precision_loss"), (0.2, 0.2, "mismatch")],
)
def test_without_a_noise_floor_the_largest_error_decides_in_both_comparisons(own: float, loss: float, error_type: str | None) -> None:
    found = judged_beside(own, loss=loss, floor=None)
    assert (found.error_type, found.excess, found.allowed) == (error_type, None, 0.1)


def test_outputs_of_a_twin_that_cannot_be_compared_are_an_error_of_ours() -> None:
    with pytest.raises(TwinError, match="the rounded weights in float32: NaN or infinity in logits"):
        verdict.twin({"logits": ONES}, {"logits": ONES * math.nan}, {"logits": ONES}, None)
