"""How much memory a cell needs: a formula whose coefficients were fitted to measured peaks (calibration.yaml).

    load = constant + stored x S + weights x W + copied x K + tied x T
    run  = constant + stored x S + weights x W + tied x T + activations x A + comparison x C

The peak is the larger of the two, all in MiB. S are the weights in the checkpoint, W the weights in the compute precision, K the sum of
both if the precisions differ (else 0), T the further uses of tied weights, A the peak of one forward pass, C the comparison of the outputs
with the reference. docs/requirements.md explains each. ``nox -s calibrate`` measures, fits (``tests/bench/memory_fit.py``) and writes
calibration.yaml.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
from typing import TYPE_CHECKING, Annotated, Final, Literal

import pydantic
from pydantic import Field

from hwmatrix.basics.plain_yaml import parsed
from hwmatrix.records import Backend, Dtype
from hwmatrix.records.strict import STRICT

if TYPE_CHECKING:
    from hwmatrix.models.sizes import ModelSize

_FILE: Final = "calibration.yaml"
_MIB: Final = 2**20
_RESULTS: Final = 2
"""Two sets of outputs in float32: the target's and the reference's."""
_DOUBLES: Final = 8
"""parity.py makes four float64 copies of the output that it compares, each twice the size of float32."""


Coefficient = Annotated[float, Field(ge=0)]
"""No coefficient is negative, since each is an amount of memory."""


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """The inputs of the formula for a model with its settings, in MiB."""

    stored: float
    weights: float
    tied: float
    activations: float
    comparison: float
    copied: float


MEASURES: Final = ("stored", "weights", "activations", "comparison")
"""The features with a calibrated range. ``copied`` and ``tied`` depend on the first two."""


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadCoefficients:
    """The phase until a model is ready to run: ``constant`` in MiB, the others without a unit."""

    constant: Coefficient
    stored: Coefficient
    weights: Coefficient
    copied: Coefficient
    tied: Coefficient


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCoefficients:
    """The phase in which it runs and its outputs are compared: ``constant`` in MiB, the others without a unit."""

    constant: Coefficient
    stored: Coefficient
    weights: Coefficient
    tied: Coefficient
    activations: Coefficient
    comparison: Coefficient


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Coefficients:
    """The formula of one backend."""

    load: LoadCoefficients
    run: RunCoefficients

    def peak(self, features: Features) -> float:
        """The expected peak in MiB."""
        return max(expected(self.load, features), expected(self.run, features))


def expected(phase: LoadCoefficients | RunCoefficients, features: Features) -> float:
    """The expected peak of one phase, in MiB."""
    values = dataclasses.asdict(phase)
    return float(values.pop("constant") + sum(coefficient * getattr(features, term) for term, coefficient in values.items()))


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Errors:
    """The relative error of estimates over some cells, |estimate - measured| / measured.

    ``within_25`` is the share of the cells within 25 %.
    """

    cells: int
    median: float
    p90: float
    within_25: float


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class BackendCalibration:
    """One backend: the coefficients, the cells that they were fitted to, and their errors.

    ``ranges`` are the smallest and the largest value of each feature among the fitted cells. ``in_sample`` are the errors on these cells.
    ``left_out`` are those on the same cells if each is estimated by a fit without its model. ``held_out`` are those on cells of other
    models, which no fit used (None if none was measured).
    """

    coefficients: Coefficients
    dtypes: tuple[Dtype, ...]
    models: tuple[str, ...]
    ranges: dict[str, tuple[float, float]]
    in_sample: Errors
    left_out: Errors
    held_out: Errors | None

    @property
    def margin(self) -> float:
        """The 90th percentile of the relative error on models that were not used for the fit."""
        return max(self.left_out.p90, self.held_out.p90 if self.held_out else 0.0)

    def outside(self, features: Features, dtype: Dtype) -> tuple[str, ...]:
        """Each feature of a model outside the calibrated ranges, in words; empty if there is none."""
        found = [] if dtype in self.dtypes else [f"{dtype.value} was not calibrated ({', '.join(self.dtypes)} were)"]
        for term, (low, high) in self.ranges.items():
            value = getattr(features, term)
            if not low <= value <= high:
                found.append(f"{term} of {value:,.0f} MiB {_distance(value, low, high)}")
        return tuple(found)


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """The whole of calibration.yaml: when and where the cells were measured (``evidence`` is their folder), and the backends."""

    version: Literal[1]
    date: str
    machine: str
    evidence: str
    backends: dict[Backend, BackendCalibration]


@functools.cache
def calibration() -> Calibration:
    """The packaged calibration."""
    text = (importlib.resources.files("hwmatrix.knowledge") / _FILE).read_text(encoding="utf-8")
    return pydantic.TypeAdapter(Calibration).validate_python(parsed(text))


def features_of(size: ModelSize, dtype: Dtype) -> Features:
    """The inputs of the formula for a model's size."""
    stored, weights = size.stored_bytes / _MIB, size.weight_bytes / _MIB
    return Features(
        stored=stored,
        weights=weights,
        tied=size.tied_bytes / _MIB,
        copied=0.0 if dtype == size.stored_dtype else stored + weights,
        activations=(size.input_bytes + size.activation_bytes) / _MIB,
        comparison=(_RESULTS * size.output_bytes + _DOUBLES * size.largest_output_bytes) / _MIB,
    )


def _distance(value: float, low: float, high: float) -> str:
    """How far outside a range."""
    calibrated = f"calibrated from {low:,.0f} to {high:,.0f} MiB"
    return f"is {value / high:.1f} times the largest ({calibrated})" if value > high > 0 else f"is outside the range ({calibrated})"
