"""Queries OpenVINO through the C library in its package, ten times faster than importing the package.

The functions and structures are those of OpenVINO's C API 2.0 (ov_core.h, ov_common.h). Nothing is compiled, and no thread stays.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

_NAMES: Final = {"win32": "openvino_c.dll", "darwin": "libopenvino_c*.dylib"}
_LINUX_NAME: Final = "libopenvino_c.so*"
_MIB: Final = 2**20
_MEMORY: Final = {"GPU": b"GPU_DEVICE_TOTAL_MEM_SIZE", "NPU": b"NPU_DEVICE_TOTAL_MEM_SIZE"}
"""The property with a device's memory in bytes, by kind of device. A CPU's memory is this machine's."""


class LibraryError(Exception):
    """A call of the library failed. The message has the function and its status code (ov_common.h)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """The runtime's build, its devices with their full names, and the memory in MiB of those with their own memory."""

    build: str
    devices: dict[str, str]
    memory_mb: dict[str, int]


class _Version(ctypes.Structure):
    _fields_ = (("build_number", ctypes.c_char_p), ("description", ctypes.c_char_p))


class _Devices(ctypes.Structure):
    _fields_ = (("names", ctypes.POINTER(ctypes.c_char_p)), ("size", ctypes.c_size_t))


def find(package: Path) -> Path | None:
    """Return the library in the package's folder; None if this installation keeps it elsewhere."""
    return next(iter(sorted((package / "libs").glob(_NAMES.get(sys.platform, _LINUX_NAME)))), None)


def ask(library: Path) -> Found:
    """Query the runtime's build and devices.

    Raises:
        OSError: the library cannot be loaded.
        AttributeError: it is another library, without the functions.
        LibraryError: a call failed.
    """
    if sys.platform == "win32":
        with os.add_dll_directory(str(library.parent)):
            return _Asked(ctypes.CDLL(str(library))).found()
    return _Asked(ctypes.CDLL(str(library))).found()


class _Asked:
    """The loaded library, and one core of the runtime."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._core = ctypes.c_void_p()

    def found(self) -> Found:
        """Query everything, and free what was allocated."""
        version = _Version()
        self._call("ov_get_openvino_version", ctypes.byref(version))
        build = (version.build_number or b"").decode()
        self._library.ov_version_free(ctypes.byref(version))
        self._call("ov_core_create", ctypes.byref(self._core))
        try:
            names = self._names()
            devices = {name: self._property(name, b"FULL_DEVICE_NAME") for name in names}
            memory = {name: self._property(name, key) for name in names if (key := _MEMORY.get(name.partition(".")[0]))}
        finally:
            self._library.ov_core_free(self._core)
        sizes = {name: int(text) // _MIB for name, text in memory.items() if text.isdigit()}
        return Found(build=build, devices={name: text.strip() or name for name, text in devices.items()}, memory_mb=sizes)

    def _names(self) -> list[str]:
        found = _Devices()
        self._call("ov_core_get_available_devices", self._core, ctypes.byref(found))
        names = [(found.names[index] or b"").decode() for index in range(found.size)]
        self._library.ov_available_devices_free(ctypes.byref(found))
        return names

    def _property(self, device: str, key: bytes) -> str:
        """Return a device's property as text; empty if the device does not have it."""
        value = ctypes.c_char_p()
        if self._library.ov_core_get_property(self._core, device.encode(), key, ctypes.byref(value)) != 0:
            return ""
        text = (value.value or b"").decode(errors="replace")
        self._library.ov_free(value)
        return text

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise LibraryError(f"{name} returned status {status}")
