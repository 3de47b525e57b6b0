"""Memory of this process: what it had, its high-water mark, and what is its own.

Linux only: elsewhere there is no mark that can be reset, and nothing is reported rather than something else.
``getrusage`` is not used: its maximum is inherited over exec and cannot be reset.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_ROLLUP: Final = Path("/proc/self/smaps_rollup")
_RESET_PEAK: Final = "5"
"""proc(5): writing 5 resets the peak resident set size to the current one."""
_PRIVATE: Final = re.compile(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resident:
    """Resident memory in MiB: now, and the highest since the mark was reset."""

    now_mb: float
    peak_mb: float


def resident() -> Resident | None:
    """What /proc/self/status says, or None where there is no such file, or a kernel (that of a sandbox) without these lines."""
    now, peak = _status_mb("VmRSS"), _status_mb("VmHWM")
    return None if now is None or peak is None else Resident(now_mb=now, peak_mb=peak)


def reset_peak() -> bool:
    """Lower the high-water mark to the present size. False where the kernel does not allow it."""
    try:
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def unique_mb() -> float | None:
    """Memory that no other process shares, in MiB (USS): what ending this process would free."""
    try:
        return sum(int(kb) for kb in _PRIVATE.findall(_ROLLUP.read_text(encoding="ascii"))) / 1024
    except OSError:
        return None


def address_space_mb() -> float | None:
    """Virtual size of this process in MiB, which RLIMIT_AS counts."""
    return _status_mb("VmSize")


def data_mb() -> float | None:
    """The part of it that is private and can be written, in MiB: what RLIMIT_DATA counts. Mere reservations are no part of it."""
    return _status_mb("VmData")


def _status_mb(field: str) -> float | None:
    if not sys.platform.startswith("linux"):
        return None
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return _mb(line.split(":", 1)[1])
    return None


def _mb(text: str) -> float:
    return int(text.split(maxsplit=1)[0]) / 1024
