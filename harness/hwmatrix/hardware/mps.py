"""Apple GPUs, which PyTorch uses through Metal: this Mac's chip and memory, from sysctl."""

from __future__ import annotations

import platform
import subprocess
from typing import Any, Final

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import sysctl

_NAMES: Final = ("machdep.cpu.brand_string", "hw.model", "hw.memsize", "hw.optional.arm64", "sysctl.proc_translated")
_MIB: Final = 2**20


def detect() -> tuple[str, dict[str, Any]]:
    """Return the chip's name and its facts. Memory (MiB) is shared by CPU and GPU.

    Raises:
        UnavailableError: not a Mac, a Mac without Apple silicon, or a translated Python. The message says which.
    """
    if platform.system() != "Darwin":
        raise UnavailableError(f"this is {platform.system()}: MPS needs macOS on Apple silicon", error_type="gpu_not_found")
    values = _values()
    if values.get("hw.optional.arm64") != "1":
        chip = values.get("machdep.cpu.brand_string", platform.machine())
        raise UnavailableError(f"this Mac has no Apple silicon ({chip}): PyTorch's MPS needs it", error_type="gpu_not_found")
    if values.get("sysctl.proc_translated") == "1" or platform.machine() != "arm64":
        message = "this Python is built for Intel and translated by Rosetta: use a Python for arm64"
        raise UnavailableError(message, error_type="gpu_not_found")
    memory = values.get("hw.memsize", "")
    facts = {
        "model": values.get("hw.model"),
        "memory_mb": int(memory) // _MIB if memory.isdigit() else None,
        "macos": platform.mac_ver()[0],
    }
    return values.get("machdep.cpu.brand_string", "Apple silicon"), facts


def _values() -> dict[str, str]:
    try:
        return sysctl.ask(_NAMES)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{sysctl.PROGRAM} does not answer: {error}", error_type="gpu_not_found") from error
