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
"""machine-id(5): what an image has that never booted; an empty file means the same."""


def detect(kind: str, *, light: bool = False) -> Detection:
    """Ask for one kind of hardware. Never raises: a driver that breaks while it is asked is absent for that reason.

    ``light`` imports no framework: a runtime that can only be asked by importing it is judged by its files, and what
    only a started browser can tell is absent.
    """
    now, begin = utc_now(), time.perf_counter()
    try:
        hardware = descriptor_of(kind).hardware
        module = importlib.import_module(hardware.detector)
        name, features = module.installed() if light and hardware.light else module.detect()
    except UnavailableError as missing:
        found = _absent(kind, str(missing), now)
    except Exception as error:  # noqa: BLE001 - whatever a driver raises means that it cannot be used
        found = _absent(kind, f"{type(error).__name__}: {error}", now)
    else:
        found = Detection(hardware_type=str(kind), available=True, name=name, features=features, reason=None, detected_at=now)
    _LOG.debug("%s asked in %.1f ms: %s", kind, (time.perf_counter() - begin) * 1000, found.name or found.reason)
    return found


def refreshed(found: Detection) -> Detection:
    """A detection with the facts that change (memory in use, processes) as they are now; never raises, as :func:`detect`.

    ``detected_at`` stays: the others are as old as that. A kind that has become absent says why.
    """
    if not found.available:
        return found
    kind = found.hardware_type
    try:
        hardware = descriptor_of(kind).hardware
        if not hardware.changing:
            return found
        return dataclasses.replace(found, features=importlib.import_module(hardware.detector).refreshed(found.features))
    except Exception as error:  # noqa: BLE001 - whatever it is, what was known no longer holds
        _LOG.info("%s has changed (%s): asked anew", kind, error)
        return detect(kind)


def detect_all(kinds: Iterable[str] = tuple(Backend)) -> list[Detection]:
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


def _absent(kind: str, reason: str, now: str) -> Detection:
    empty: dict[str, Any] = {}
    return Detection(hardware_type=str(kind), available=False, name=None, features=empty, reason=reason, detected_at=now)
