from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from hwmatrix.measure import memory

if TYPE_CHECKING:
    from pathlib import Path

STATUS = "Name:\tpython\nVmPeak:\t 9216 kB\nVmSize:\t 8192 kB\nVmData:\t 1024 kB\nVmHWM:\t 4096 kB\nVmRSS:\t 2048 kB\nThreads:\t1\n"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "status").write_text(STATUS, encoding="ascii")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "clear_refs")
    monkeypatch.setattr(memory, "_ROLLUP", tmp_path / "smaps_rollup")
    return tmp_path


@pytest.mark.usefixtures("proc")
def test_sizes_are_in_mebibytes() -> None:
    assert memory.resident() == memory.Resident(now_mb=2.0, peak_mb=4.0)
    assert memory.address_space_mb() == 8.0
    assert memory.data_mb() == 1.0


def test_a_kernel_that_keeps_no_mark_tells_nothing(proc: Path) -> None:
    (proc / "status").write_text("VmSize:\t 8192 kB\nVmRSS:\t 2048 kB\n", encoding="ascii")
    assert memory.resident() is None
    assert memory.address_space_mb() == 8.0
    assert memory.data_mb() is None


def test_private_memory_is_clean_and_dirty(proc: Path) -> None:
    text = "Rss: 9 kB\nShared_Clean: 7 kB\nPrivate_Clean:     512 kB\nPrivate_Dirty:    1536 kB\nPrivate_Hugetlb: 4 kB\n"
    (proc / "smaps_rollup").write_text(text, encoding="ascii")
    assert memory.unique_mb() == 2.0


def test_the_mark_is_reset_by_writing_five(proc: Path) -> None:
    assert memory.reset_peak()
    assert (proc / "clear_refs").read_text() == "5"


def test_a_kernel_that_does_not_allow_it(proc: Path) -> None:
    (proc / "clear_refs").mkdir()
    assert not memory.reset_peak()
    assert memory.unique_mb() is None


@pytest.mark.usefixtures("proc")
def test_elsewhere_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert memory.resident() is None
    assert memory.address_space_mb() is None
    assert memory.data_mb() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_this_process_grows_by_what_it_allocates() -> None:
    memory.reset_peak()
    before = memory.resident()
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    after = memory.resident()
    assert before is not None
    assert after is not None
    assert 60 < after.peak_mb - before.now_mb < 90
    assert len(block) == 64 * 2**20
