"""How far rounded weights are from those that they were made from."""

from __future__ import annotations

import math

import numpy as np

from hwmatrix.targets.steps import RoundedWeight, compared, farthest

STEP = np.array([[0.5], [2.0]], np.float32)


def test_each_number_is_compared_in_its_own_step() -> None:
    original = np.array([[1.0, 2.0], [8.0, 9.0]], np.float32)
    assert math.isclose(compared("w", original + np.array([[0.2, 0.0], [0.0, 0.4]]), original, STEP).steps, 0.4, rel_tol=1e-6)
    assert math.isclose(compared("w", original + STEP * 0.5, original, STEP).steps, 0.5)
    assert math.isclose(compared("w", original - STEP * np.array([[3.0], [1.0]]), original, -STEP).steps, 3.0)


def test_a_step_of_zero_holds_zeros_alone() -> None:
    none = np.zeros((2, 2), np.float32)
    assert compared("w", none, none, np.zeros((2, 1))).steps == 0
    assert compared("w", none, none + 1, np.zeros((2, 1))).steps == math.inf
    assert compared("w", np.zeros((0, 3)), np.zeros((0, 3)), np.ones(())).steps == 0


def test_the_farthest_of_several_weights_is_told() -> None:
    near, far = RoundedWeight(name="near", steps=0.5), RoundedWeight(name="far", steps=2.0)
    assert farthest([near, far]) is far
    assert farthest([]) is None
