"""A step or a drift of the time between tokens, told from noise and from single slow tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hwmatrix.measure.positions import change

POSITIONS = 31
REPETITIONS = 30
Array = np.ndarray[Any, Any]


def noisy(shape: Array, seed: int, noise: float = 0.05) -> Array:
    """Repetitions of these times by position, with this relative noise and some tokens that take three times as long."""
    random = np.random.default_rng(seed)
    gaps: Array = shape * (1 + noise * random.standard_normal((REPETITIONS, len(shape))))
    gaps[random.random(gaps.shape) < 0.03] *= 3
    return gaps


FLAT = np.full(POSITIONS, 2.0)


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_change(seed: int) -> None:
    assert change(noisy(FLAT, seed)) is None
    assert change(noisy(FLAT, seed)[:6]) is None
    assert change(noisy(FLAT[:7], seed)) is None


@pytest.mark.parametrize("at", [1, 10, 25])
@pytest.mark.parametrize("ms", [0.5, -0.5])
def test_a_step_is_found_at_its_token(at: int, ms: float) -> None:
    found = change(noisy(FLAT + ms * (np.arange(POSITIONS) >= at), seed=at))
    assert found is not None
    assert found.token == at + 2
    assert found.ms == pytest.approx(ms, abs=0.1)


@pytest.mark.parametrize("ms", [0.8, -0.8])
def test_a_drift_is_from_the_first_to_the_last_token(ms: float) -> None:
    found = change(noisy(FLAT + ms * np.linspace(0, 1, POSITIONS), seed=3))
    assert found is not None
    assert found.token is None
    assert found.ms == pytest.approx(ms, abs=0.15)


def test_a_small_change_is_not_told() -> None:
    assert change(noisy(FLAT + 0.1 * (np.arange(POSITIONS) >= 10), seed=1, noise=0.01)) is None


def test_one_slow_token_is_no_change() -> None:
    assert change(noisy(FLAT + 2.0 * (np.arange(POSITIONS) == 12), seed=1)) is None


def test_what_comes_and_goes_is_no_change() -> None:
    assert change(noisy(FLAT + np.arange(POSITIONS) % 2, seed=1)) is None


def test_what_half_of_the_repetitions_lacks_is_no_change() -> None:
    """The machine was slower for a while: positions are not the cause."""
    gaps = noisy(FLAT, seed=1)
    gaps[REPETITIONS // 2 :, 15:] *= 2
    assert change(gaps) is None


@pytest.mark.parametrize("shape", [(5, POSITIONS), (REPETITIONS, 3)])
def test_too_few_times_show_nothing(shape: tuple[int, int]) -> None:
    assert change(np.ones(shape) * np.linspace(1, 3, shape[1])) is None
