"""How a child without a usable message ended, and how busy the machine was, as text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hwmatrix.records import Limits
    from hwmatrix.runner.forked import End


def describe(end: End, limits: Limits) -> str:
    """The reason: an invalid message, timeout, memory, or signal or exit code with the last line that the child printed."""
    if end.refused is not None:
        return f"the process sent an invalid message: {end.refused}"
    if end.timed_out:
        return f"timed out after {limits.timeout_s:g} s"
    if end.oom_killed:
        return "the kernel killed it for memory"
    how = f"signal {end.signal}" if end.signal is not None else f"exit code {end.exit_code}"
    last = end.log.splitlines()[-1] if end.log else "it printed nothing"
    return f"the process ended ({how}): {last}"


def load() -> str:
    """How busy the whole machine was in the last minute: its load average per core (1: all cores busy)."""
    cores = os.cpu_count() or 1
    try:
        average = os.getloadavg()[0]
    except OSError:
        return "the load of the machine is unknown"
    return f"in the last minute the load of the machine was {average / cores:.1f} per core ({average:.1f} on {cores} cores)"
