"""Which cores a timed cell gets, on processors with one and with several kinds of cores."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from hwmatrix.measure.cores import apart, described

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a process cannot choose its cores")
UNIFORM = {f"system/cpu/cpu{core}/topology/thread_siblings_list": f"{core // 2 * 2}-{core // 2 * 2 + 1}" for core in range(8)}
APART = {f"system/cpu/cpu{core}/topology/thread_siblings_list": f"{core % 4},{core % 4 + 4}" for core in range(8)}
ALDER_LAKE = {  # two performance cores with two threads each, then four efficiency cores
    "cpu_core/cpus": "0-3",
    "cpu_atom/cpus": "4-7",
    **{f"system/cpu/cpu{core}/topology/thread_siblings_list": f"{core // 2 * 2}-{core // 2 * 2 + 1}" for core in range(4)},
    **{f"system/cpu/cpu{core}/topology/thread_siblings_list": str(core) for core in range(4, 8)},
}
METEOR_LAKE = {**ALDER_LAKE, "cpu_atom/cpus": "4-5", "cpu_lowpower/cpus": "6-7"}
BIG_LITTLE = {f"system/cpu/cpu{core}/cpu_capacity": str(446 if core < 4 else 871 if core < 6 else 1024) for core in range(8)}
BIG_CORES_FIRST = {f"system/cpu/cpu{core}/cpu_capacity": str(1024 if core < 2 else 446) for core in range(8)}
ALL = set(range(8))


@pytest.fixture
def devices(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of /sys/devices for eight cores, of which a process may use some."""
    files, allowed = request.param
    for name, text in ({"system/cpu/present": "0-7"} | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n", encoding="ascii")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: allowed)
    return tmp_path


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        ((UNIFORM, ALL), [None, (7,), (5, 7), (3, 5, 7), (1, 3, 5, 7), (1, 3, 5, 6, 7)]),
        ((UNIFORM, {2, 3}), [None, (3,), (2, 3), None]),
        ((APART, ALL), [None, (7,), (6, 7), (5, 6, 7), (4, 5, 6, 7)]),
        ((APART, {0, 4, 5}), [None, (5,), (4, 5), (0, 4, 5)]),
        (({}, {0, 1, 2}), [None, (2,), (1, 2), (0, 1, 2), None]),
        ((ALDER_LAKE, ALL), [None, (3,), (1, 3), (1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3, 7)]),
        ((METEOR_LAKE, ALL), [None, (3,), (1, 3)]),
        ((METEOR_LAKE, {4, 5, 6, 7}), [None, (7,)]),
        ((BIG_LITTLE, ALL), [None, (7,), (6, 7), (5, 6, 7)]),
        ((BIG_CORES_FIRST, ALL), [None, (1,), (0, 1), (0, 1, 7)]),
    ],
    indirect=["devices"],
)
def test_threads_get_the_fastest_physical_cores(devices: Path, chosen: list[tuple[int, ...] | None]) -> None:
    assert [apart(count, devices) for count in range(len(chosen))] == chosen


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ((UNIFORM, {6, 7}), "6,7"),
        (({}, {0}), "0"),
        ((ALDER_LAKE, {1, 3}), "1,3 (performance)"),
        ((ALDER_LAKE, {3, 4}), "3,4 (mixed)"),
        ((METEOR_LAKE, {6, 7}), "6,7 (efficiency)"),
        ((BIG_LITTLE, {7}), "7 (performance)"),
        ((BIG_LITTLE, {0, 5}), "0,5 (efficiency)"),
    ],
    indirect=["devices"],
)
def test_a_row_says_of_which_kind_its_cores_are(devices: Path, text: str) -> None:
    assert described(devices) == text


def test_this_machine_has_them() -> None:
    one = apart(1)
    assert one is not None
    assert set(one) <= os.sched_getaffinity(0)
    assert described() is not None
