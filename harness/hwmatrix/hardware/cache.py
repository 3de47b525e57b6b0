"""Caches detected hardware in a file, with a key of everything that must be unchanged for the cache to be valid.

Only hardware that is present is cached, and only if detection is slow. Absent hardware is detected again each time: this is quick, and
something installed a minute ago must count. A file that cannot be read, or is from another program or version, is written again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

import hwmatrix
from hwmatrix.basics.cache_folder import cache_folder
from hwmatrix.basics.files import write_together
from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import StoreError
from hwmatrix.hardware import browser, browser_places, cgroups, container
from hwmatrix.hardware.detector import machine_identity
from hwmatrix.records import Backend, Detection
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA: Final = "hwmatrix/hardware/2"
NAME: Final = "hardware.json"
_OURS: Final = "hwmatrix/hardware/"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_DRIVERS: Final = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"), Path("/opt/rocm/.info/version"))
_KFD_GENERATION: Final = Path("/sys/class/kfd/kfd/topology/generation_id")
_PACKAGES: Final = ("openvino", "nvidia-ml-py", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11", "torch")
_LOG: Final = logging.getLogger(__name__)

Key = dict[str, str]


def default_file(environment: Mapping[str, str]) -> Path | None:
    """Return the file in the project's cache folder; None if this user has none: then nothing is cached."""
    folder = cache_folder(environment)
    return None if folder is None else folder / NAME


def is_kept(kind: str) -> bool:
    """Whether detections of a kind are cached: if detection starts a driver, a runtime or a program. Others take milliseconds."""
    return descriptor_of(kind).hardware.slow


def current_key() -> Key:
    """Return the key of a valid file: machine, boot, place, user, kernel, drivers, device nodes, packages, browsers."""
    around = container.look()
    return {
        "machine": machine_identity(),
        "boot": cgroups.read(_BOOT) or str(round(psutil.boot_time(), -1)),
        "place": around.inside or "",
        "user": _user(),
        "kernel": platform.release(),
        "drivers": " | ".join(cgroups.read(path) or "" for path in (*_DRIVERS, _KFD_GENERATION)),
        "nodes": " ".join(around.nodes),
        "python": f"{sys.prefix} {platform.python_version()}",
        "packages": " ".join(f"{name}=={version}" for name in _PACKAGES if (version := _version(name))),
        "browsers": " ".join(
            _dated(
                (*(found.program for found in browser_places.installed()), browser.SPARTICUZ / "chromium", browser.ASSETS / "package.json")
            )
        ),
        "hwmatrix": hwmatrix.__version__,
    }


def load(file: Path, key: Key) -> dict[str, Detection]:
    """Return the file's detections for this key; empty if it is not valid, with the reason in the log. Never raises."""
    try:
        return _held(file.read_text(encoding="utf-8"), key)
    except FileNotFoundError:
        return {}
    except _Stale as reason:
        _LOG.info("the cache %s is out of date and will be rebuilt: %s", file, reason)
    except (OSError, ValueError, TypeError, KeyError) as error:
        _LOG.warning("the cache %s is broken or not hwmatrix's, and will be rebuilt: %s: %s", file, type(error).__name__, error)
    return {}


class _Stale(Exception):  # noqa: N818 - nothing is wrong with the file
    """The file was valid, and something has changed since."""


def _held(text: str, key: Key) -> dict[str, Detection]:
    stored = read_json(text)
    if not str(stored["schema"]).startswith(_OURS):
        raise ValueError(f"its schema is {stored['schema']!r}")
    if stored["schema"] != SCHEMA:
        raise _Stale(f"it has version {stored['schema']!r}, not {SCHEMA!r}")
    before: Key = dict(stored["key"])
    changed = [name for name in sorted(before.keys() | key.keys()) if before.get(name) != key.get(name)]
    if changed:
        raise _Stale(f"changed since: {', '.join(changed)}")
    found = [_detection(each) for each in stored["found"]]
    return {each.hardware_type: each for each in found if is_kept(Backend(each.hardware_type)) and each.available}


def _detection(told: Any) -> Detection:
    """Build a detection from JSON. Checked by hand, because creating pydantic's validators takes longer than all detection.

    Raises:
        TypeError: it has other keys, or is not a mapping.
        ValueError: a value has the wrong type.
    """
    found = Detection(**told)
    texts = (found.hardware_type, found.name, found.detected_at)
    if not all(isinstance(text, str) for text in texts) or not isinstance(found.features, dict) or not isinstance(found.available, bool):
        raise ValueError(f"an entry is not a detection: {told}")
    return found


def save(file: Path, key: Key, found: Iterable[Detection]) -> bool:
    """Write the file atomically. Return whether it worked; if not, the reason is logged.

    A file that is not hwmatrix's is kept: it gets the suffix ``.bak``.
    """
    kept = [each for each in found if each.available and is_kept(each.hardware_type)]
    content = json.dumps({"schema": SCHEMA, "key": key, "found": [dataclasses.asdict(each) for each in kept]}, indent=1)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        if before.strip() and _OURS not in before:
            file.replace(file.with_name(f"{file.name}.bak"))
        write_together({file: content}, durable=False)
    except OSError as error:
        _LOG.warning("the cache %s cannot be written, so hardware is detected again next time: %s", file, error)
        return False
    return True


def clear(file: Path) -> bool:
    """Remove the file. Return whether there was one.

    Raises:
        StoreError: it cannot be removed.
    """
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(
            f"the cache {file} cannot be removed: {error}", advice="Remove it by hand, or name another with HWMATRIX_CACHE."
        ) from error
    return True


def _user() -> str:
    """The user and groups, which decide what hardware may be used. Windows has no such numbers."""
    return f"{os.getuid()} {sorted(os.getgroups())}" if hasattr(os, "getuid") else ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _dated(paths: Iterable[Any]) -> Iterable[str]:
    """Yield the files that exist, with their modification times."""
    for path in paths:
        if path is not None:
            with contextlib.suppress(OSError):
                yield f"{path}@{Path(path).stat().st_mtime_ns}"
