"""Identifies processes and checks whether they are alive. Process IDs are reused, so a mark includes the start time."""

from __future__ import annotations

import os
from typing import Final

import psutil

START_TOLERANCE_S: Final = 5.0
"""The tolerance in seconds: psutil derives start times from the boot time, which moves when the clock is set."""


def own_mark() -> str:
    """Return the mark of this process: its PID and its start time."""
    return f"{os.getpid()}:{psutil.Process().create_time():.2f}"


def living(mark: str) -> int | None:
    """Return the PID of the process that a mark identifies, if it is alive; None if it has ended, or if ``mark`` is invalid."""
    number, _, started = mark.strip().partition(":")
    try:
        lives = abs(psutil.Process(int(number)).create_time() - float(started)) < START_TOLERANCE_S
    except (ValueError, psutil.NoSuchProcess):
        return None
    return int(number) if lives else None
