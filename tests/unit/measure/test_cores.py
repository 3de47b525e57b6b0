"""Which cores a timed cell gets."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from hwmatrix.measure.cores import apart

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a process cannot choose its cores")
PAIRS_OF_NEIGHBOURS = {core: f"{core // 2 * 2}-{core // 2 * 2 + 1}" for core in range(8)}
PAIRS_APART = {core: f"{core % 4},{core % 4 + 4}" for core in range(8)}


@pytest.mark.parametrize(
    ("siblings", "allowed", "chosen"),
    [
        (PAIRS_OF_NEIGHBOURS, {0, 1, 2, 3, 4, 5, 6, 7}, [(7,), (5, 7), (3, 5, 7), (1, 3, 5, 7), (1, 3, 5, 6, 7)]),
        (PAIRS_OF_NEIGHBOURS, {2, 3}, [(3,), (2, 3), None]),
        (PAIRS_APART, {0, 1, 2, 3, 4, 5, 6, 7}, [(7,), (6, 7), (5, 6, 7), (4, 5, 6, 7)]),
        (PAIRS_APART, {0, 4, 5}, [(5,), (4, 5), (0, 4, 5)]),
        ({}, {0, 1, 2}, [(2,), (1, 2), (0, 1, 2), None]),
    ],
)
def test_threads_get_physical_cores_of_their_own(
    siblings: dict[int, str], allowed: set[int], chosen: list[tuple[int, ...] | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for core, text in siblings.items():
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n", encoding="ascii")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: allowed)
    assert [apart(count, tmp_path) for count in range(1, len(chosen) + 1)] == chosen


def test_this_machine_has_them() -> None:
    one = apart(1)
    assert one is not None
    assert set(one) <= os.sched_getaffinity(0)
