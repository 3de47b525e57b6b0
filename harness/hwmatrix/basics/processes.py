"""Which process did something, and whether it still lives: numbers of processes are used again, so its start is a part of its mark."""

from __future__ import annotations

import os
from typing import Final

import psutil

START_TOLERANCE_S: Final = 5.0
"""psutil derives start times from the boot time, which moves when the clock is set."""


def own_mark() -> str:
    """This process: its number and when it started."""
    return f"{os.getpid()}:{psutil.Process().create_time():.2f}"


def living(mark: str) -> int | None:
    """The number of the process that a mark stands for, if it lives; None for one that has ended, and for what is no mark."""
    number, _, started = mark.strip().partition(":")
    try:
        lives = abs(psutil.Process(int(number)).create_time() - float(started)) < START_TOLERANCE_S
    except (ValueError, psutil.NoSuchProcess):
        return None
    return int(number) if lives else None
