"""How much of a machine a job may use: its cores, and for how many parallel tasks there is memory."""

from __future__ import annotations

import os
import sys
from typing import Final

import psutil

PARENT_MB: Final = 1024
"""What the warm parent may take."""
PIECE_MB: Final = 1024
"""What a piece of work may take besides the memory it is limited to: its part of the container's /tmp, and of its worker."""


def at_once(*, threads: int, memory_mb: int, cores: int | None, jobs: int) -> int:
    """How many pieces of work of so many threads and so much memory may run at the same time in one of ``jobs`` jobs.

    ``cores`` is how many the job has; None: all. One where this system does not tell its cores: there children are interpreters of
    their own, which no worker could fork.
    """
    if not sys.platform.startswith("linux"):
        return 1
    mine = cores if cores is not None else len(os.sched_getaffinity(0))
    room_mb = psutil.virtual_memory().total // 2**20 // jobs - PARENT_MB
    return max(1, min(mine // max(1, threads), room_mb // (memory_mb + PIECE_MB)))


def container_mb(memory_mb: int, pieces: int) -> int:
    """The memory of a container in which so many pieces of work run at once, within what this machine has, in MiB."""
    return min((memory_mb + PIECE_MB) * pieces + PARENT_MB, psutil.virtual_memory().total // 2**20)


def core_sets(workers: int) -> list[str | None]:
    """Disjoint sets of cores, one a worker; None (all cores) where there is one worker or this system cannot tell."""
    if workers <= 1 or not sys.platform.startswith("linux"):
        return [None] * max(1, workers)
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // workers)
    return [",".join(str(core) for core in cores[(index * share) % len(cores) :][:share]) for index in range(workers)]
