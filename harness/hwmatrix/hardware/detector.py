"""Detects every kind of hardware that a target can use, one by one. Unavailable hardware has a reason."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import logging
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.clock import utc_now
from hwmatrix.errors import UnavailableError
from hwmatrix.hardware.cpu import cpuinfo
from hwmatrix.records import Backend, Detection

if TYPE_CHECKING:
    from collections.abc import Iterable

DETECTORS: Final[dict[Backend, str]] = {
    Backend.CPU: "hwmatrix.hardware.cpu",
    Backend.OPENVINO: "hwmatrix.hardware.openvino",
    Backend.ONNXRUNTIME: "hwmatrix.hardware.onnxruntime",
    Backend.CUDA: "hwmatrix.hardware.cuda",
    Backend.ROCM: "hwmatrix.hardware.rocm",
    Backend.MPS: "hwmatrix.hardware.mps",
    Backend.WEBGPU: "hwmatrix.hardware.browser",
    Backend.WEBNN: "hwmatrix.hardware.webnn",
    Backend.QNN: "hwmatrix.hardware.qnn",
}
HOST_VISIBLE: Final = frozenset({Backend.CUDA, Backend.ROCM, Backend.MPS})
"""Backends whose hardware this machine must show, whatever an image brings along: asked before an image is built."""
LIGHT: Final = frozenset({Backend.ONNXRUNTIME, Backend.QNN, Backend.WEBNN})
"""Backends whose module has ``installed``: what is known without importing their framework or opening a browser."""
PROBED: Final = frozenset({Backend.WEBNN})
"""Those of them that are here only once they were started: asked lightly, they are absent, since nobody has probed."""
CHANGING: Final = frozenset({Backend.CPU, Backend.CUDA, Backend.ROCM})
"""Backends whose module has ``refreshed``: some of their facts change while the machine runs."""
_LOG: Final = logging.getLogger(__name__)
_MACHINE_ID: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_NO_MACHINE_ID: Final = "uninitialized"
"""machine-id(5): what an image has that never booted; an empty file means the same."""


def detect(kind: Backend, *, light: bool = False) -> Detection:
    """Ask for one kind of hardware. Never raises: a driver that breaks while it is asked is absent for that reason.

    ``light`` imports no framework: a runtime that can only be asked by importing it is judged by its files, and what
    only a started browser can tell is absent.
    """
    now, begin = utc_now(), time.perf_counter()
    try:
        module = importlib.import_module(DETECTORS[kind])
        name, features = module.installed() if light and kind in LIGHT else module.detect()
    except UnavailableError as missing:
        found = _absent(kind, str(missing), now)
    except Exception as error:  # noqa: BLE001 - whatever a driver raises means that it cannot be used
        found = _absent(kind, f"{type(error).__name__}: {error}", now)
    else:
        found = Detection(hardware_type=kind.value, available=True, name=name, features=features, reason=None, detected_at=now)
    _LOG.debug("%s asked in %.1f ms: %s", kind.value, (time.perf_counter() - begin) * 1000, found.name or found.reason)
    return found


def refreshed(found: Detection) -> Detection:
    """A detection with the facts that change (memory in use, processes) as they are now; never raises, as :func:`detect`.

    ``detected_at`` stays: the others are as old as that. A kind that has become absent says why.
    """
    kind = Backend(found.hardware_type)
    if not found.available or kind not in CHANGING:
        return found
    try:
        return dataclasses.replace(found, features=importlib.import_module(DETECTORS[kind]).refreshed(found.features))
    except Exception as error:  # noqa: BLE001 - whatever it is, what was known no longer holds
        _LOG.info("%s has changed (%s): asked anew", kind.value, error)
        return detect(kind)


def detect_all(kinds: Iterable[Backend] = tuple(Backend)) -> list[Detection]:
    """Ask for every kind of hardware, runtimes included."""
    return [detect(kind) for kind in kinds]


def machine_identity() -> str:
    """A hash that is the same for one machine and tells nothing about it, so that results of machines are not mixed.

    From the machine's id where the system has one, else its host name; with processor and architecture in any case.
    """
    parts = [platform.machine(), cpuinfo().get("model name", "")]
    for path in _MACHINE_ID:
        try:
            machine_id = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if machine_id not in {"", _NO_MACHINE_ID}:
            parts.append(machine_id)
            break
    else:
        parts.append(platform.node())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _absent(kind: Backend, reason: str, now: str) -> Detection:
    empty: dict[str, Any] = {}
    return Detection(hardware_type=kind.value, available=False, name=None, features=empty, reason=reason, detected_at=now)
