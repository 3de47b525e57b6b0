"""The devices that OpenVINO lists, and the inputs of its graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from hwmatrix.errors import UnavailableError


def name_of(core: Any, device: str) -> str:
    """A device of an ``openvino.Core``, with its full name.

    Raises:
        UnavailableError: the runtime does not list it (``openvino_device_missing``).
        RuntimeError: it lists none, not even the CPU, since its plugin cannot be loaded; the message says why.
    """
    import openvino

    devices = list(core.available_devices)
    if not devices:
        core.get_property("CPU", "FULL_DEVICE_NAME")
    if device.split(".", maxsplit=1)[0] not in {each.split(".")[0] for each in devices}:
        listed = ", ".join(devices) or "none"
        message = f"OpenVINO {openvino.__version__} has no device {device!r} here (it lists: {listed})"
        raise UnavailableError(message, error_type="openvino_device_missing")
    return f"{device}: {core.get_property(device, 'FULL_DEVICE_NAME')}"


def input_names(program: Any) -> set[str]:
    """The names of a program's inputs."""
    return {name for port in program.inputs for name in port.get_names()}


def tensor(array: np.ndarray[Any, Any], port: Any) -> Any:
    """An array as a tensor of the element type of an input."""
    import openvino

    return openvino.Tensor(np.ascontiguousarray(array.astype(port.get_element_type().to_dtype(), copy=False)))
