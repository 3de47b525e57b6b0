"""The host memory of a cell: at its start, at its peak, and the difference.

A cell runs in its own process, or in those of a browser. Linux keeps a high-water mark per process, which can be reset; macOS keeps one
for a process's whole life, including Metal's buffers. If the mark is older than the cell, or does not exist, only the reason is recorded.
``getrusage`` is not used: on Linux its maximum is inherited across exec and cannot be reset.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import itertools
import mmap
import os
import re
import statistics
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROC: Final = Path("/proc")
_RESET_PEAK: Final = "5"
"""proc(5): writing 5 to clear_refs resets the peak resident set size to the current one."""
_PROPORTIONAL: Final = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
_PRIVATE: Final = re.compile(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", re.MULTILINE)
_MAPPING: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
"""The first line of a mapping in smaps, proc(5)."""
_UNCHANGED: Final = re.compile(r"Anonymous: +0 kB$")
_WEIGHTS: Final = ".safetensors"
_LIBRARY: Final = "/usr/lib/libSystem.B.dylib"
_RUSAGE_INFO_V4: Final = 4
_RUSAGE_BYTES: Final = 296
_FOOTPRINT: Final = 16 + 7 * 8
_LONGEST_FOOTPRINT: Final = 16 + 28 * 8
"""sys/resource.h of macOS, struct rusage_info_v4: a UUID of 16 bytes, then numbers of 8: ri_phys_footprint is number 7 of them,
ri_lifetime_max_phys_footprint number 28."""
_MIB: Final = 2**20
_PARTS: Final = 4
_LEAST_OF_A_PART: Final = 4
LEAST_REPETITIONS: Final = _PARTS * _LEAST_OF_A_PART
"""Fewer cannot show that memory grows all the time."""
LEAK_MB: Final = 4.0
"""Growth in all, in MiB, below which memory is not taken to leak."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resident:
    """Memory of a process in MiB: now, and the peak since its mark was reset (on macOS, since the process started)."""

    now_mb: float
    peak_mb: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostUse:
    """A cell's use of host memory, in MiB; None means not known.

    ``load_peak_mb`` is the peak until the model was prepared, with everything that converting it took; ``run_peak_mb`` the peak of the
    first inference, when what the conversion left has been freed; ``peak_mb`` the higher of both.

    ``detail`` says whose memory it is if it is not the resident set of the cell's own process, or why nothing was measured.
    """

    baseline_mb: float | None = None
    load_peak_mb: float | None = None
    run_peak_mb: float | None = None
    peak_mb: float | None = None
    uss_mb: float | None = None
    detail: str | None = None

    @property
    def delta_mb(self) -> float | None:
        """The increase from the start to the peak."""
        return None if self.peak_mb is None or self.baseline_mb is None else self.peak_mb - self.baseline_mb


def growth(resident_mb: Sequence[float]) -> float | None:
    """By how many MiB memory grows with each repetition of the same work; None if it does not grow all the time.

    ``resident_mb`` is what the process holds after each repetition, in order. Allocators keep some memory when work begins, and grow in
    steps now and then. A leak goes on: from each quarter of the repetitions to the next, the median grows by about as much, by
    :data:`LEAK_MB` in all.
    """
    quarter = len(resident_mb) // _PARTS
    if quarter < _LEAST_OF_A_PART:
        return None
    medians = [statistics.median(resident_mb[index * quarter : (index + 1) * quarter]) for index in range(_PARTS)]
    steps = [later - earlier for earlier, later in itertools.pairwise(medians)]
    if min(steps) < max(steps) / 2 or sum(steps) < LEAK_MB:
        return None
    return sum(steps) / ((_PARTS - 1) * quarter)


class UnknownError(Exception):
    """This system does not report a size. The message gives the reason."""


class Meter:
    """Measures the memory of one cell: create it when the cell begins, call ``loaded`` before and ``ran`` after its first inference.

    ``browser`` is the process id of the browser in which the model runs: then the memory of it and all its descendants counts.
    """

    def __init__(self, browser: int | None = None) -> None:
        gc.freeze()  # what is older than the cell: to look through it for cycles would take long, and copy pages shared with the parent
        processes = _OwnProcess() if browser is None else _Browser(browser)
        self._read, self._reset = processes.read, processes.reset
        self._load_peak_mb: float | None = None
        self._apart = False
        try:
            self._start: Resident | None = self._read()[0]
            self._fresh = self._reset() or self._start.peak_mb <= self._start.now_mb
        except UnknownError as reason:
            self._start, self._unknown = None, str(reason)

    def loaded(self) -> None:
        """Call when the model is loaded and prepared. Frees what that left and no object needs, which would count as the model's."""
        if self._start is not None:
            self._load_peak_mb = self._peak()
            if self._load_peak_mb is not None:
                _free_unused()
                self._apart = self._reset()

    def ran(self) -> HostUse:
        """Call when the model has run once. Returns its use of memory so far."""
        if self._start is None:
            return HostUse(detail=f"not measured: {self._unknown}")
        try:
            resident, unique_mb, detail = self._read()
        except UnknownError as reason:
            return HostUse(detail=f"not measured: {reason}")
        last_mb = self._own_peak(resident)
        known = [peak for peak in (self._load_peak_mb, last_mb) if peak is not None]
        if not known:
            older = f"its high-water mark ({self._start.peak_mb:.0f} MiB) is older than the cell, and cannot be reset here"
            return HostUse(baseline_mb=self._start.now_mb, uss_mb=unique_mb, detail=f"no peak: {older}")
        return HostUse(
            baseline_mb=self._start.now_mb,
            load_peak_mb=self._load_peak_mb,
            run_peak_mb=last_mb if self._apart else None,
            peak_mb=max(known),
            uss_mb=unique_mb,
            detail=detail,
        )

    def _peak(self) -> float | None:
        try:
            return self._own_peak(self._read()[0])
        except UnknownError:
            return None  # ``ran`` reads again, and records the reason

    def _own_peak(self, resident: Resident) -> float | None:
        """The peak, or None if it is older than the cell: a mark that could not be reset must have risen since the start."""
        assert self._start is not None  # noqa: S101 - only called with a start value
        return resident.peak_mb if self._fresh or resident.peak_mb > self._start.peak_mb else None


def resident() -> Resident | None:
    """The memory of this process; None if the system does not report it (as in some sandboxes)."""
    if sys.platform == "darwin":
        return _footprint()
    now, peak = _status_mb("VmRSS"), _status_mb("VmHWM")
    return None if now is None or peak is None else Resident(now_mb=now, peak_mb=peak)


def reset_peak() -> bool:
    """Lower this process's high-water mark to its current size. False if the system does not allow it."""
    try:
        (_PROC / "self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def unique_mb() -> float | None:
    """Memory that no other process shares, in MiB (USS): what ending this process would free."""
    try:
        return _sum_mb(_PRIVATE, (_PROC / "self/smaps_rollup").read_text(encoding="ascii"))
    except OSError:
        return None


def address_space_mb() -> float | None:
    """Virtual size of this process in MiB, which RLIMIT_AS counts."""
    return _status_mb("VmSize")


def data_mb() -> float | None:
    """The private writable part of the address space in MiB, which RLIMIT_DATA counts. Mere reservations are not included."""
    return _status_mb("VmData")


def _free_unused() -> None:
    """Free objects in cycles, return to the system what glibc's allocator keeps of freed memory, and unload files of weights.

    Such a file stays resident as long as one tensor of it lives, perhaps as a constant of a converted graph. What is needed is read again.
    """
    gc.collect()
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if (trim := getattr(library, "malloc_trim", None)) is not None:  # musl has none
        trim(0)
    for begin, end in _mapped_weights():
        library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def _mapped_weights() -> list[tuple[int, int]]:
    """The address ranges of files of weights in memory, without those that were written to: unloading would lose the changes."""
    try:
        lines = (_PROC / "self/smaps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found, current = [], None
    for line in lines:
        if mapping := _MAPPING.match(line):
            current = (int(mapping[1], 16), int(mapping[2], 16)) if line.endswith(_WEIGHTS) else None
        elif current is not None and _UNCHANGED.match(line):
            found.append(current)
    return found


class _OwnProcess:
    """This process."""

    def read(self) -> tuple[Resident, float | None, str | None]:
        """Its size, its private memory, and what was measured if it is not the resident set.

        Raises:
            UnknownError: the system does not report it.
        """
        found = resident()
        if found is None:
            raise UnknownError("this system keeps no high-water mark of a process")
        detail = "the process's physical footprint, Metal's buffers included" if sys.platform == "darwin" else None
        return found, unique_mb(), detail

    def reset(self) -> bool:
        """Lower its high-water mark."""
        return reset_peak()


class _Browser:
    """A browser's processes, summed: the proportional set size (Pss) of each, and the amount by which its mark exceeds its size."""

    def __init__(self, root: int) -> None:
        self._root = root

    def read(self) -> tuple[Resident, float | None, str | None]:
        """Their total size and private memory, without processes that have exited.

        Raises:
            UnknownError: the system does not report the size of one, or no process is left.
        """
        if not sys.platform.startswith("linux"):
            raise UnknownError("the memory of browser processes is available only on Linux")
        sizes = [size for size in map(self._size, self._processes()) if size is not None]
        if not sizes:
            raise UnknownError("the browser's processes report no memory: they have exited, or this kernel does not report it")
        now, above, private = (sum(column) for column in zip(*sizes, strict=True))
        detail = f"of the {len(sizes)} processes of the browser; what they share counts once"
        return Resident(now_mb=now, peak_mb=now + above), private, detail

    def reset(self) -> bool:
        """Lower the high-water mark of each process."""
        done = [self._reset(pid) for pid in self._processes()]
        return all(done)

    def _processes(self) -> tuple[int, ...]:
        try:
            root = psutil.Process(self._root)
            return (self._root, *(child.pid for child in root.children(recursive=True)))
        except psutil.NoSuchProcess:
            return ()

    def _size(self, pid: int) -> tuple[float, float, float] | None:
        """Its proportional size, the amount by which its mark exceeds its resident size, and its private memory; None if it has exited.

        A zombie (exited but not waited for) is still listed, but its status has no memory lines.
        """
        folder = _PROC / str(pid)
        try:
            status = (folder / "status").read_text(encoding="ascii", errors="replace")
            now, peak = _line_mb(status, "VmRSS"), _line_mb(status, "VmHWM")
            if now is None:
                return None
            if peak is None:
                raise UnknownError("this kernel keeps no high-water mark of a process")
            rollup = (folder / "smaps_rollup").read_text(encoding="ascii")
        except ProcessLookupError:
            return None
        except FileNotFoundError as error:
            if not folder.exists():
                return None
            raise UnknownError("this kernel does not report shared memory (smaps_rollup)") from error
        except PermissionError as error:
            raise UnknownError(f"the browser's process {pid} does not show its memory: {error}") from error
        return _sum_mb(_PROPORTIONAL, rollup), max(0.0, peak - now), _sum_mb(_PRIVATE, rollup)

    def _reset(self, pid: int) -> bool:
        try:
            (_PROC / str(pid) / "clear_refs").write_text(_RESET_PEAK, encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            return True  # it has ended
        except OSError:
            return False
        return True


def _footprint() -> Resident | None:
    """The physical footprint, which macOS counts as this process's memory: resident, compressed, and GPU memory."""
    buffer = ctypes.create_string_buffer(_RUSAGE_BYTES)
    if ctypes.CDLL(_LIBRARY).proc_pid_rusage(os.getpid(), _RUSAGE_INFO_V4, buffer) != 0:
        return None
    now, peak = (struct.unpack_from("<Q", buffer.raw, offset)[0] / _MIB for offset in (_FOOTPRINT, _LONGEST_FOOTPRINT))
    return Resident(now_mb=now, peak_mb=peak)


def _status_mb(field: str) -> float | None:
    if not sys.platform.startswith("linux"):
        return None
    return _line_mb((_PROC / "self/status").read_text(encoding="ascii"), field)


def _line_mb(status: str, field: str) -> float | None:
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else None


def _sum_mb(lines: re.Pattern[str], text: str) -> float:
    return sum(int(kb) for kb in lines.findall(text)) / 1024
