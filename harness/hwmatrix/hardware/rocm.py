"""AMD GPUs as listed by the kernel's compute driver (KFD); rocminfo, if installed, adds their marketing names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import cgroups

_KFD: Final = Path("/sys/class/kfd/kfd")
_DEVICE: Final = Path("/dev/kfd")
_RENDER: Final = Path("/dev/dri")
_DRIVER: Final = Path("/sys/module/amdgpu/version")
_DRM: Final = Path("/sys/class/drm")
_ROCM: Final = (Path("/opt/rocm/.info/version"), Path("/opt/rocm/.info/version-dev"))
_AMD: Final = 0x1002
"""AMD's PCI vendor id (4098)."""
_MIB: Final = 2**20
_ROCMINFO_S: Final = 30
_AGENT: Final = re.compile(r"^\*+\s*\nAgent \d+\s*\n\*+\s*\n", re.MULTILINE)
_FIELD: Final = re.compile(r"^  ([A-Z][\w ./()]*?):[ \t]+(.*?)[ \t]*$", re.MULTILINE)


def detect() -> tuple[str, dict[str, Any]]:
    """Return the GPUs' names and their facts: driver, the version of an installed ROCm, and KFD's facts of each GPU.

    These are its architecture (gfx...), compute units and memory (MiB; ``used_mb`` and ``free_mb`` come from the graphics driver).

    Raises:
        UnavailableError: no driver, no GPU, or no permission to use it. The message says which, and what to do.
    """
    if not _KFD.is_dir():
        raise UnavailableError(
            "no AMD compute driver is loaded here (there is no /sys/class/kfd): it needs a machine with an AMD GPU and the amdgpu driver",
            error_type="gpu_no_driver",
        )
    gpus = topology(_KFD / "topology" / "nodes")
    if not gpus:
        raise UnavailableError("the AMD compute driver is loaded but lists no GPU that it supports", error_type="gpu_not_found")
    _check_access([_DEVICE, *(_RENDER / f"renderD{gpu['render_minor']}" for gpu in gpus)])
    names = marketing_names(_rocminfo())
    for gpu in gpus:
        gpu |= {"name": names.get(gpu["node"]), **_use(gpu)}
    shown = [str(gpu["name"] or gpu["architecture"]) for gpu in gpus]
    rocm = next((text.partition("-")[0] for path in _ROCM if (text := cgroups.read(path))), None)
    facts = {"driver": cgroups.read(_DRIVER), "rocm": rocm, "count": len(gpus), "processes": processes(), "gpus": gpus}
    return ", ".join(f"{shown.count(name)} x {name}" if shown.count(name) > 1 else name for name in dict.fromkeys(shown)), facts


def refreshed(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts with the current memory and processes.

    Raises:
        UnavailableError: the driver lists other GPUs than before.
    """
    nodes = [gpu["node"] for gpu in topology(_KFD / "topology" / "nodes")]
    if nodes != [gpu["node"] for gpu in facts["gpus"]]:
        raise UnavailableError("the AMD compute driver lists other GPUs than before", error_type="gpu_not_found")
    return facts | {"processes": processes(), "gpus": [gpu | _use(gpu) for gpu in facts["gpus"]]}


def topology(nodes: Path) -> list[dict[str, Any]]:
    """Return the GPUs among the nodes of KFD's topology, by node number. CPUs are nodes too, but without a gfx version."""
    found: list[dict[str, Any]] = []
    for folder in sorted(nodes.glob("*"), key=lambda path: int(path.name)):
        values = properties(folder / "properties")
        if values.get("vendor_id") != _AMD or not values.get("gfx_target_version"):
            continue
        found.append(
            {
                "index": len(found),
                "node": int(folder.name),
                "uuid": f"GPU-{values['unique_id']:016x}" if values.get("unique_id") else None,
                "architecture": architecture(values["gfx_target_version"]),
                "compute_units": values["simd_count"] // values["simd_per_cu"],
                "memory_mb": memory_mb(folder),
                "render_minor": values.get("drm_render_minor"),
            }
        )
    return found


def properties(path: Path) -> dict[str, int]:
    """Parse a properties file of KFD: a name and a number per line. For nodes hidden from this container, it cannot be read."""
    text = cgroups.read(path) or ""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}  # noqa: PLR2004 - a pair


def architecture(version: int) -> str:
    """Return the name for a gfx_target_version: major * 10000 + minor * 100 + stepping, the last two as hexadecimal digits.

    For example, 90010 is gfx90a and 110000 is gfx1100. The kernel's kfd_device.c defines the numbers, LLVM the names.
    """
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def marketing_names(text: str) -> dict[int, str]:
    """Return the names of the GPUs in rocminfo's output, by node."""
    names = {}
    for agent in _AGENT.split(text)[1:]:
        fields: dict[str, str] = {}
        for key, value in _FIELD.findall(agent):
            fields.setdefault(key, value)
        if fields.get("Device Type") == "GPU" and fields.get("Marketing Name") and fields.get("Node", "").isdigit():
            names[int(fields["Node"])] = fields["Marketing Name"]
    return names


def processes() -> int | None:
    """Return the number of processes with a compute context on any of the GPUs; None if the driver does not list them."""
    try:
        return sum(1 for _ in (_KFD / "proc").iterdir())
    except OSError:
        return None


def memory_mb(node: Path) -> int | None:
    """Return the memory of a node's banks in MiB, which for a GPU is its own memory; None if no bank is listed."""
    banks = [properties(path / "properties") for path in (node / "mem_banks").glob("*")]
    sizes = [bank["size_in_bytes"] for bank in banks if "size_in_bytes" in bank]
    return sum(sizes) // _MIB if sizes else None


def _use(gpu: dict[str, Any]) -> dict[str, Any]:
    """The memory use of a GPU according to the graphics driver (amdgpu: mem_info_vram_used, bytes); None if it is not reported."""
    device = _DRM / f"renderD{gpu['render_minor']}" / "device"
    total, used = cgroups.number(device / "mem_info_vram_total"), cgroups.number(device / "mem_info_vram_used")
    told = gpu.get("memory_mb")
    return {
        "memory_mb": total // _MIB if told is None and total is not None else told,
        "used_mb": None if used is None else used // _MIB,
        "free_mb": None if total is None or used is None else max(0, total - used) // _MIB,
    }


def _check_access(devices: list[Path]) -> None:
    missing = [str(device) for device in devices if not device.exists()]
    if missing:
        message = f"the AMD driver lists a GPU whose device nodes are missing: {', '.join(missing)}; give a container /dev/kfd and /dev/dri"
        raise UnavailableError(message, error_type="gpu_not_found")
    closed = [str(device) for device in devices if not os.access(device, os.R_OK | os.W_OK)]
    if closed:
        message = f"this user may not use {', '.join(closed)}: it must be in the groups that own them (mostly render and video)"
        raise UnavailableError(message, error_type="gpu_no_permission")


def _rocminfo() -> str:
    """Return rocminfo's output; empty if it is not installed or fails. KFD has already reported everything important."""
    program = shutil.which("rocminfo") or shutil.which("rocminfo", path="/opt/rocm/bin")
    if program is None:
        return ""
    try:
        return subprocess.run([program], capture_output=True, text=True, timeout=_ROCMINFO_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
