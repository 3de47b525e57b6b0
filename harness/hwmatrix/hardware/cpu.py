"""The CPU and memory of this machine, and the part of them that this container may use."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import psutil

from hwmatrix.basics.plain_yaml import parsed
from hwmatrix.hardware import cgroups, memory, sysctl
from hwmatrix.records import Instructions

_CPUINFO: Final = Path("/proc/cpuinfo")
_MAC_FLAGS: Final = {"AVX1.0": "avx", "AVX2": "avx2", "AVX512F": "avx512f", "FMA": "fma", "F16C": "f16c"}
"""The names of an Intel Mac in machdep.cpu.features and machdep.cpu.leaf7_features."""
_MAC_OPTIONAL: Final = {
    "hw.optional.neon": "neon",
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_SME": "sme",
}
_MAC_NAMES: Final = (
    *("machdep.cpu.brand_string", "machdep.cpu.vendor", "machdep.cpu.features", "machdep.cpu.leaf7_features", memory.MAC_LEVEL),
    *_MAC_OPTIONAL,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processor:
    """Facts about a processor from the system. ``instructions`` are the relevant ones; None if unknown."""

    name: str
    vendor: str | None
    instructions: tuple[str, ...] | None


def detect() -> tuple[str, dict[str, Any]]:
    """Return the processor's name and its facts. Memory in MiB.

    ``cores`` counts logical cores, ``usable_cores`` those that this process may use (its affinity, its cgroups' set and quota).
    """
    limits, values = cgroups.limits(), _sysctl()
    processor = _mac_processor(values) if values else _processor()
    facts: dict[str, Any] = {
        "vendor": processor.vendor,
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False),
        "usable_cores": usable_cores(limits),
        "instructions": None if processor.instructions is None else list(processor.instructions),
        **memory.facts(limits, mac_level=values.get(memory.MAC_LEVEL)),
        "system": f"{platform.system()} {platform.release()}",
    }
    return processor.name, facts


def refreshed(_facts: dict[str, Any]) -> dict[str, Any]:
    """Detect everything again, which takes a millisecond."""
    return detect()[1]


def cpuinfo(path: Path = _CPUINFO) -> dict[str, str]:
    """Return the first processor's entry of /proc/cpuinfo; empty if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def usable_cores(limits: cgroups.Limits | None = None) -> float:
    """Return the number of cores that this process may use: its affinity, limited by the sets and quotas of its cgroups."""
    affinity = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else (os.cpu_count() or 1)
    found = limits or cgroups.limits()
    return min([float(affinity), *(float(limit) for limit in (found.cpuset, found.cores) if limit)])


def _processor() -> Processor:
    """Read /proc/cpuinfo. On other systems (Windows) use Python's own information, which has no instructions."""
    info = cpuinfo()
    flags = info.get("flags", info.get("Features"))
    known = None if flags is None else tuple(flag for flag in map(str, Instructions) if flag in flags.split())
    maker, part = _arm_names(info)
    name = info.get("model name") or part or info.get("cpu") or info.get("uarch")
    if name:
        return Processor(name=name, vendor=info.get("vendor_id") or maker, instructions=known)
    generic = platform.processor()  # may start a program, so only now
    described = ", " in generic  # Windows: "Intel64 Family 6 Model 140 Stepping 1, GenuineIntel"
    vendor = maker or (generic.rpartition(", ")[2] if described else None)
    return Processor(name=generic or platform.machine(), vendor=vendor, instructions=known)


def _arm_names(info: dict[str, str]) -> tuple[str | None, str | None]:
    """The maker and the name of an ARM processor, for which the kernel reports only numbers."""
    if "CPU implementer" not in info:
        return None, None
    table = _processors()
    maker = table["implementers"].get(info["CPU implementer"], info["CPU implementer"])
    part = table["parts"].get(maker, {}).get(info.get("CPU part"))
    return maker, f"{maker} {part}" if part else None


@functools.cache
def _processors() -> dict[str, Any]:

    text = (importlib.resources.files("hwmatrix.hardware") / "processors.yaml").read_text(encoding="utf-8")
    table: dict[str, Any] = parsed(text)
    return table


def _sysctl() -> dict[str, str]:
    """Values from macOS's sysctl; empty on other systems, or if it does not answer."""
    if platform.system() != "Darwin":
        return {}
    try:
        return sysctl.ask(_MAC_NAMES)
    except (OSError, subprocess.TimeoutExpired):
        return {}


def _mac_processor(values: dict[str, str]) -> Processor:
    name = values.get("machdep.cpu.brand_string", platform.machine())
    words = f"{values.get('machdep.cpu.features', '')} {values.get('machdep.cpu.leaf7_features', '')}".split()
    flags = {_MAC_FLAGS[word] for word in words if word in _MAC_FLAGS}
    flags |= {flag for key, flag in _MAC_OPTIONAL.items() if values.get(key) == "1"}
    vendor = values.get("machdep.cpu.vendor") or ("Apple" if name.startswith("Apple") else None)
    return Processor(name=name, vendor=vendor, instructions=tuple(flag for flag in map(str, Instructions) if flag in flags))
