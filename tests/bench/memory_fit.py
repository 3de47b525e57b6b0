"""Fits the memory formula to measured peaks, and computes its errors: in sample, leave-one-out, and on unseen models."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from hwmatrix.knowledge.calibration import (
    MEASURES,
    BackendCalibration,
    Coefficients,
    Errors,
    Features,
    LoadCoefficients,
    RunCoefficients,
    expected,
)
from hwmatrix.records import Backend, Dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROUNDS: Final = 50
_SAME: Final = 1.005
"""A running peak that exceeds the loading peak by less than this was reached while loading."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredPeak:
    """A measured cell: the inputs of the formula, its peak until it was ready to run, and its overall peak, in MiB.

    ``held_out``: it is not used in any fit.
    """

    model: str
    backend: Backend
    dtype: Dtype
    batch: int
    sequence_length: int
    features: Features
    load_peak_mb: float
    peak_mb: float
    held_out: bool


def fit(rows: Sequence[MeasuredPeak]) -> Coefficients:
    """The coefficients with the least squared relative errors of both phases.

    The loading peak is measured separately. The running peak is known only where it is larger; elsewhere the loading peak is an upper
    bound, so such a cell is used only if the fit exceeds that bound (Gauss-Newton on a hinge loss: the cells are selected again until the
    selection no longer changes).

    Raises:
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError("nothing was measured that a formula could be fitted to")
    load_terms, run_terms = (tuple(field.name for field in dataclasses.fields(kind))[1:] for kind in (LoadCoefficients, RunCoefficients))
    load = LoadCoefficients(**_solved([(row.features, row.load_peak_mb) for row in rows], load_terms))
    above = [row for row in rows if row.peak_mb > _SAME * row.load_peak_mb]
    run, chosen = RunCoefficients(**dict.fromkeys(("constant", *run_terms), 0.0)), above
    for _ in range(_ROUNDS if above else 0):
        run = RunCoefficients(**_solved([(row.features, row.peak_mb) for row in chosen], run_terms))
        wrong = [row for row in rows if row not in above and expected(run, row.features) > row.peak_mb]
        if above + wrong == chosen:
            break
        chosen = above + wrong
    return Coefficients(load=load, run=run)


def _solved(pairs: Sequence[tuple[Features, float]], terms: tuple[str, ...]) -> dict[str, float]:
    """The non-negative constant and coefficients of these terms with the least sum of squared relative errors.

    There are few terms, so every subset of them is solved by linear least squares, and the best solution without a negative coefficient is
    used: the solution of the constrained problem equals that of the subset of terms with positive coefficients.
    """
    names = ("constant", *terms)
    table = np.array([[1.0, *(getattr(features, term) for term in terms)] for features, _ in pairs])
    scaled = table / np.array([[peak] for _, peak in pairs])
    best, least = np.zeros(len(names)), float("inf")
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(range(len(names)), count):
            solution, *_ = np.linalg.lstsq(scaled[:, chosen], np.ones(len(pairs)), rcond=None)
            off = float(((scaled[:, chosen] @ solution - 1) ** 2).sum())
            if (solution >= 0).all() and off < least - 1e-12:
                least, best = off, np.zeros(len(names))
                best[list(chosen)] = solution
    return {name: round(float(value), 4) for name, value in zip(names, best, strict=True)}


def errors_of(pairs: Sequence[tuple[float, float]]) -> Errors:
    """The errors of pairs of an estimate and a measured value."""
    off = np.array([abs(estimate - measured) / measured for estimate, measured in pairs])
    median, p90 = (round(float(np.quantile(off, share)), 4) for share in (0.5, 0.9))
    return Errors(cells=len(off), median=median, p90=p90, within_25=round(float((off <= 0.25).mean()), 4))


def calibrate(rows: Sequence[MeasuredPeak]) -> BackendCalibration:
    """The calibration of a backend from its rows.

    Raises:
        ValueError: there are no rows to fit, or they are all of one model, which then cannot be left out.
    """
    seen = [row for row in rows if not row.held_out]
    unseen = [row for row in rows if row.held_out]
    models = tuple(dict.fromkeys(row.model for row in seen))
    if len(models) < 2:
        raise ValueError(f"a calibration needs measured cells of several models, and there are {len(models)}")
    coefficients = fit(seen)
    return BackendCalibration(
        coefficients=coefficients,
        dtypes=tuple(sorted({row.dtype for row in seen})),
        models=models,
        ranges={term: _range([getattr(row.features, term) for row in seen]) for term in MEASURES},
        in_sample=errors_of([(coefficients.peak(row.features), row.peak_mb) for row in seen]),
        left_out=errors_of([pair for model in models for pair in _without(model, seen)]),
        held_out=errors_of([(coefficients.peak(row.features), row.peak_mb) for row in unseen]) if unseen else None,
    )


def _without(model: str, rows: Sequence[MeasuredPeak]) -> list[tuple[float, float]]:
    """The estimates for the cells of one model from a fit to all other models."""
    others = fit([row for row in rows if row.model != model])
    return [(others.peak(row.features), row.peak_mb) for row in rows if row.model == model]


def _range(values: list[float]) -> tuple[float, float]:
    """The range of values, rounded outwards so that it includes every fitted cell."""
    return math.floor(min(values) * 10) / 10, math.ceil(max(values) * 10) / 10
