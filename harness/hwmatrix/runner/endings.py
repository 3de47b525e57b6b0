"""How a child that told nothing ended, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hwmatrix.records import Limits
    from hwmatrix.runner.forked import End


def describe(end: End, limits: Limits) -> str:
    """Time-out, memory, signal or exit code, with the last line that it printed."""
    if end.timed_out:
        return f"no end within {limits.timeout_s:g} s"
    if end.oom_killed:
        return "the kernel killed it for memory"
    how = f"signal {end.signal}" if end.signal is not None else f"exit code {end.exit_code}"
    last = end.log.splitlines()[-1] if end.log else "it printed nothing"
    return f"the process ended ({how}): {last}"
