"""The cores of a timed cell: as many as it has threads, so that it takes as long beside other cells as alone.

With more cores than threads, the scheduler moves threads between cores: measured with one thread on two cores, small models in OpenVINO
took 5 to 9 % longer than on one core.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_CORES: Final = Path("/sys/devices/system/cpu")
"""Linux, Documentation/ABI/stable/sysfs-devices-system-cpu."""


def usable() -> tuple[int, ...]:
    """The numbers of the logical cores that this thread may use, ascending; on other systems than Linux those of the machine."""
    if not sys.platform.startswith("linux"):
        return tuple(range(os.cpu_count() or 1))
    return tuple(sorted(os.sched_getaffinity(0)))


def apart(count: int, folder: Path = _CORES) -> tuple[int, ...] | None:
    """``count`` usable cores, on different physical cores as far as there are enough, in ascending order.

    The lowest numbers are left free, since they handle most interrupts. None if there are fewer cores, or outside Linux.
    """
    cores = usable()
    if not sys.platform.startswith("linux") or count > len(cores):
        return None
    taken: list[int] = []
    shared: list[int] = []
    physical: set[str] = set()
    for core in reversed(cores):
        siblings = _siblings(core, folder)
        (shared if siblings in physical else taken).append(core)
        physical.add(siblings)
    return tuple(sorted((taken + shared)[:count]))


def _siblings(core: int, folder: Path) -> str:
    """The logical cores of its physical core, as the kernel writes them; its own number if the kernel does not tell."""
    try:
        return (folder / f"cpu{core}" / "topology" / "thread_siblings_list").read_text(encoding="ascii").strip()
    except OSError:
        return str(core)
