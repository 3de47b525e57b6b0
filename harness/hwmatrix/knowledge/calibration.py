"""How much memory a cell needs: a formula whose coefficients were fitted to measured peaks (calibration.yaml).

    load = constant + stored x S + weights x W + copied x K + tied x T
    run  = constant + stored x S + weights x W + tied x T + activations x A + comparison x C

The peak is the larger of the two, all in MiB. S are the weights as the checkpoint holds them, W in the precision that is computed in,
K both of them where they differ, T those that are used more than once, A what one forward pass holds at most, C what comparing the
outputs with the reference takes. docs/requirements.md says more of each. ``nox -s calibrate`` measures, fits
(``tests/bench/memory_fit.py``) and writes calibration.yaml.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
from typing import TYPE_CHECKING, Annotated, Final, Literal

import pydantic
import yaml
from pydantic import Field

from hwmatrix.records import Backend, Dtype
from hwmatrix.records.strict import STRICT

if TYPE_CHECKING:
    from hwmatrix.models.sizes import ModelSize

_FILE: Final = "calibration.yaml"
_MIB: Final = 2**20
_RESULTS: Final = 2
"""The outputs themselves, and the reference's, both in float32."""
_DOUBLES: Final = 8
"""parity.py has four copies in float64 of the output that it compares: twice the bytes of float32 each."""


Coefficient = Annotated[float, Field(ge=0)]
"""No coefficient is negative, since each stands for memory."""


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
"""The features with a calibrated range. What is copied or tied follows from the first two, or is a part of them."""


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

    ``ranges`` are the smallest and the largest value of each feature among the cells that were fitted. ``in_sample`` are these cells;
    ``left_out`` are the same, each estimated by a fit without any cell of its model; ``held_out`` are cells of other models, which no
    fit has seen (None where none was measured).
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
        """The 90th percentile of the relative error, on models that the fit did not see."""
        return max(self.left_out.p90, self.held_out.p90 if self.held_out else 0.0)

    def outside(self, features: Features, dtype: Dtype) -> tuple[str, ...]:
        """What about a model lies outside the calibrated ranges, in words; empty if nothing does."""
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
    """The calibration that comes with hwmatrix."""
    text = (importlib.resources.files("hwmatrix.knowledge") / _FILE).read_text(encoding="utf-8")
    return pydantic.TypeAdapter(Calibration).validate_python(yaml.safe_load(text))


def features_of(size: ModelSize, dtype: Dtype) -> Features:
    """What the formula needs of a model's size."""
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
    return f"is {value / high:.1f} times the largest ({calibrated})" if value > high > 0 else f"is outside what was {calibrated}"
