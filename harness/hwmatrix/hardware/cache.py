"""Caches detected hardware in a file, with everything that must be unchanged for the cache to be valid.

Only what is here is kept, and only where asking takes long. What is absent is asked again each time: that is quick, and what was
installed a minute ago must count. A file that cannot be read, is another program's or another version's is made anew.
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
    """The file in the project's cache folder; None where this user has none: then nothing is kept."""
    folder = cache_folder(environment)
    return None if folder is None else folder / NAME


def is_kept(kind: str) -> bool:
    """Whether what is found of a kind is kept: where asking starts a driver, a runtime or a program. The others take milliseconds."""
    return descriptor_of(kind).hardware.slow


def current_key() -> Key:
    """What must be the same for a file to hold: machine, boot, place, user, kernel, drivers, device nodes, packages, browsers."""
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
    """What the file holds for this machine as it is; empty where it does not hold, which is logged with the reason. Never raises."""
    try:
        return _held(file.read_text(encoding="utf-8"), key)
    except FileNotFoundError:
        return {}
    except _Stale as reason:
        _LOG.info("the cache %s no longer holds and is made anew: %s", file, reason)
    except (OSError, ValueError, TypeError, KeyError) as error:
        _LOG.warning("the cache %s is broken or not hwmatrix's, and is made anew: %s: %s", file, type(error).__name__, error)
    return {}


class _Stale(Exception):  # noqa: N818 - nothing is wrong with the file
    """The file was right, and something has changed since."""


def _held(text: str, key: Key) -> dict[str, Detection]:
    stored = json.loads(text)
    if not str(stored["schema"]).startswith(_OURS):
        raise ValueError(f"its schema is {stored['schema']!r}")
    if stored["schema"] != SCHEMA:
        raise _Stale(f"it is of version {stored['schema']!r}, not {SCHEMA!r}")
    before: Key = dict(stored["key"])
    changed = [name for name in sorted(before.keys() | key.keys()) if before.get(name) != key.get(name)]
    if changed:
        raise _Stale(f"changed since: {', '.join(changed)}")
    found = [_detection(each) for each in stored["found"]]
    return {each.hardware_type: each for each in found if is_kept(Backend(each.hardware_type)) and each.available}


def _detection(told: Any) -> Detection:
    """A detection that is here. Checked by hand, since building pydantic's checks takes longer than all of the asking.

    Raises:
        TypeError: it has other keys, or is no mapping at all.
        ValueError: a value is of another type.
    """
    found = Detection(**told)
    texts = (found.hardware_type, found.name, found.detected_at)
    if not all(isinstance(text, str) for text in texts) or not isinstance(found.features, dict) or not isinstance(found.available, bool):
        raise ValueError(f"an entry is no detection: {told}")
    return found


def save(file: Path, key: Key, found: Iterable[Detection]) -> bool:
    """Write a file in one step: whoever reads meanwhile sees the old or the new one. Whether it worked; if not, that is logged.

    A file that is not hwmatrix's is not lost: it gets the ending ``.bak``.
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
        _LOG.warning("the cache %s cannot be written, hardware is asked again next time: %s", file, error)
        return False
    return True


def clear(file: Path) -> bool:
    """Remove the file; whether there was one.

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
    """Who asks: what a user may use depends on the groups. Windows has no such numbers."""
    return f"{os.getuid()} {sorted(os.getgroups())}" if hasattr(os, "getuid") else ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _dated(paths: Iterable[Any]) -> Iterable[str]:
    """Files that are there, with the moment of their last change."""
    for path in paths:
        if path is not None:
            with contextlib.suppress(OSError):
                yield f"{path}@{Path(path).stat().st_mtime_ns}"
