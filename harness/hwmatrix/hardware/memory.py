"""This machine's memory: the total, how much of it this process may still use, and whether it is short."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import psutil

from hwmatrix.hardware import cgroups

if TYPE_CHECKING:
    from pathlib import Path

_MIB: Final = 2**20
_STALLED: Final = re.compile(r"^(some|full) avg10=([\d.]+)", re.MULTILINE)
_MAC_LEVELS: Final = {"1": "normal", "2": "warning", "4": "critical"}
MAC_LEVEL: Final = "kern.memorystatus_vm_pressure_level"
"""The macOS sysctl with the memory pressure level, which must be requested by name."""


def facts(limits: cgroups.Limits, root: Path = cgroups.ROOT, mac_level: str | None = None) -> dict[str, Any]:
    """Return the facts about memory, in MiB. ``memory_left_mb`` is what this process may still use: the least of free memory and limits.

    ``memory_pressure_percent`` is the share in use. ``memory_stalled_percent`` is the share of the last ten seconds in which some task
    waited for memory, ``memory_all_stalled_percent`` in which all tasks did (the kernel's pressure stall information, of this container if
    it has its own). macOS reports a level instead. A value that the system does not report is None.
    """
    memory = psutil.virtual_memory()
    available = memory.available // _MIB
    stalled = dict(_STALLED.findall(limits.stalled or cgroups.read(root / "proc/pressure/memory") or ""))
    return {
        "memory_mb": memory.total // _MIB,
        "available_memory_mb": available,
        "memory_limit_mb": limits.memory_mb,
        "memory_left_mb": available if limits.left_mb is None else min(available, limits.left_mb),
        "memory_pressure_percent": memory.percent,
        "memory_stalled_percent": float(stalled["some"]) if "some" in stalled else None,
        "memory_all_stalled_percent": float(stalled["full"]) if "full" in stalled else None,
        "memory_pressure_level": _MAC_LEVELS.get(mac_level or ""),
    }
