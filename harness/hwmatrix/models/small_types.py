"""The number types of ONNX that numpy lacks, read from their raw bytes: bfloat16, 8-bit and 4-bit floats, 4-bit and 2-bit integers.

Sources: the ONNX standard, "Float stored in 8 bits", "4 bit floating point types", "4 bit integer types"; IEEE 754 for the rest.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Float:
    """A floating-point type of at most 8 bits. ``nans`` and ``infinite`` are the bit patterns of NaN and infinity."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    nans: frozenset[int] = frozenset()
    infinite: frozenset[int] = frozenset()

    def value(self, bits: int) -> float:
        width = self.exponent_bits + self.mantissa_bits
        sign = -1.0 if bits >> width & 1 else 1.0
        if bits in self.nans:
            return math.nan
        if bits in self.infinite:
            return sign * math.inf
        exponent = bits >> self.mantissa_bits & (1 << self.exponent_bits) - 1
        fraction = (bits & (1 << self.mantissa_bits) - 1) / (1 << self.mantissa_bits)
        if exponent == 0:
            return sign * math.ldexp(fraction, 1 - self.bias)
        return sign * math.ldexp(1 + fraction, exponent - self.bias)


_FLOATS: Final = {
    "float8e4m3fn": _Float(exponent_bits=4, mantissa_bits=3, bias=7, nans=frozenset({0x7F, 0xFF})),
    "float8e4m3fnuz": _Float(exponent_bits=4, mantissa_bits=3, bias=8, nans=frozenset({0x80})),
    "float8e5m2": _Float(
        exponent_bits=5,
        mantissa_bits=2,
        bias=15,
        nans=frozenset({0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}),
        infinite=frozenset({0x7C, 0xFC}),
    ),
    "float8e5m2fnuz": _Float(exponent_bits=5, mantissa_bits=2, bias=16, nans=frozenset({0x80})),
    "float4e2m1": _Float(exponent_bits=2, mantissa_bits=1, bias=1),
}
_BITS: Final = {"float4e2m1": 4, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
"""Types with several elements per byte, the first in the lowest bits."""


def numbers(element: str, raw: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """The values of ``count`` elements as a one-dimensional array of float32 or int8.

    Raises:
        ValueError: there is no such type.
    """
    if element == "bfloat16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if element == "float8e8m0":  # powers of two only
        exponents = raw.astype(np.float64) - 127
        return np.where(raw == 0xFF, np.nan, np.exp2(exponents)).astype(np.float32)  # noqa: PLR2004 - its only NaN
    bits = _unpacked(raw, _BITS[element])[:count] if element in _BITS else raw
    if element in _FLOATS:
        table = np.array([_FLOATS[element].value(pattern) for pattern in range(1 << _BITS.get(element, 8))], dtype=np.float32)
        values: np.ndarray[Any, Any] = table[bits]
        return values
    if element.startswith("uint"):
        return bits.astype(np.int8)
    if element.startswith("int"):
        half = 1 << _BITS[element] - 1
        return ((bits.astype(np.int16) ^ half) - half).astype(np.int8)
    raise ValueError(f"no such type: {element}")


def _unpacked(raw: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (raw[:, None] >> shifts & (1 << bits) - 1).reshape(-1)
