from __future__ import annotations

import ctypes
import mmap
import struct
import sys
import types
from pathlib import Path
from typing import Any

import psutil
import pytest

from hwmatrix.measure import memory

STATUS = "Name:\tpython\nVmPeak:\t 9216 kB\nVmSize:\t 8192 kB\nVmData:\t 1024 kB\nVmHWM:\t 4096 kB\nVmRSS:\t 2048 kB\nThreads:\t1\n"
ZOMBIE = "Name:\tchromium\nState:\tZ (zombie)\nThreads:\t1\n"
BROWSER, PAGE, ENDED = 100, 101, 102


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake /proc/self made of files. High-water marks are not reset in it."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text(STATUS, encoding="ascii")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    return tmp_path / "self"


def process(proc: Path, pid: int | str, *, now_mb: float, peak_mb: float, shared_mb: float = 0.0) -> None:
    """Write a process's files in /proc."""
    folder = proc.parent / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "status").write_text(f"VmHWM:\t{peak_mb * 1024:.0f} kB\nVmRSS:\t{now_mb * 1024:.0f} kB\n", encoding="ascii")
    private = (now_mb - shared_mb) * 1024
    rollup = f"Rss: {now_mb * 1024:.0f} kB\nPss: {private + shared_mb * 512:.0f} kB\nPrivate_Dirty: {private:.0f} kB\n"
    (folder / "smaps_rollup").write_text(rollup, encoding="ascii")


def zombie(proc: Path, pid: int) -> None:
    (proc.parent / str(pid)).mkdir()
    (proc.parent / str(pid) / "status").write_text(ZOMBIE, encoding="ascii")


@pytest.fixture
def browser(proc: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A browser with the process of a page, and one that has ended."""
    process(proc, BROWSER, now_mb=100, peak_mb=900, shared_mb=40)
    process(proc, PAGE, now_mb=60, peak_mb=60, shared_mb=40)
    zombie(proc, ENDED)
    children = [types.SimpleNamespace(pid=pid) for pid in (PAGE, ENDED)]
    monkeypatch.setattr(psutil, "Process", lambda _pid: types.SimpleNamespace(children=lambda *, recursive: children if recursive else []))
    return proc


@pytest.mark.usefixtures("proc")
def test_sizes_are_in_mebibytes() -> None:
    assert memory.resident() == memory.Resident(now_mb=2.0, peak_mb=4.0)
    assert memory.address_space_mb() == 8.0
    assert memory.data_mb() == 1.0


def test_a_kernel_without_high_water_marks_reports_nothing(proc: Path) -> None:
    (proc / "status").write_text("VmSize:\t 8192 kB\nVmRSS:\t 2048 kB\n", encoding="ascii")
    assert memory.resident() is None
    assert memory.address_space_mb() == 8.0
    assert memory.data_mb() is None
    use = memory.Meter().ran()
    assert (use.peak_mb, use.delta_mb) == (None, None)
    assert use.detail is not None


def test_private_memory_is_clean_and_dirty(proc: Path) -> None:
    text = "Rss: 9 kB\nShared_Clean: 7 kB\nPrivate_Clean:     512 kB\nPrivate_Dirty:    1536 kB\nPrivate_Hugetlb: 4 kB\n"
    (proc / "smaps_rollup").write_text(text, encoding="ascii")
    assert memory.unique_mb() == 2.0


def test_the_mark_is_reset_by_writing_five(proc: Path) -> None:
    assert memory.reset_peak()
    assert (proc / "clear_refs").read_text() == "5"


def test_a_kernel_that_does_not_allow_resetting_the_mark(proc: Path) -> None:
    (proc / "clear_refs").mkdir()
    assert not memory.reset_peak()
    assert memory.unique_mb() is None


def test_a_cell_s_peak_is_the_higher_of_loading_and_running(proc: Path) -> None:
    process(proc, "self", now_mb=100, peak_mb=100)
    meter = memory.Meter()
    process(proc, "self", now_mb=150, peak_mb=400)
    meter.loaded()
    process(proc, "self", now_mb=160, peak_mb=200)
    assert meter.ran() == memory.HostUse(baseline_mb=100, load_peak_mb=400, run_peak_mb=200, peak_mb=400, uss_mb=160)


def test_what_loading_left_and_nothing_needs_is_freed_before_the_model_runs(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[str] = []
    monkeypatch.setattr(memory.gc, "collect", lambda: freed.append("cycles"))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _name: types.SimpleNamespace(malloc_trim=lambda _pad: freed.append("heap")))
    process(proc, "self", now_mb=100, peak_mb=100)
    meter = memory.Meter()
    meter.loaded()
    assert freed == ["cycles", "heap"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has smaps")
@pytest.mark.parametrize(
    ("name", "written", "stays"), [("w.safetensors", False, False), ("w.safetensors", True, True), ("w.bin", False, True)]
)
def test_files_of_weights_are_unloaded_unless_they_were_written_to(tmp_path: Path, name: str, *, written: bool, stays: bool) -> None:
    file = tmp_path / name
    file.write_bytes(b"weights!" * (2**20 // 8))

    def resident_kb() -> int:
        lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
        assert any(line.endswith(str(file)) for line in lines)
        return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) == ord("w") * 2**20 // mmap.PAGESIZE
        if written:
            mapped[0:8] = b"changed!"
        before = resident_kb()
        meter = memory.Meter()
        meter.loaded()
        assert (resident_kb() > before / 2) is stays
        assert mapped[:16] == (b"changed!" if written else b"weights!") + b"weights!"


def test_the_peak_of_inference_is_unknown_where_the_mark_cannot_be_reset_after_loading(proc: Path) -> None:
    process(proc, "self", now_mb=100, peak_mb=100)
    meter = memory.Meter()
    process(proc, "self", now_mb=150, peak_mb=400)
    (proc / "clear_refs").unlink()
    (proc / "clear_refs").mkdir()
    meter.loaded()
    assert (meter.ran().run_peak_mb, meter.ran().peak_mb) == (None, 400)


def test_a_mark_that_cannot_be_reset_counts_only_if_it_rises(proc: Path) -> None:
    """Memory from before the cell must not count. If the mark rises, it is the cell's."""
    (proc / "clear_refs").mkdir()
    process(proc, "self", now_mb=100, peak_mb=500)
    meter = memory.Meter()
    meter.loaded()
    use = meter.ran()
    assert (use.baseline_mb, use.load_peak_mb, use.peak_mb, use.delta_mb) == (100, None, None, None)
    assert use.detail is not None
    process(proc, "self", now_mb=100, peak_mb=501)
    assert (meter.ran().peak_mb, meter.ran().delta_mb, meter.ran().detail) == (501, 401, None)


def test_a_browser_s_shared_memory_counts_once_and_ended_processes_not_at_all(browser: Path) -> None:
    meter = memory.Meter(BROWSER)
    assert [(browser.parent / str(pid) / "clear_refs").read_text() for pid in (BROWSER, PAGE)] == ["5", "5"]
    process(browser, BROWSER, now_mb=100, peak_mb=100, shared_mb=40)  # as the kernel resets it
    meter.loaded()
    process(browser, PAGE, now_mb=80, peak_mb=200, shared_mb=40)
    use = meter.ran()
    assert (use.baseline_mb, use.load_peak_mb, use.peak_mb, use.delta_mb, use.uss_mb) == (120, 120, 260, 140, 100)
    assert use.detail is not None
    assert "2 processes" in use.detail


@pytest.mark.parametrize("what", ["ended", "sandbox", "another system", "denied"])
def test_a_browser_without_readable_memory_has_none(browser: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    if what == "ended":
        monkeypatch.setattr(psutil, "Process", lambda pid: (_ for _ in ()).throw(psutil.NoSuchProcess(pid)))
    elif what == "sandbox":
        (browser.parent / str(BROWSER) / "smaps_rollup").unlink()
    elif what == "another system":
        monkeypatch.setattr(sys, "platform", "win32")
    else:
        read = type(browser).read_text

        def refused(path: Path, *arguments: Any, **options: Any) -> str:
            if path.name == "smaps_rollup":
                raise PermissionError(13, "Permission denied")
            return read(path, *arguments, **options)

        monkeypatch.setattr(type(browser), "read_text", refused)
    meter = memory.Meter(BROWSER)
    meter.loaded()
    use = meter.ran()
    assert (use.baseline_mb, use.peak_mb, use.delta_mb, use.uss_mb) == (None, None, None, None)
    assert use.detail is not None
    assert use.detail.startswith("not measured: ")


def test_macos_reports_the_footprint_over_a_process_s_lifetime(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"now": 300, "most": 300}

    def rusage(_pid: int, flavor: int, buffer: Any) -> int:
        assert (flavor, ctypes.sizeof(buffer)) == (4, 16 + 35 * 8)
        struct.pack_into("<Q", buffer, 16 + 7 * 8, told["now"] << 20)
        struct.pack_into("<Q", buffer, 16 + 28 * 8, told["most"] << 20)
        return 0

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _name: types.SimpleNamespace(proc_pid_rusage=rusage))
    monkeypatch.setattr(memory, "_PROC", memory._PROC / "none")
    meter = memory.Meter()
    told |= {"now": 700, "most": 900}
    meter.loaded()
    use = meter.ran()
    assert (use.baseline_mb, use.load_peak_mb, use.peak_mb, use.delta_mb, use.uss_mb) == (300, 900, 900, 600, None)
    assert use.detail is not None
    assert "footprint" in use.detail


@pytest.mark.usefixtures("proc")
def test_on_other_systems_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
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


def ramp(start: float, step: float, count: int) -> list[float]:
    """Sizes in MiB, each ``step`` larger than the one before."""
    return [start + index * step for index in range(count)]


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([100.0] * 60, id="constant"),
        pytest.param(ramp(100, 2, 20) + [140.0] * 60, id="an allocator grows, then has enough"),
        pytest.param([100.0] * 30 + [150.0] * 30, id="one step"),
        pytest.param(ramp(100, 0.01, 60), id="too little to tell from noise"),
        pytest.param(ramp(100, 8, 12), id="too few repetitions"),
        pytest.param(ramp(200, -1, 60), id="shrinks"),
    ],
)
def test_memory_that_stops_growing_is_no_leak(sizes: list[float]) -> None:
    assert memory.growth(sizes) is None


def test_memory_that_grows_all_the_time_is_a_leak_of_its_slope() -> None:
    noisy = [size + (index % 3) * 0.1 for index, size in enumerate(ramp(100, 0.25, 60))]
    assert memory.growth(noisy) == pytest.approx(0.25, rel=0.05)
