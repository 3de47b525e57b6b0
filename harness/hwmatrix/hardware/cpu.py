"""The processor and memory of this machine, and the part of them that this container may use."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any, Final

import psutil

_CPUINFO: Final = Path("/proc/cpuinfo")
_FLAGS: Final = ("avx", "avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "fma", "neon", "asimd", "sve")
_CGROUP: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 60
"""cgroup v1 writes a number near 2**63 where there is no limit."""


def detect() -> tuple[str, dict[str, Any]]:
    """The processor's name, and its facts. Memory in MiB; ``cores`` counts logical ones."""
    info = cpuinfo()
    memory = psutil.virtual_memory()
    flags = set(info.get("flags", info.get("Features", "")).split())
    facts: dict[str, Any] = {
        "vendor": info.get("vendor_id", info.get("CPU implementer")),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False),
        "usable_cores": usable_cores(),
        "instructions": [flag for flag in _FLAGS if flag in flags],
        "memory_mb": memory.total // 2**20,
        "available_memory_mb": memory.available // 2**20,
        "memory_pressure_percent": memory.percent,
        "memory_limit_mb": memory_limit_mb(),
        "system": f"{platform.system()} {platform.release()}",
    }
    return info.get("model name") or platform.processor() or platform.machine(), facts


def cpuinfo(path: Path = _CPUINFO) -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo; empty where there is no such file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def usable_cores() -> float:
    """Cores that this process may use: its affinity, cut by a cgroup's quota."""
    affinity = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else (os.cpu_count() or 1)
    quota = _cpu_quota()
    return min(float(affinity), quota) if quota else float(affinity)


def memory_limit_mb() -> int | None:
    """The cgroup's memory limit in MiB, or None where there is none."""
    for path in (_CGROUP / "memory.max", _CGROUP / "memory" / "memory.limit_in_bytes"):
        text = _read(path)
        if text is not None and text.isdigit() and int(text) < _UNLIMITED:
            return int(text) // 2**20
    return None


def _cpu_quota() -> float | None:
    text = _read(_CGROUP / "cpu.max")
    if text:
        quota, _, period = text.partition(" ")
        return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None
    quota_us, period_us = _read(_CGROUP / "cpu" / "cpu.cfs_quota_us"), _read(_CGROUP / "cpu" / "cpu.cfs_period_us")
    if quota_us and period_us and int(quota_us) > 0:
        return int(quota_us) / int(period_us)
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
