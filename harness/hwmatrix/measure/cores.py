"""Pins a timed cell to as many cores as it has threads, so that concurrent cells do not change its latency.

With more cores than threads, the scheduler moves threads between cores: measured with one thread on two cores, small models in OpenVINO
took 5 to 9 % longer than on one core. Where a processor has several kinds of cores, those of the fastest kind are used.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_DEVICES: Final = Path("/sys/devices")
"""Linux, Documentation/ABI/stable/sysfs-devices-system-cpu."""


def usable() -> tuple[int, ...]:
    """The numbers of the logical cores that this thread may use, ascending; on other systems than Linux those of the machine."""
    if not sys.platform.startswith("linux"):
        return tuple(range(os.cpu_count() or 1))
    return tuple(sorted(os.sched_getaffinity(0)))


def apart(count: int, devices: Path = _DEVICES) -> tuple[int, ...] | None:
    """``count`` usable cores of the fastest kind, on different physical cores as far as there are enough, in ascending order.

    Slower cores are used only if there are too few fast ones. Of equal cores the lowest numbers are left free, since they handle most
    interrupts. None if there are fewer cores or ``count`` is 0 (the runtime chooses), or outside Linux.
    """
    cores = usable()
    if not sys.platform.startswith("linux") or not 0 < count <= len(cores):
        return None
    taken: list[int] = []
    shared: list[int] = []
    physical: set[str] = set()
    for core in reversed(cores):
        siblings = _read(devices / "system/cpu" / f"cpu{core}" / "topology/thread_siblings_list") or str(core)
        (shared if siblings in physical else taken).append(core)
        physical.add(siblings)
    speeds = _speeds(devices)
    return tuple(sorted(sorted(taken + shared, key=lambda core: -speeds.get(core, 0))[:count]))


def described(devices: Path = _DEVICES) -> str | None:
    """The cores that this thread may use, and of which kind they are if the processor has several: ``6,7 (performance)``.

    None outside Linux, where a process has no such cores.
    """
    if not sys.platform.startswith("linux"):
        return None
    cores, speeds = usable(), _speeds(devices)
    listed, fastest = ",".join(map(str, cores)), max(speeds.values(), default=0)
    if len({*speeds.values()}) <= 1:
        return listed
    fast = sum(speeds.get(core, 0) == fastest for core in cores)
    return f"{listed} ({'performance' if fast == len(cores) else 'mixed' if fast else 'efficiency'})"


def _speeds(devices: Path) -> dict[int, int]:
    """How fast each core of the machine is, beside the others.

    Linux lists the performance cores of an Intel processor with two kinds in ``cpu_core/cpus``, and gives the capacity of each core of an
    ARM processor. Neither is there if all cores are alike.
    """
    present = _numbers(_read(devices / "system/cpu/present") or "")
    performance = _read(devices / "cpu_core/cpus")
    if performance is not None:
        return {core: int(core in _numbers(performance)) for core in present}
    return {core: int(_read(devices / f"system/cpu/cpu{core}/cpu_capacity") or 0) for core in present}


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers of a list as Linux writes it: ``0-3,8``."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return tuple(core for first, _, last in ranges for core in range(int(first), int(last or first) + 1))


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return None
