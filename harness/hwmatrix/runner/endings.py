"""How a child without a usable message ended, and how busy the machine was, as text."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

from hwmatrix.faults.catalogue import match
from hwmatrix.records import Status

if TYPE_CHECKING:
    from hwmatrix.records import Limits
    from hwmatrix.runner.forked import End

_LAST_LINES: Final = 3


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


def out_of_memory(end: End, hardware: str = "any") -> bool:
    """Whether a child died for lack of memory: the kernel killed it, or it printed a failed allocation last."""
    if killed_for_memory(end):
        return True
    gave_up = end.signal == signal.SIGABRT or bool(end.exit_code)
    last = last_lines(end)
    raised = last.rpartition("\n")[2].partition(":")[0] or None
    return gave_up and match(last, hardware=hardware, exception=raised).status is Status.OOM


def killed_for_memory(end: End) -> bool:
    """Whether the kernel killed a child for memory."""
    return end.signal == signal.SIGKILL and end.oom_killed


def last_lines(end: End) -> str:
    """The last lines that a child printed, where it says what ended it."""
    return "\n".join(end.log.splitlines()[-_LAST_LINES:])


def load() -> str:
    """How busy the whole machine was in the last minute: its load average per core (1: all cores busy)."""
    cores = os.cpu_count() or 1
    try:
        average = os.getloadavg()[0]
    except OSError:
        return "the load of the machine is unknown"
    return f"in the last minute the load of the machine was {average / cores:.1f} per core ({average:.1f} on {cores} cores)"
