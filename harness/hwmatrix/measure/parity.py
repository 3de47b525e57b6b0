"""Compares a target's outputs with the reference outputs, matched by name."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import TYPE_CHECKING, Final

import numpy as np

from hwmatrix.records import OutputRecord, Parity

if TYPE_CHECKING:
    from collections.abc import Mapping

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
_LOGITS: Final = "logits"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """All outputs, the worst errors among them, and the outputs that cannot be compared."""

    outputs: tuple[OutputRecord, ...]
    worst: Parity | None
    missing: tuple[str, ...] = ()
    reshaped: tuple[str, ...] = ()
    not_finite: tuple[str, ...] = ()


def compare(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> Comparison:
    """Compare by name. An output that the reference does not have is recorded without a parity.

    ``worst`` has the largest errors and the smallest cosine over all comparable outputs; None if there are none.
    """
    records: list[OutputRecord] = []
    reshaped: list[str] = []
    not_finite: list[str] = []
    for name, array in actual.items():
        reference = expected.get(name)
        parity = None
        if not _all_finite(array):
            not_finite.append(name)
        elif reference is not None and not _all_finite(reference):
            not_finite.append(f"{name} (the reference)")  # a difference from NaN never exceeds a tolerance
        elif reference is not None and reference.shape != array.shape:
            reshaped.append(f"{name} {list(array.shape)} instead of {list(reference.shape)}")
        elif reference is not None:
            parity = parity_of(array, reference, logits=_LOGITS in name)
        records.append(OutputRecord(name=name, shape=tuple(array.shape), dtype=str(array.dtype), parity=parity))
    return Comparison(
        outputs=tuple(records),
        worst=_worst([record.parity for record in records if record.parity is not None]),
        missing=tuple(sorted(set(expected) - set(actual))),
        reshaped=tuple(reshaped),
        not_finite=tuple(not_finite),
    )


def parity_of(actual: Array, expected: Array, *, logits: bool) -> Parity:
    """Relative L2 error |a-e|/|e|, largest |a-e|, cosine, and for logits the share of positions with the same top class.

    Computed in float64. For an all-zero reference, the relative error is |a| itself, and the cosine is 1 if both are zero, else 0.
    Errors beyond float64 are clipped to its largest number, because results hold only finite numbers.
    """
    a = actual.astype(np.float64).ravel()
    e = expected.astype(np.float64).ravel()
    scale = _power_of_two(max(np.abs(a).max(initial=0.0), np.abs(e).max(initial=0.0)))
    a, e = a / scale, e / scale
    difference = a - e
    norm_a, norm_e = float(np.linalg.norm(a)), float(np.linalg.norm(e))
    distance = float(np.linalg.norm(difference))
    cosine = float(a @ e) / (norm_a * norm_e) if norm_a and norm_e else float(norm_a == norm_e)
    top1 = None
    if logits and actual.ndim > 0 and actual.size:
        top1 = float(np.mean(actual.argmax(axis=-1) == expected.argmax(axis=-1)))
    return Parity(
        relative_error=min(distance / norm_e if norm_e else distance * scale, sys.float_info.max),
        max_error=min(float(np.abs(difference).max(initial=0.0)) * scale, sys.float_info.max),
        cosine=min(1.0, max(-1.0, cosine)),
        top1=top1,
    )


def _power_of_two(peak: float) -> float:
    """A power of two that scales the largest value to about 1 without rounding, so that squares neither overflow nor underflow."""
    return math.ldexp(1.0, min(math.frexp(peak)[1], sys.float_info.max_exp - 1))


def _all_finite(array: Array) -> bool:
    return not np.issubdtype(array.dtype, np.inexact) or bool(np.isfinite(array).all())


def _worst(parities: list[Parity]) -> Parity | None:
    if not parities:
        return None
    tops = [parity.top1 for parity in parities if parity.top1 is not None]
    return Parity(
        relative_error=max(parity.relative_error for parity in parities),
        max_error=max(parity.max_error for parity in parities),
        cosine=min(parity.cosine for parity in parities),
        top1=min(tops) if tops else None,
    )
