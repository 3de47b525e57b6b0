"""Numbers that differ by a few roundings."""

from __future__ import annotations

import numpy as np
import pytest

from hwmatrix.targets.nudge import factors, nudge


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_numbers_of_every_shape_become_a_little_larger_or_smaller(shape: tuple[int, ...]) -> None:
    values = np.full(shape, 3.0, np.float32)
    for made in (nudge(values, np.random.default_rng(0)), values * factors(shape, np.random.default_rng(0))):
        assert made.dtype == np.float32
        np.testing.assert_allclose(np.abs(made / 3.0 - 1.0), 2.0**-21, rtol=0.2)
    found = factors(shape, np.random.default_rng(0))
    assert isinstance(found, np.ndarray)
    assert found.shape == shape


def test_the_same_draw_gives_the_same_numbers_and_another_one_others() -> None:
    values = np.ones(64, np.float32)
    first, again, other = (nudge(values, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_number_that_would_become_infinite_stays() -> None:
    lowest = np.full(64, np.finfo(np.float32).min, np.float32)
    made = nudge(lowest, np.random.default_rng(0))
    assert np.isfinite(made).all()
    assert (made == lowest).any()
