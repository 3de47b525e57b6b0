"""Qualcomm's HTP as QNN emulates it on an x86-64 Linux host: the package, and whether it can be loaded here."""

from __future__ import annotations

import platform
import sys
from importlib import import_module, metadata, util
from typing import Any, Final

from hwmatrix.errors import UnavailableError

PROVIDER: Final = "QNNExecutionProvider"
_MACHINES: Final = frozenset({"x86_64", "AMD64"})
_GLIBC: Final = (2, 35)
"""What the wheel's libraries were linked with (onnxruntime-qnn 2.7.0: manylinux_2_35)."""


def detect() -> tuple[str, dict[str, Any]]:
    """QNN's version and the versions around it. Loads the execution provider: call it where threads may be started.

    Raises:
        UnavailableError: another system or processor (``qnn_platform``), a C library that is too old (``qnn_glibc``), no package
            (``missing_package``), or the runtime does not list the provider (``qnn_provider_missing``).
    """
    _check_platform(sys.platform, platform.machine(), *platform.libc_ver())
    if util.find_spec("onnxruntime_qnn") is None:
        raise UnavailableError("the package onnxruntime-qnn is not installed", error_type="missing_package")
    devices = provider_devices()
    if not devices:
        raise UnavailableError(f"ONNX Runtime lists no device of {PROVIDER}", error_type="qnn_provider_missing")
    qairt = str(import_module("onnxruntime_qnn.build_and_package_info").qnn_version)
    facts = {
        "qairt": qairt,
        "onnxruntime_qnn": metadata.version("onnxruntime-qnn"),
        "onnxruntime": metadata.version("onnxruntime"),
        "architecture": platform.machine(),
        "glibc": platform.libc_ver()[1],
        "execution": "emulated",
    }
    return f"Qualcomm HTP, emulated on x86-64 (QAIRT {qairt})", facts


def provider_devices() -> list[Any]:
    """ONNX Runtime's devices of the provider, which is registered when first asked for."""
    import onnxruntime  # noqa: PLC0415 - not in every image, and starts a thread
    import onnxruntime_qnn  # noqa: PLC0415

    def listed() -> list[Any]:
        return [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]

    found = listed()
    if not found:
        onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
        found = listed()
    return found


def _check_platform(system: str, machine: str, libc: str, version: str) -> None:
    """The emulation is a library for one kind of host.

    Raises:
        UnavailableError: this is another one.
    """
    if system != "linux" or machine not in _MACHINES:
        message = f"the emulation of Qualcomm's HTP runs on x86-64 Linux, and this is {machine or 'an unknown processor'} {system}"
        raise UnavailableError(message, error_type="qnn_platform")
    wanted = ".".join(str(part) for part in _GLIBC)
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if libc != "glibc" or parts < _GLIBC:
        found = f"{libc} {version}" if libc else "another C library"
        raise UnavailableError(f"QNN's libraries need glibc {wanted} or newer, and here is {found}", error_type="qnn_glibc")
