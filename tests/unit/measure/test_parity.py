from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

from hwmatrix.measure.parity import Comparison, compare, parity_of
from hwmatrix.records import Parity

GENERATOR = np.random.default_rng(3)
LOGITS = GENERATOR.normal(size=(2, 5, 11)).astype(np.float32)


def one(actual: Any, expected: Any, name: str = "hidden") -> Parity:
    worst = compare({name: np.asarray(actual)}, {name: np.asarray(expected)}).worst
    assert worst is not None
    return worst


def test_identical() -> None:
    assert one(LOGITS, LOGITS, "logits") == Parity(relative_error=0.0, max_error=0.0, cosine=1.0, top1=1.0)


def test_scaled() -> None:
    parity = one(LOGITS * np.float32(2), LOGITS, "logits")
    assert parity.relative_error == pytest.approx(1.0)
    assert parity.cosine == pytest.approx(1.0)
    assert parity.top1 == 1.0
    assert parity.max_error == pytest.approx(float(np.abs(LOGITS).max()))


def test_the_opposite() -> None:
    parity = one(-LOGITS, LOGITS)
    assert parity.cosine == pytest.approx(-1.0)
    assert parity.relative_error == pytest.approx(2.0)


def test_against_the_definition() -> None:
    parity = one([3.0, 4.0], [3.0, 0.0])
    assert (parity.relative_error, parity.max_error, parity.top1) == (4 / 3, 4.0, None)
    assert parity.cosine == pytest.approx(0.6)


def test_top1_counts_positions() -> None:
    expected = np.eye(4, dtype=np.float32)
    actual = expected.copy()
    actual[0] = actual[0][::-1]
    assert one(actual, expected, "logits_per_image").top1 == 0.75
    assert one(actual, expected, "embeds").top1 is None
    assert one([0.1, 0.9, 0.3], [0.0, 1.0, 0.0], "logits").top1 == 1.0  # for a single position
    assert one([0.9, 0.1, 0.3], [0.0, 1.0, 0.0], "logits").top1 == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_listed_and_not_compared(bad: float) -> None:
    broken = LOGITS.copy()
    broken[0, 0, 0] = bad
    comparison = compare({"logits": broken, "ids": np.array([1])}, {"logits": LOGITS, "ids": np.array([1])})
    assert comparison.not_finite == ("logits",)
    assert comparison.outputs[0].parity is None
    assert comparison.worst == Parity(relative_error=0.0, max_error=0.0, cosine=1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reference_that_is_not_finite_gives_no_parity(bad: float) -> None:
    """NaN is neither above nor below a tolerance, so it must never be compared with one."""
    comparison = compare({"x": np.ones(3)}, {"x": np.array([1.0, bad, 1.0])})
    assert comparison.worst is None
    assert comparison.not_finite == ("x (the reference)",)


def test_huge_values_do_not_overflow_into_a_pass() -> None:
    assert one([1e200, 0.0], [-1e200, 0.0]).relative_error == pytest.approx(2.0)
    assert one([1e200, 0.0], [-1e200, 0.0]).cosine == pytest.approx(-1.0)
    assert one([1e-200, 0.0], [-1e-200, 0.0]).relative_error == pytest.approx(2.0)


def test_the_largest_numbers_stay_within_the_range_of_a_result() -> None:
    largest = sys.float_info.max
    assert one([largest, 0.0], [-largest, 0.0]) == Parity(relative_error=2.0, max_error=largest, cosine=-1.0)
    assert one([largest, 1.0], [largest, 1.0]) == Parity(relative_error=0.0, max_error=0.0, cosine=1.0)


def test_missing_extra_and_reshaped() -> None:
    comparison = compare(
        {"a": np.ones((2, 3)), "b": np.ones(3), "new": np.zeros(1)},
        {"a": np.ones((3, 2)), "b": np.ones(3), "z": np.ones(1), "c": np.ones(1)},
    )
    assert comparison.missing == ("c", "z")
    assert comparison.reshaped == ("a [2, 3] instead of [3, 2]",)
    assert [(output.name, output.parity is None) for output in comparison.outputs] == [("a", True), ("b", False), ("new", True)]


def test_no_common_outputs() -> None:
    assert compare({}, {"a": np.ones(1)}) == Comparison(outputs=(), worst=None, missing=("a",))


def test_a_reference_of_zeros() -> None:
    assert one([0.0, 0.0], [0.0, 0.0]) == Parity(relative_error=0.0, max_error=0.0, cosine=1.0)
    assert one([3.0, 4.0], [0.0, 0.0]) == Parity(relative_error=5.0, max_error=4.0, cosine=0.0)


def test_integers_and_booleans() -> None:
    assert one(np.array([1, 2, 2**40]), np.array([1, 2, 2**40])).relative_error == 0.0
    assert one(np.array([1, 3]), np.array([1, 2])).max_error == 1.0
    assert one(np.array([True, False]), np.array([True, True])).max_error == 1.0


def test_unsigned_integers_do_not_wrap() -> None:
    assert one(np.array([0], dtype=np.uint8), np.array([1], dtype=np.uint8)).max_error == 1.0


def test_scalars_and_empty_outputs() -> None:
    assert one(2.0, 2.0, "logits").top1 is None
    assert one(np.zeros((0, 4)), np.zeros((0, 4)), "logits") == Parity(relative_error=0.0, max_error=0.0, cosine=1.0)


def test_the_worst_of_all_outputs() -> None:
    comparison = compare({"a": np.array([1.0, 1.1]), "b": np.array([5.0, 0.0])}, {"a": np.array([1.0, 1.0]), "b": np.array([5.0, 1.0])})
    a, b = (output.parity for output in comparison.outputs)
    assert a is not None
    assert b is not None
    assert comparison.worst == Parity(relative_error=b.relative_error, max_error=1.0, cosine=min(a.cosine, b.cosine))


def test_dtypes_and_shapes_are_recorded() -> None:
    (output,) = compare({"logits": LOGITS}, {"logits": LOGITS}).outputs
    assert (output.shape, output.dtype) == ((2, 5, 11), "float32")


def test_the_cosine_stays_between_minus_1_and_1() -> None:
    for _ in range(200):
        array = GENERATOR.normal(size=7)
        assert -1.0 <= parity_of(array, array * 3, logits=False).cosine <= 1.0
        assert -1.0 <= parity_of(array, array * -3, logits=False).cosine <= 1.0
