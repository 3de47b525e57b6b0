"""The devices that OpenVINO's runtime finds."""

from __future__ import annotations

import logging
from importlib import util
from pathlib import Path
from typing import Any, Final

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import openvino_library
from hwmatrix.hardware.openvino_library import Found, LibraryError

_LOG: Final = logging.getLogger(__name__)


def detect() -> tuple[str, dict[str, Any]]:
    """Return the runtime's devices with their full names, and the memory (MiB) of those with their own memory.

    The package is imported only if its C library cannot be queried. Nothing is compiled either way.

    Raises:
        UnavailableError: the package is not installed, or lists no device.
    """
    spec = util.find_spec("openvino")
    if spec is None:
        raise UnavailableError("the package openvino is not installed", error_type="missing_package")
    found = _by_library(list(spec.submodule_search_locations or ())) or _by_import()
    if not found.devices:
        raise UnavailableError("OpenVINO's runtime lists no device", error_type="openvino_device_missing")
    facts: dict[str, Any] = {"version": found.build, "devices": found.devices, "device_memory_mb": found.memory_mb}
    return f"OpenVINO {found.build.partition('-')[0]}", facts


def _by_library(folders: list[str]) -> Found | None:
    """Query the C library. None if there is none, or it has another version than this module supports."""
    library = next((path for folder in folders if (path := openvino_library.find(Path(folder)))), None)
    if library is None:
        return None
    try:
        return openvino_library.ask(library)
    except (OSError, AttributeError, LibraryError) as error:
        _LOG.info("OpenVINO's C library %s cannot be queried (%s): importing the package", library, error)
        return None


def _by_import() -> Found:
    import openvino

    core = openvino.Core()
    devices = {str(device): str(core.get_property(device, "FULL_DEVICE_NAME")).strip() for device in core.available_devices}
    return Found(build=str(openvino.__version__), devices=devices, memory_mb={})
