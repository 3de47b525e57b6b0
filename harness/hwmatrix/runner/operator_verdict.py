"""Whether the outputs of an operator test match the standard: types, shapes, values."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.models.operator_tests import Tensor

if TYPE_CHECKING:
    from hwmatrix.models.operator_tests import OperatorTest, Value

_BFLOAT16_STEP: Final = 2.0**-7
"""The step from 1 to the next number in bfloat16, its relative precision."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """``problem`` says what differs; None: nothing does. ``max_error`` is the largest absolute error, None without numbers."""

    problem: str | None
    max_error: float | None


def judge(test: OperatorTest, outputs: tuple[Value, ...], *, relative_error: float | None) -> Verdict:
    """Compare with the standard's outputs within the test's own tolerances.

    ``relative_error`` is for targets that compute in less than float32: the largest relative L2 error allowed for a floating-point
    output. It replaces the test's tolerances.
    """
    if len(outputs) != len(test.outputs):
        return Verdict(problem=f"{len(outputs)} outputs instead of {len(test.outputs)}", max_error=None)
    errors: list[float] = []
    for (name, wanted), got in zip(test.outputs, outputs, strict=True):
        problem = _differs(wanted, got, test, relative_error, errors)
        if problem is not None:
            return Verdict(problem=f"output {name}: {problem}", max_error=max(errors, default=None))
    return Verdict(problem=None, max_error=max(errors, default=None))


def _differs(wanted: Value, got: Value, test: OperatorTest, relative_error: float | None, errors: list[float]) -> str | None:
    if isinstance(wanted, tuple):
        if not isinstance(got, tuple) or len(got) != len(wanted):
            return f"{_kind(got)} instead of {_kind(wanted)}"
        found = (_differs(one, other, test, relative_error, errors) for one, other in zip(wanted, got, strict=True))
        return next((problem for problem in found if problem is not None), None)
    if wanted is None or not isinstance(got, Tensor):
        return None if wanted is got else f"{_kind(got)} instead of {_kind(wanted)}"
    if (got.element, got.shape) != (wanted.element, wanted.shape):
        return f"{_kind(got)} instead of {_kind(wanted)}"
    if test.random:
        return None
    return _numbers_differ(wanted, got, test, relative_error, errors)


def _kind(value: Value) -> str:
    if value is None:
        return "nothing"
    return f"{value.element}{list(value.shape)}" if isinstance(value, Tensor) else f"a sequence of {len(value)}"


def _numbers_differ(wanted: Tensor, got: Tensor, test: OperatorTest, relative_error: float | None, errors: list[float]) -> str | None:
    if wanted.element == "string":
        return None if wanted.array.tolist() == got.array.tolist() else "other strings"
    expected, actual = _numbers(wanted), _numbers(got)
    error = _max_error(expected, actual)
    if error is not None:
        errors.append(error)
    if relative_error is not None and wanted.element.startswith(("float", "bfloat")):
        return _exceeds(expected, actual, relative_error)
    exact = not wanted.native and wanted.element != "bfloat16"  # so few values exist that no tolerance makes sense
    rtol = 0.0 if exact else max(test.rtol, _BFLOAT16_STEP) if wanted.element == "bfloat16" else test.rtol
    close = np.isclose(actual, expected, rtol=rtol, atol=0.0 if exact else test.atol, equal_nan=expected.dtype.kind == "f")
    return None if close.all() else f"{np.count_nonzero(~close)} of {close.size} values differ, by {error:.3g} at most"


def _numbers(tensor: Tensor) -> np.ndarray[Any, Any]:
    if tensor.native:
        return tensor.array
    import onnx

    kind = onnx.TensorProto.DataType.Value(tensor.element.upper())
    stored = onnx.TensorProto(data_type=kind, dims=tensor.shape, raw_data=tensor.array.tobytes())
    return onnx.numpy_helper.to_array(stored).astype(np.float32)


def _max_error(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any]) -> float | None:
    """The largest absolute error where both are finite; infinite where only one is."""
    one, other = expected.astype(np.float64), actual.astype(np.float64)
    if not one.size:
        return None
    alike = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        apart = np.where(alike, 0.0, np.abs(one - other))
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max())


def _exceeds(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any], relative_error: float) -> str | None:
    """Compare by relative L2 error; values that are not finite must be equal in both."""
    one, other = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True) or not np.isfinite(other[finite]).all():
        return "non-finite values differ"
    distance, size = np.linalg.norm(other[finite] - one[finite]), np.linalg.norm(one[finite])
    error = float(distance / size) if size else float(distance)
    return None if error <= relative_error else f"relative error {error:.3g} exceeds {relative_error:g}"
