"""The devices that OpenVINO's runtime finds."""

from __future__ import annotations

from importlib import metadata, util
from typing import Any

from hwmatrix.errors import UnavailableError


def detect() -> tuple[str, dict[str, Any]]:
    """The runtime's devices with their full names. Starts the runtime: call it where threads may be started.

    Raises:
        UnavailableError: the package is not installed, or lists no device.
    """
    if util.find_spec("openvino") is None:
        raise UnavailableError("the package openvino is not installed", error_type="missing_package")
    import openvino  # noqa: PLC0415 - not in every image

    core = openvino.Core()
    devices = {str(device): str(core.get_property(device, "FULL_DEVICE_NAME")) for device in core.available_devices}
    if not devices:
        raise UnavailableError("OpenVINO's runtime lists no device", error_type="openvino_device_missing")
    return f"OpenVINO {metadata.version('openvino')}", {"version": openvino.__version__, "devices": devices}
