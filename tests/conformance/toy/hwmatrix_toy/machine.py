"""The toy's hardware: any machine with the package onnx."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from hwmatrix.errors import UnavailableError


def detect() -> tuple[str, dict[str, Any]]:
    """Return the name and facts of the hardware."""
    return installed()


def installed() -> tuple[str, dict[str, Any]]:
    """The same facts, found without importing onnx.

    Raises:
        UnavailableError: onnx is not installed.
    """
    try:
        return "the toy", {"onnx": metadata.version("onnx")}
    except metadata.PackageNotFoundError as missing:
        raise UnavailableError("onnx is not installed", error_type="missing_package") from missing
