"""Shortened texts."""

from __future__ import annotations

import pytest

from hwmatrix.basics.text import commit


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("1c810b12e9924129ecfbb90d3f70603d907c5381", "1c810b12e992"),
        ("1c810b12e9924129ecfbb90d3f70603d907c5381-dirty", "1c810b12e992-dirty"),
        ("", ""),
    ],
)
def test_a_short_commit_says_whether_the_tree_differed(name: str, short: str) -> None:
    assert commit(name) == short
