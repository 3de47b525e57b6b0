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
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOG: Final = logging.getLogger(__name__)
_MACHINE_ID: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_NO_MACHINE_ID: Final = "uninitialized"
"""The content of the file in an image that never booted (machine-id(5)). An empty file means the same."""


def detect(kind: str, *, light: bool = False) -> Detection:
    """Detect one kind of hardware. Never raises: a driver that fails during detection counts as absent, with this reason.

    ``light`` imports no framework: a runtime that can only be queried by importing it is judged by its files, and hardware that only a
    started browser can report counts as absent.
    """
    now, begin = utc_now(), time.perf_counter()
    try:
        hardware = descriptor_of(kind).hardware
        module = importlib.import_module(hardware.detector)
        name, features = module.installed() if light and hardware.light else module.detect()
    except UnavailableError as missing:
        found = _absent(kind, str(missing), now)
    except Exception as error:  # noqa: BLE001 - whatever a driver raises, it cannot be used
        found = _absent(kind, f"{type(error).__name__}: {error}", now)
    else:
        found = Detection(hardware_type=str(kind), available=True, name=name, features=features, reason=None, detected_at=now)
    _LOG.debug("%s detected in %.1f ms: %s", kind, (time.perf_counter() - begin) * 1000, found.name or found.reason)
    return found


def refreshed(found: Detection) -> Detection:
    """Return a detection with current values of the facts that change (memory in use, processes). Never raises, like :func:`detect`.

    ``detected_at`` stays, because the other facts are that old. A kind that has become absent has a reason.
    """
    if not found.available:
        return found
    kind = found.hardware_type
    try:
        hardware = descriptor_of(kind).hardware
        if not hardware.changing:
            return found
        return dataclasses.replace(found, features=importlib.import_module(hardware.detector).refreshed(found.features))
    except Exception as error:  # noqa: BLE001 - whatever it is, the known facts are no longer valid
        _LOG.info("%s has changed (%s): detecting it again", kind, error)
        return detect(kind)


def detect_all(kinds: Iterable[str] = tuple(Backend)) -> list[Detection]:
    """Detect every kind of hardware, including runtimes."""
    return [detect(kind) for kind in kinds]


def machine_identity() -> str:
    """Return a hash that identifies the machine without revealing anything about it, so that results of machines are not mixed.

    It is made from the machine id, or else the host name, and in any case from processor and architecture.
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


def _absent(kind: str, reason: str, now: str) -> Detection:
    empty: dict[str, Any] = {}
    return Detection(hardware_type=str(kind), available=False, name=None, features=empty, reason=reason, detected_at=now)
