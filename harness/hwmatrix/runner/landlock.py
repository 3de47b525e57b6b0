"""Takes from this process and its descendants, for good, the right to change files and to signal others (Linux, Landlock).

A process that is restricted also cannot trace processes outside, or read or write their memory: the kernel asks Landlock first
(Documentation/userspace-api/landlock.rst). Reading files, devices' own commands and the network are not restricted here, and neither are
files that are open already, nor modes and times of files.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""The system calls, with the same numbers on all architectures."""
_VERSION: Final = 1
"""A flag that asks for the version of the interface."""
_BENEATH: Final = 1
"""A rule for everything beneath a path."""
_NO_NEW_PRIVILEGES: Final = 38
_WRITE_FILE: Final = 1 << 1
_CHANGES: Final = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
"""Writing to a file; removing and making folders, files, devices, sockets, pipes and links (linux/landlock.h)."""
_REFER: Final = 1 << 13
"""Linking and moving between folders, since version 2. In version 1 this is always denied."""
_TRUNCATE: Final = 1 << 14
_SINCE: Final = ((2, _REFER), (3, _TRUNCATE))
_SCOPED_SINCE: Final = 6
_SIGNALS: Final = 1 << 1
_MACHINES: Final = ("x86_64", "aarch64")


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """The version of the kernel's interface; 0: it has none, or does not let this process use it."""
    if not sys.platform.startswith("linux") or platform.machine() not in _MACHINES:
        return 0
    return max(0, _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)))


def restrict(*, changing: Iterable[Path], writing: Iterable[Path] = ()) -> bool:
    """Let this process change only what is beneath ``changing``, and write only to existing files beneath ``writing``.

    Missing paths are left out. Returns False if the kernel cannot do it; then nothing is restricted. Signals are restricted since version 6
    (Linux 6.12).

    Raises:
        OSError: the kernel can, and refuses.
    """
    known = version()
    if not known:
        return False
    extra = sum(right for since, right in _SINCE if known >= since)
    files = _CHANGES | extra
    rules = _Ruleset(files, 0, _SIGNALS if known >= _SCOPED_SINCE else 0)
    ruleset = _checked(_call(_CREATE, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), ctypes.c_uint32(0)), "make")
    try:
        for path in changing:
            _allow(ruleset, path, files)
        for path in writing:
            _allow(ruleset, path, _WRITE_FILE | (extra & _TRUNCATE))
        ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        _checked(_call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0)), "enforce")
    finally:
        os.close(ruleset)
    return True


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rule = _Beneath(rights, folder)
        _checked(_call(_ADD, ctypes.c_int(ruleset), ctypes.c_int(_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0)), f"allow {path} in")
    finally:
        os.close(folder)


def _call(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments))


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: cannot {what} the ruleset: {os.strerror(ctypes.get_errno())}")
    return result
