"""The memory formula: the packaged calibration matches the recorded cells, and the fit is correct."""

from __future__ import annotations

import csv
import dataclasses
import random
from pathlib import Path

import pydantic
import pytest
from memory_fit import MeasuredPeak, calibrate, errors_of, fit

from hwmatrix.knowledge.calibration import (
    Calibration,
    Coefficients,
    Features,
    LoadCoefficients,
    RunCoefficients,
    calibration,
    expected,
    features_of,
)
from hwmatrix.models.sizes import ModelSize
from hwmatrix.records import Backend, Dtype

RECORDED = Path(__file__).parents[1] / "recorded" / "memory.csv"
MIB = 2**20
FEATURES = tuple(field.name for field in dataclasses.fields(Features))
TRUE = Coefficients(
    load=LoadCoefficients(constant=290, stored=0.1, weights=0.2, copied=1.0, tied=0.3),
    run=RunCoefficients(constant=300, stored=0.1, weights=0.9, tied=0.2, activations=1.5, comparison=0.75),
)


def recorded() -> list[MeasuredPeak]:
    lines = [line for line in RECORDED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [
        MeasuredPeak(
            model=row["model"],
            held_out={"yes": True, "no": False}[row["held_out"]],
            backend=Backend(row["backend"]),
            dtype=Dtype(row["dtype"]),
            batch=int(row["batch"]),
            sequence_length=int(row["sequence_length"]),
            features=Features(**{name: float(row[name]) for name in FEATURES}),
            load_peak_mb=float(row["load_peak_mb"]),
            peak_mb=float(row["peak_mb"]),
        )
        for row in csv.DictReader(lines)
    ]


def made(models: int = 8, *, held_out: int = 0, noise: float = 0.0) -> list[MeasuredPeak]:
    """Cells of a known formula, each peak with a relative noise of at most ``noise``. Every second cell copies its weights on load."""
    dice = random.Random(0)  # noqa: S311 - no secret
    rows = []
    for index in range(models + held_out):
        stored, tied = dice.uniform(100, 900), dice.uniform(0, 100)
        for batch, weights in ((1, stored), (4, stored), (1, stored / 2), (8, 2 * stored)):
            features = Features(
                stored=stored,
                weights=weights,
                tied=tied,
                activations=batch * dice.uniform(5, 80),
                comparison=batch * dice.uniform(0, 300),
                copied=0.0 if weights == stored else stored + weights,
            )
            load = expected(TRUE.load, features) * (1 + dice.uniform(-noise, noise))
            run = expected(TRUE.run, features) * (1 + dice.uniform(-noise, noise))
            rows.append(
                MeasuredPeak(
                    model=f"m{index}",
                    held_out=index >= models,
                    backend=Backend.CPU,
                    dtype=Dtype.FLOAT32 if weights == stored else Dtype.BFLOAT16,
                    batch=batch,
                    sequence_length=128,
                    features=features,
                    load_peak_mb=load,
                    peak_mb=max(load, run),
                )
            )
    return rows


def with_other_peaks(rows: list[MeasuredPeak], times: float, *, model: str = "", held_out: bool = False) -> list[MeasuredPeak]:
    """The rows, with other peaks for one model (or for the held-out ones)."""
    return [
        dataclasses.replace(row, load_peak_mb=row.load_peak_mb * times, peak_mb=row.peak_mb * times)
        if row.model == model or (held_out and row.held_out)
        else row
        for row in rows
    ]


def test_the_packaged_calibration_matches_the_recorded_cells() -> None:
    rows = recorded()
    stated = calibration().backends
    assert set(stated) == {row.backend for row in rows}
    for backend, told in stated.items():
        assert calibrate([row for row in rows if row.backend is backend]) == told


def test_the_estimate_on_the_cpu_is_good_even_for_held_out_models() -> None:
    cpu = calibration().backends[Backend.CPU]
    for errors in (cpu.in_sample, cpu.left_out, cpu.held_out):
        assert errors is not None
        assert errors.cells >= 20
        assert errors.within_25 >= 0.9


def test_no_model_is_both_fitted_and_held_out() -> None:
    rows = recorded()
    assert {row.model for row in rows if row.held_out} & {row.model for row in rows if not row.held_out} == set()


def test_a_fit_recovers_a_known_formula() -> None:
    rows = made()
    assert any(row.peak_mb == row.load_peak_mb for row in rows)  # their running peak is not known
    found = fit(rows)
    for phase in ("load", "run"):
        for name, value in dataclasses.asdict(getattr(TRUE, phase)).items():
            assert getattr(getattr(found, phase), name) == pytest.approx(value, abs=2e-3)


def test_a_fit_has_no_negative_term_and_beats_its_neighbors() -> None:
    rows = made(noise=0.2)
    load = fit(rows).load
    assert min(dataclasses.asdict(load).values()) >= 0

    def off(coefficients: LoadCoefficients) -> float:
        return sum((expected(coefficients, row.features) / row.load_peak_mb - 1) ** 2 for row in rows)

    for name, value in dataclasses.asdict(load).items():
        for step in (-0.02, 0.02) if value else (0.02,):
            assert off(dataclasses.replace(load, **{name: value + step * (value or 1.0)})) >= off(load) - 1e-6


def test_a_term_that_would_be_negative_is_left_out() -> None:
    rows = [dataclasses.replace(row, load_peak_mb=1000 + row.features.stored - row.features.tied) for row in made()]
    assert fit(rows).load.tied == 0


def test_a_cell_whose_peak_was_reached_while_loading_bounds_the_running_peak() -> None:
    """Without the bound, a fit to the other cells alone would estimate it far too high."""
    rows = made(noise=0.02)
    found = fit(rows)
    hidden = [row for row in rows if row.peak_mb == row.load_peak_mb]
    assert hidden
    assert max(expected(found.run, row.features) / row.peak_mb for row in hidden) < 1.1


def test_cells_that_all_reach_their_peak_while_loading_can_be_fitted() -> None:
    rows = [dataclasses.replace(row, peak_mb=row.load_peak_mb) for row in made()]
    assert errors_of([(fit(rows).peak(row.features), row.peak_mb) for row in rows]).p90 < 0.01


def test_held_out_cells_are_evaluated_and_never_fitted() -> None:
    rows = made(held_out=2)
    fair, unfair = calibrate(rows), calibrate(with_other_peaks(rows, 10, held_out=True))
    assert fair.coefficients == unfair.coefficients
    assert fair.held_out is not None
    assert unfair.held_out is not None
    assert fair.held_out.p90 < 0.01 < unfair.held_out.p90
    assert fair.held_out.cells == 8
    assert unfair.margin == unfair.held_out.p90


def test_a_left_out_model_is_estimated_without_its_own_cells() -> None:
    rows = made()
    assert calibrate(with_other_peaks(rows, 3, model="m0")).left_out.p90 > calibrate(rows).left_out.p90 + 0.1


@pytest.mark.parametrize("count", [0, 1])
def test_a_calibration_needs_several_models(count: int) -> None:
    with pytest.raises(ValueError, match="several models"):
        calibrate(made(count))


def test_a_fit_needs_a_cell() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        fit([])


def test_errors_are_relative_to_the_measured_value() -> None:
    errors = errors_of([(110, 100), (90, 100), (130, 100), (100, 100)])
    assert (errors.cells, errors.median, errors.within_25) == (4, 0.1, 0.75)
    assert errors.p90 == pytest.approx(0.24)


def test_values_outside_the_range_are_reported_with_the_distance() -> None:
    found = calibrate(made())
    inside = made()[0].features
    assert found.outside(inside, Dtype.FLOAT32) == ()
    dtype, size = found.outside(dataclasses.replace(inside, stored=9_000.0), Dtype.FLOAT16)
    assert dtype == "float16 was not calibrated (bfloat16, float32 were)"
    assert size.startswith("stored of 9,000 MiB is 1")
    assert "times the largest (calibrated from" in size
    (small,) = found.outside(dataclasses.replace(inside, stored=1.0), Dtype.FLOAT32)
    assert "is outside the range (calibrated from" in small


def test_features_match_the_formula() -> None:
    size = ModelSize(
        parameters=10,
        stored_bytes=400 * MIB,
        stored_dtype="float32",
        tied_bytes=30 * MIB,
        weight_bytes=200 * MIB,
        dtypes={"bfloat16": 200 * MIB},
        input_bytes=MIB,
        activation_bytes=7 * MIB,
        output_bytes=5 * MIB,
        largest_output_bytes=3 * MIB,
        method="forward",
    )
    found = features_of(size, Dtype.BFLOAT16)
    assert found == Features(stored=400, weights=200, tied=30, activations=8, comparison=2 * 5 + 8 * 3, copied=600)
    assert features_of(size, Dtype.FLOAT32).copied == 0


@pytest.mark.parametrize("change", [{"surprise": 1}, {"version": 2}, {"backends": {"cpu": {}}}])
def test_an_invalid_calibration_is_refused(change: dict[str, object]) -> None:
    given = {"version": 1, "date": "2026-01-01", "machine": "m", "evidence": "e", "backends": {}} | change
    with pytest.raises(pydantic.ValidationError):
        pydantic.TypeAdapter(Calibration).validate_python(given)


def test_no_coefficient_is_negative() -> None:
    with pytest.raises(pydantic.ValidationError):
        pydantic.TypeAdapter(LoadCoefficients).validate_python(dataclasses.asdict(TRUE.load) | {"stored": -1.0})


def test_the_peak_is_the_larger_of_both_phases() -> None:
    inside = made()[0].features
    assert TRUE.peak(inside) == expected(TRUE.run, inside) > expected(TRUE.load, inside)
    copied = dataclasses.replace(inside, copied=5000.0)
    assert TRUE.peak(copied) == expected(TRUE.load, copied) > expected(TRUE.run, copied)
