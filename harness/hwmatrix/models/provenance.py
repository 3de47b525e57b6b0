"""What makes bundles, exports and sizes: part of their keys, so that nothing is read that other code or other packages made."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any, Final

import hwmatrix
from hwmatrix.basics.files import sha256_of

PACKAGE: Final = Path(hwmatrix.__file__).parent
_LAYERS: Final = ("models", "faults", "records", "basics", "errors.py")
"""``hwmatrix.models`` and the layers below it: no code of a build can import anything else of hwmatrix (pyproject.toml, importlinter)."""
_LIBRARIES: Final = ("torch", "transformers", "diffusers", "onnx", "onnxscript", "openvino")
"""The packages whose versions determine a model, its reference outputs or its exports."""


def made_by() -> dict[str, Any]:
    """The checksum of this code (``code``), and the installed versions of the libraries: ``none`` for a missing one."""
    return {"code": code_checksum(), "versions": {name: version(name) or "none" for name in _LIBRARIES}}


def version(package: str) -> str | None:
    """The installed version of a package; None: it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def code_checksum(package: Path = PACKAGE) -> str:
    """The SHA-256 of the code and data of this package, or of a copy, that determine what is made."""
    digest = hashlib.sha256()
    for layer in _LAYERS:
        place = package / layer
        for file in [place] if place.is_file() else sorted(place.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(package).as_posix()}\0{sha256_of(file)}\n".encode())
    return digest.hexdigest()
