"""ONNX Runtime's CPU execution provider."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from typing import Any, Final

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware.assignments import constants

PROVIDER: Final = "CPUExecutionProvider"
_INFO: Final = Path("capi") / "build_and_package_info.py"


def detect() -> tuple[str, dict[str, Any]]:
    """Return the runtime's version and its execution providers. Importing it starts a thread, so do not call this before forking.

    Raises:
        UnavailableError: the package is not installed.
    """
    name, facts = installed()
    import onnxruntime

    return name, facts | {"providers": list(onnxruntime.get_available_providers())}


def installed() -> tuple[str, dict[str, Any]]:
    """Return what is known without importing it: the version. ``providers`` is None.

    Raises:
        UnavailableError: the package is not installed.
    """
    spec = util.find_spec("onnxruntime")
    if spec is None:
        raise UnavailableError("the package onnxruntime is not installed", error_type="missing_package")
    # Not from the distribution's metadata, because there are distributions with other names, such as onnxruntime-gpu.
    files = (Path(folder) / _INFO for folder in spec.submodule_search_locations or ())
    version = next((str(told["__version__"]) for path in files if "__version__" in (told := constants(path))), None)
    return f"ONNX Runtime {version}" if version else "ONNX Runtime", {"version": version, "providers": None}
