from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from factory_operators import operator_test, packed, tensor

from hwmatrix.runner.operator_verdict import judge

if TYPE_CHECKING:
    from hwmatrix.models.operator_tests import Value

INF = float("inf")
NAN = float("nan")


def problem(wanted: Value, got: Value, *, relative_error: float | None = None) -> str | None:
    return judge(operator_test("test", wanted), (got,), relative_error=relative_error).problem


@pytest.mark.parametrize(
    "value",
    [
        tensor([1.0, NAN, INF, -INF]),
        tensor([], "float16"),
        tensor(3, "int64"),
        tensor([True, False], "bool"),
        tensor(["a", "b"], "string"),
        packed("float8e5m2", (2,), 0x7C, 0x3C),
        packed("int4", (3,), 0xF1, 0x08),
        (tensor([1.0]), tensor([[2]], "int8")),
        (),
        None,
    ],
    ids=str,
)
def test_equal_values_have_no_problem(value: Value) -> None:
    assert problem(value, value) is None


@pytest.mark.parametrize(
    ("wanted", "got", "told"),
    [
        (tensor([1.0, 2.0]), tensor([1.0, 2.1]), "1 of 2 values differ, by 0.1 at most"),
        (tensor([1.0, 2.0]), tensor([1.0, NAN]), "1 of 2 values differ, by inf at most"),
        (tensor([NAN]), tensor([1.0]), "1 of 1 values differ, by inf at most"),
        (tensor([INF]), tensor([3.4e38]), "1 of 1 values differ, by inf at most"),
        (tensor([1, 2], "int32"), tensor([1, 3], "int32"), "1 of 2 values differ, by 1 at most"),
        (tensor([1.0]), tensor([1.0], "float64"), "float64[1] instead of float32[1]"),
        (tensor([1.0]), tensor([[1.0]]), "float32[1, 1] instead of float32[1]"),
        (tensor([1.0]), None, "nothing instead of float32[1]"),
        (tensor([1.0]), (tensor([1.0]),), "a sequence of 1 instead of float32[1]"),
        ((tensor([1.0]),), (tensor([1.0]), tensor([1.0])), "a sequence of 2 instead of a sequence of 1"),
        (None, tensor([1.0]), "float32[1] instead of nothing"),
        (tensor(["a"], "string"), tensor(["b"], "string"), "other strings"),
        (packed("float8e4m3fn", (1,), 0x7E), packed("float8e4m3fn", (1,), 0x7D), "1 of 1 values differ, by 32 at most"),
        (packed("float8e8m0", (1,), 128), packed("float8e8m0", (1,), 127), "1 of 1 values differ, by 1 at most"),
        (packed("float4e2m1", (3,), 0x71, 0x0F), packed("float4e2m1", (3,), 0x71, 0x07), "1 of 3 values differ, by 12 at most"),
        (packed("int4", (3,), 0xF1, 0x08), packed("int4", (3,), 0xF1, 0x07), "1 of 3 values differ, by 15 at most"),
        (packed("uint4", (3,), 0xF1, 0x02), packed("uint4", (3,), 0x01, 0x02), "1 of 3 values differ, by 15 at most"),
        (packed("uint2", (4,), 0b11100100), packed("uint2", (4,), 0b00100100), "1 of 4 values differ, by 3 at most"),
    ],
)
def test_differences_are_described(wanted: Value, got: Value, told: str) -> None:
    assert problem(wanted, got) == f"output y0: {told}"


def test_another_number_of_outputs_is_a_difference() -> None:
    assert judge(operator_test(), (), relative_error=None).problem == "0 outputs instead of 1"


def test_nan_equals_nan_with_any_bits() -> None:
    assert problem(packed("float8e5m2", (1,), 0x7E), packed("float8e5m2", (1,), 0x7F)) is None


def test_the_largest_error_is_reported_even_for_a_pass() -> None:
    verdict = judge(operator_test("test", tensor([1.0, 100.0])), (tensor([1.0, 100.05]),), relative_error=None)
    assert verdict.problem is None
    assert verdict.max_error == pytest.approx(0.05, rel=1e-3)


def test_bfloat16_may_differ_by_one_step() -> None:
    one, next_, after = (packed("bfloat16", (1,), low, 0x3F) for low in (0x80, 0x81, 0x82))
    assert problem(one, next_) is None
    assert problem(one, after) == "output y0: 1 of 1 values differ, by 0.0156 at most"


def test_random_values_are_compared_by_type_and_shape() -> None:
    test = operator_test("test", tensor([1.0, 2.0]), random=True)
    assert judge(test, (tensor([5.0, 6.0]),), relative_error=None).problem is None
    assert judge(test, (tensor([5.0]),), relative_error=None).problem == "output y0: float32[1] instead of float32[2]"


def test_precisions_below_float32_are_judged_by_relative_error() -> None:
    wanted, near, far = tensor([100.0, 0.001]), tensor([101.0, 0.0]), tensor([110.0, 0.0])
    assert problem(wanted, near) is not None
    assert problem(wanted, near, relative_error=0.02) is None
    assert problem(wanted, far, relative_error=0.02) == "output y0: relative error 0.1 exceeds 0.02"
    assert problem(tensor([1.0, INF]), tensor([1.0, 65504.0]), relative_error=0.02) == "output y0: non-finite values differ"
    assert problem(tensor([1, 2], "int32"), tensor([1, 3], "int32"), relative_error=0.5) is not None  # integers must be exact


def test_zeros_are_compared_by_absolute_error() -> None:
    zeros = tensor(np.zeros(3, dtype=np.float32))
    assert problem(zeros, tensor(np.full(3, 0.001)), relative_error=0.02) is None
    assert problem(zeros, tensor(np.full(3, 0.1)), relative_error=0.02) is not None
