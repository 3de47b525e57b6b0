"""How much of a machine a job may use: its cores, and how many parallel tasks fit into memory."""

from __future__ import annotations

import os
import sys
from typing import Final

import psutil

PARENT_MB: Final = 1024
"""MiB for the warm parent."""
_PIECE_MB: Final = 1024
"""The least MiB for each piece of work besides its memory limit."""


def at_once(*, threads: int, memory_mb: int, cores: int | None, jobs: int, total_mb: int | None = None) -> int:
    """Return how many pieces of work with so many threads and so much memory can run at the same time in one of ``jobs`` jobs.

    ``cores`` is the job's number of cores; None means all. ``total_mb`` is the memory of all jobs in MiB; None: the machine's. Outside
    Linux it is 1: there the cores are unknown, and children are separate interpreters, which no worker could fork.
    """
    if not sys.platform.startswith("linux"):
        return 1
    mine = cores if cores is not None else len(os.sched_getaffinity(0))
    room_mb = (total_mb or psutil.virtual_memory().total // 2**20) // jobs - PARENT_MB
    return max(1, min(mine // max(1, threads), room_mb // (memory_mb + scratch_mb(memory_mb))))


def scratch_mb(memory_mb: int) -> int:
    """Return the MiB for a piece of work besides its memory limit: its part of the container's /tmp, and of its worker.

    A cell in a reduced precision writes copies of its graph there, so models that are allowed much memory get more.
    """
    return max(_PIECE_MB, memory_mb // 4)


def container_mb(memory_mb: int, pieces: int) -> int:
    """Return the memory in MiB of a container for so many parallel pieces of work, at most the machine's own memory."""
    return min((memory_mb + scratch_mb(memory_mb)) * pieces + PARENT_MB, psutil.virtual_memory().total // 2**20)


def core_sets(workers: int) -> list[str | None]:
    """Return disjoint sets of the cores that this thread may use, one per worker; None: all cores of the machine.

    It is None outside Linux, and for a single worker whose thread is not restricted.
    """
    if not sys.platform.startswith("linux"):
        return [None] * max(1, workers)
    cores = sorted(os.sched_getaffinity(0))
    if workers <= 1 and len(cores) == os.cpu_count():
        return [None]
    workers = max(1, workers)
    share = max(1, len(cores) // workers)
    return [",".join(str(core) for core in cores[(index * share) % len(cores) :][:share]) for index in range(workers)]
