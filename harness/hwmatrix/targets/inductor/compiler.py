"""What TorchInductor needs: PyTorch, and the C++ compiler that it would call."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from hwmatrix.errors import UnavailableError

_TIMEOUT_S: Final = 10


def found() -> str | None:
    """Return the path of the C++ compiler that TorchInductor (2.13) would call, as :func:`_wanted` names it; None if it is missing."""
    return shutil.which(_wanted())


def fast_linker() -> str | None:
    """Return the path of mold, which links for Linux in a fraction of GNU ld's time; None if it is missing."""
    return shutil.which("mold") if sys.platform == "linux" else None


def _wanted() -> str:
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def detect() -> tuple[str, dict[str, Any]]:
    """Return the versions of PyTorch and of the compiler, without importing PyTorch.

    Raises:
        UnavailableError: as :func:`installed`.
    """
    name, facts = installed()
    return name, facts | {"compiler_version": _version_of(found() or "")}


def installed() -> tuple[str, dict[str, Any]]:
    """Return the version of PyTorch and the compiler's name, without calling it. ``compiler_version`` is None.

    Raises:
        UnavailableError: PyTorch (``missing_package``), a compiler or Python's headers (``compiler_missing``) are not installed.
    """
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError as error:
        raise UnavailableError("the package torch is not installed", error_type="missing_package") from error
    path = found()
    if path is None:
        message = f"TorchInductor compiles C++ for this machine, and there is no {_wanted()}: install it, or name another compiler in CXX"
        raise UnavailableError(message, error_type="compiler_missing")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        message = f"TorchInductor needs Python's headers, and {sysconfig.get_path('include')} has no Python.h: install libpython3-dev"
        raise UnavailableError(message, error_type="compiler_missing")
    return f"TorchInductor {version}", {"version": version, "compiler": Path(path).name, "compiler_version": None}


def _version_of(path: str) -> str | None:
    """Return a compiler's version; None if it does not say."""
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    first = told.partition("\n")[0]
    number = re.search(r"\d+\.\d+(\.\d+)?", first.rpartition(")")[2]) or re.search(r"\d+\.\d+(\.\d+)?", first)
    return number[0] if number else None
