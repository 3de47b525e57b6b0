"""Finds what the installed PyTorch was built for. It reads version.py, because importing PyTorch takes a second."""

from __future__ import annotations

import dataclasses
import re
import sys
from importlib import util
from pathlib import Path
from typing import Any

from hwmatrix.hardware.assignments import constants


@dataclasses.dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """``cuda`` and ``hip`` are the versions that this PyTorch was built with; None otherwise. At most one of them is set.

    ROCm's PyTorch uses CUDA's names (``torch.cuda``, ``cuda:0``), so only ``hip`` distinguishes the two.
    """

    version: str
    cuda: str | None
    hip: str | None

    @property
    def purpose(self) -> str:
        """What it is built for, as text."""
        if self.cuda is not None:
            return f"CUDA {self.cuda}"
        return f"ROCm {self.hip}" if self.hip is not None else "CPUs only"


def torch_build() -> TorchBuild | None:
    """Return the build of the imported PyTorch, or else of the installed one; None if there is none."""
    if "torch" in sys.modules:
        version = getattr(sys.modules["torch"], "version", None)
        return None if version is None else _of(vars(version))
    try:
        spec = util.find_spec("torch")
    except ValueError:  # something else is in sys.modules in its place
        return None
    folders = spec.submodule_search_locations if spec is not None else None
    return next((build for folder in folders or () if (build := _of(constants(Path(folder) / "version.py")))), None)


def imported() -> Any:
    """Return PyTorch itself if this process has completely imported it; otherwise None."""
    module = sys.modules.get("torch")
    return module if hasattr(module, "cuda") and hasattr(module, "version") else None


def number(version: str | None) -> tuple[int, ...]:
    """Return the numbers at the start of a version: (13, 0) for ``13.0``; () if there are none."""
    found = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _of(values: Any) -> TorchBuild | None:
    version = values.get("__version__")
    return TorchBuild(version=str(version), cuda=values.get("cuda"), hip=values.get("hip")) if version else None
