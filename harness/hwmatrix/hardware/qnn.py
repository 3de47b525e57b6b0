"""Qualcomm's HTP, emulated by QNN on x86-64 Linux: the package, and whether it can be loaded here."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import cgroups, torch_build
from hwmatrix.hardware.assignments import constants
from hwmatrix.hardware.onnxruntime import installed as onnxruntime_installed

if TYPE_CHECKING:
    from collections.abc import Mapping

PROVIDER: Final = "QNNExecutionProvider"
_MACHINES: Final = frozenset({"x86_64", "AMD64"})
_GLIBC: Final = (2, 35)
"""The glibc that the wheel's libraries were linked with (onnxruntime-qnn 2.7.0: manylinux_2_35)."""
_LIBRARY: Final = "libonnxruntime_providers_qnn.so"
_SDK_VARIABLES: Final = ("QNN_SDK_ROOT", "QAIRT_SDK_ROOT")
_SDKS: Final = Path("/opt/qcom/aistack")
"""The folder where Qualcomm's installer puts its SDKs: qairt/<version>, qnn/<version>."""
_SDK_VERSION: Final = re.compile(r"^version:\s*(\S+)", re.MULTILINE)


def detect() -> tuple[str, dict[str, Any]]:
    """Return QNN's version and related versions. Loading the execution provider starts threads, so do not call this before forking.

    Raises:
        UnavailableError: another system or processor (``qnn_platform``), a C library that is too old (``qnn_glibc``), no package
            (``missing_package``), or the runtime does not list the provider (``qnn_provider_missing``).
    """
    name, facts = installed()
    if not provider_devices():
        raise UnavailableError(f"ONNX Runtime lists no device of {PROVIDER}", error_type="qnn_provider_missing")
    return name, facts | {"registered": True}


def installed() -> tuple[str, dict[str, Any]]:
    """Return what is known without loading the provider. ``registered`` is None.

    Raises:
        UnavailableError: as for :func:`detect`, except that the runtime is not queried.
    """
    _check_platform(sys.platform, platform.machine(), *platform.libc_ver())
    spec, kit = util.find_spec("onnxruntime_qnn"), sdk(os.environ)
    if spec is None:
        other = f" (Qualcomm's own SDK in {kit['folder']} is not used)" if kit else ""
        raise UnavailableError(f"the package onnxruntime-qnn is not installed{other}", error_type="missing_package")
    folder = Path(next(iter(spec.submodule_search_locations or ()), ""))
    if not (folder / _LIBRARY).is_file():
        raise UnavailableError(f"the package onnxruntime-qnn has no {_LIBRARY} in {folder}", error_type="qnn_provider_missing")
    told = constants(folder / "build_and_package_info.py")
    facts = {
        "qairt": told.get("qnn_version"),
        "onnxruntime_qnn": told.get("__version__"),
        "onnxruntime": onnxruntime_installed()[1]["version"],
        "architecture": platform.machine(),
        "glibc": platform.libc_ver()[1],
        "execution": "emulated",
        "registered": None,
        "sdk": kit,
        "memory_mb": None,
        "memory_reason": "the emulation computes in the host's memory; a chip's own is not known here",
    }
    return f"Qualcomm HTP, emulated on x86-64 (QAIRT {facts['qairt']})", facts


def sdk(environment: Mapping[str, str], installed_in: Path = _SDKS) -> dict[str, str | None] | None:
    """Return the folder and version of Qualcomm's own SDK, found by its variables or its installer's folder; None if there is none."""
    named = [Path(environment[name]) for name in _SDK_VARIABLES if environment.get(name)]
    newest = sorted(installed_in.glob("*/*/sdk.yaml"), key=lambda path: torch_build.number(path.parent.name), reverse=True)
    for folder in (*named, *(path.parent for path in newest)):
        text = cgroups.read(folder / "sdk.yaml")
        if text is not None:
            found = _SDK_VERSION.search(text)
            return {"folder": str(folder), "version": found[1] if found else None}
    return None


def provider_devices() -> list[Any]:
    """Return ONNX Runtime's devices of the provider, which is registered on first use."""
    import onnxruntime
    import onnxruntime_qnn

    def listed() -> list[Any]:
        return [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]

    found = listed()
    if not found:
        onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
        found = listed()
    return found


def _check_platform(system: str, machine: str, libc: str, version: str) -> None:
    """Check that the host can load the emulation, which is a library for one kind of host.

    Raises:
        UnavailableError: it cannot.
    """
    if system != "linux" or machine not in _MACHINES:
        message = f"the emulation of Qualcomm's HTP runs on x86-64 Linux, but this is {machine or 'an unknown processor'} {system}"
        raise UnavailableError(message, error_type="qnn_platform")
    wanted = ".".join(str(part) for part in _GLIBC)
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if libc != "glibc" or parts < _GLIBC:
        found = f"{libc} {version}" if libc else "another C library"
        raise UnavailableError(f"QNN's libraries need glibc {wanted} or newer, but this system has {found}", error_type="qnn_glibc")
