"""ONNX Runtime's own execution provider for processors."""

from __future__ import annotations

from importlib import metadata, util
from typing import Any, Final

from hwmatrix.errors import UnavailableError

PROVIDER: Final = "CPUExecutionProvider"


def detect() -> tuple[str, dict[str, Any]]:
    """The runtime's version and its execution providers. Imports it, which starts a thread: call it where threads may be started.

    Raises:
        UnavailableError: the package is not installed.
    """
    if util.find_spec("onnxruntime") is None:
        raise UnavailableError("the package onnxruntime is not installed", error_type="missing_package")
    import onnxruntime  # noqa: PLC0415 - not in every image

    facts = {"version": metadata.version("onnxruntime"), "providers": list(onnxruntime.get_available_providers())}
    return f"ONNX Runtime {facts['version']}", facts
