"""Fitting the memory formula to measured peaks, and how far off it is: in sample, with each model left out, and on models never seen."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np

from hwmatrix.advice.calibration import TERMS, BackendCalibration, Coefficients, Errors, Features
from hwmatrix.records import Backend, Dtype

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredPeak:
    """One measured cell: what the formula is given of it, and the peak in MiB. ``held_out``: no fit may see it."""

    model: str
    backend: Backend
    dtype: Dtype
    batch: int
    sequence_length: int
    features: Features
    peak_mb: float
    held_out: bool


def fit(rows: Sequence[MeasuredPeak]) -> Coefficients:
    """The coefficients, none negative, with the least sum of squared relative errors.

    There are few terms, so every subset of them is solved by linear least squares, and the best of those without a negative
    coefficient is taken: this is the exact solution of the constrained problem, whose solution is that of the subset it uses.

    Raises:
        ValueError: there is no row.
    """
    if not rows:
        raise ValueError("nothing was measured that a formula could be fitted to")
    terms = ("constant", *TERMS)
    table = np.array([[1.0, *(getattr(row.features, term) for term in TERMS)] for row in rows])
    scaled = table / np.array([[row.peak_mb] for row in rows])
    best, least = np.zeros(len(terms)), float("inf")
    for count in range(1, len(terms) + 1):
        for chosen in itertools.combinations(range(len(terms)), count):
            solution, *_ = np.linalg.lstsq(scaled[:, chosen], np.ones(len(rows)), rcond=None)
            if (solution < 0).any():
                continue
            off = float(((scaled[:, chosen] @ solution - 1) ** 2).sum())
            if off < least - 1e-12:
                least, best = off, np.zeros(len(terms))
                best[list(chosen)] = solution
    return Coefficients(**{term: round(float(value), 4) for term, value in zip(terms, best, strict=True)})


def errors_of(pairs: Sequence[tuple[float, float]]) -> Errors:
    """Of estimates and what was measured, in this order."""
    off = np.array([abs(estimate - measured) / measured for estimate, measured in pairs])
    median, p90 = (round(float(np.quantile(off, share)), 4) for share in (0.5, 0.9))
    return Errors(cells=len(off), median=median, p90=p90, within_25=round(float((off <= 0.25).mean()), 4))  # noqa: PLR2004 - its name


def calibrate(rows: Sequence[MeasuredPeak]) -> BackendCalibration:
    """The calibration of the backend that all rows are of.

    Raises:
        ValueError: there are no rows to fit, or of one model alone, which cannot be left out.
    """
    seen = [row for row in rows if not row.held_out]
    unseen = [row for row in rows if row.held_out]
    models = tuple(dict.fromkeys(row.model for row in seen))
    if len(models) < 2:  # noqa: PLR2004
        raise ValueError(f"a calibration needs measured cells of several models, and there are {len(models)}")
    coefficients = fit(seen)
    return BackendCalibration(
        coefficients=coefficients,
        dtypes=tuple(sorted({row.dtype for row in seen})),
        models=models,
        ranges={term: _range([getattr(row.features, term) for row in seen]) for term in TERMS},
        in_sample=errors_of([(coefficients.peak(row.features), row.peak_mb) for row in seen]),
        left_out=errors_of([pair for model in models for pair in _without(model, seen)]),
        held_out=errors_of([(coefficients.peak(row.features), row.peak_mb) for row in unseen]) if unseen else None,
    )


def _without(model: str, rows: Sequence[MeasuredPeak]) -> list[tuple[float, float]]:
    """The cells of one model, estimated by a fit to all others."""
    others = fit([row for row in rows if row.model != model])
    return [(others.peak(row.features), row.peak_mb) for row in rows if row.model == model]


def _range(values: list[float]) -> tuple[float, float]:
    return round(min(values), 1), round(max(values), 1)
