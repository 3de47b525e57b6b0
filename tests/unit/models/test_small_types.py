from __future__ import annotations

import math

import numpy as np
import pytest

from hwmatrix.models.small_types import numbers

ML_TYPES = {
    "bfloat16": "bfloat16",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
}


def values(element: str, raw: list[int], count: int | None = None) -> list[float]:
    return [float(value) for value in numbers(element, np.array(raw, dtype=np.uint8), len(raw) if count is None else count)]


@pytest.mark.parametrize(
    ("element", "raw", "expected"),
    [
        ("float8e4m3fn", [0x00, 0x01, 0x38, 0x7E, 0xFE], [0.0, 2.0**-9, 1.0, 448.0, -448.0]),
        ("float8e4m3fnuz", [0x01, 0x40, 0x7F], [2.0**-10, 1.0, 240.0]),
        ("float8e5m2", [0x3C, 0x7B, 0x7C, 0xFC], [1.0, 57344.0, math.inf, -math.inf]),
        ("float8e5m2fnuz", [0x40, 0x7F], [1.0, 57344.0]),
        ("float8e8m0", [0, 127, 254], [2.0**-127, 1.0, 2.0**127]),
        ("bfloat16", [0x80, 0x3F, 0x20, 0xC1], [1.0, -10.0]),
    ],
)
def test_the_standard_s_examples(element: str, raw: list[int], expected: list[float]) -> None:
    assert values(element, raw) == expected


@pytest.mark.parametrize(
    ("element", "pattern"), [("float8e4m3fn", 0x7F), ("float8e4m3fnuz", 0x80), ("float8e5m2", 0x7D), ("float8e8m0", 0xFF)]
)
def test_codes_that_are_not_numbers(element: str, pattern: int) -> None:
    assert math.isnan(values(element, [pattern])[0])


@pytest.mark.parametrize(
    ("element", "raw", "count", "expected"),
    [
        ("uint4", [0xF1, 0x02], 3, [1, 15, 2]),
        ("int4", [0xF1, 0x08], 3, [1, -1, -8]),
        ("uint2", [0b11100100], 4, [0, 1, 2, 3]),
        ("int2", [0b11100100], 4, [0, 1, -2, -1]),
        ("float4e2m1", [0x71, 0x0F], 3, [0.5, 6.0, -6.0]),
    ],
)
def test_the_first_value_of_a_byte_is_in_its_lowest_bits(element: str, raw: list[int], count: int, expected: list[float]) -> None:
    assert values(element, raw, count) == expected


@pytest.mark.parametrize(("element", "name"), ML_TYPES.items())
def test_every_bit_pattern_matches_another_library(element: str, name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    width = 2 if element == "bfloat16" else 1
    patterns = np.arange(1 << 8 * width, dtype=np.uint16 if width == 2 else np.uint8)
    with np.errstate(invalid="ignore"):
        expected = patterns.view(getattr(ml_dtypes, name)).astype(np.float32)
    np.testing.assert_array_equal(numbers(element, patterns.view(np.uint8), patterns.size), expected)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="no such type: complex64"):
        numbers("complex64", np.zeros(8, dtype=np.uint8), 1)
