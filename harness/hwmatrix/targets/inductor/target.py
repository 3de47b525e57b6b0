"""TorchInductor on the CPU: a timed cell compiles with an empty cache, so that its compile time does not depend on the others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics import temporary
from hwmatrix.errors import UnavailableError
from hwmatrix.records import Placement
from hwmatrix.targets.inductor import compiler
from hwmatrix.targets.torch.cpu import TorchCpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.records import Settings

_FOLDER: Final = "folder"
_OF_CELLS: Final = "cells"
_KEPT_FREE: Final = 2 << 30
"""Bytes to leave free on a large disk; on a small one, such as a container's, half of it."""
_PREFIX: Final = "hwmatrix-inductor-"
_CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"
"""PyTorch's variable for the folder of its compiled code."""
_THREADS: Final = "TORCHINDUCTOR_COMPILE_THREADS"
_LINKER: Final = "linker"
_PROGRAMS: Final = "COMPILER_PATH"
"""The variable for the folders in which GCC looks for its linker first (GCC manual, "Environment Variables Affecting GCC")."""


class Inductor(TorchCpu):
    """The model, compiled."""

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings=settings, options=options, service=service)
        self._service = service

    @property
    def _compiles(self) -> bool:
        """Always."""
        return True

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Import the compiler, too. It compiles in the cell's own process, and not in a pool of others that each import PyTorch."""
        os.environ[_THREADS] = "1"
        TorchCpu.preload(model_classes)
        import torch._inductor.codegen.cpp
        import torch._inductor.compile_fx  # noqa: F401

    @staticmethod
    def service(options: Mapping[str, Any]) -> Workplace:  # noqa: ARG004 - the same for all
        """Return the folder in which cells compile."""
        return Workplace()

    def check(self) -> str:
        """Find the compiler, a linker, and the cache of compiled code, which is emptied when the disk fills.

        Raises:
            UnavailableError: there is no compiler.
        """
        compiler.installed()
        if self._service is not None:
            cache = Path(self._service[_FOLDER]) / _OF_CELLS
            os.environ[_CACHE] = str(cache)
            if (linker := Path(self._service[_FOLDER]) / _LINKER).is_dir():
                os.environ[_PROGRAMS] = str(linker)
            disk = shutil.disk_usage(cache.parent)
            if disk.free < min(disk.total // 2, _KEPT_FREE):
                shutil.rmtree(cache, ignore_errors=True)
        return super().check()

    def start_cold(self) -> None:
        """Empty the cache of compiled code, and link with the compiler's own linker.

        Without timing, a kernel that another cell has compiled is taken from the cache, and mold links where it is installed: GNU ld reads
        all symbols of PyTorch for every file.
        """
        if self._service is not None:
            if os.environ.get(_PROGRAMS) == str(Path(self._service[_FOLDER]) / _LINKER):
                del os.environ[_PROGRAMS]
            shutil.rmtree(Path(self._service[_FOLDER]) / _OF_CELLS, ignore_errors=True)

    def placement(self) -> Placement:
        """The placement as on the CPU; nothing is on the target if nothing was compiled."""
        found, compiled = super().placement(), self.compilation(again=False)
        breaks = f"{compiled.graph_breaks} graph break{'' if compiled.graph_breaks == 1 else 's'}"
        graphs = f"{compiled.graphs} compiled graph{'' if compiled.graphs == 1 else 's'}"
        return Placement(on_target=found.on_target if compiled.graphs else 0.0, detail=f"{graphs}, {breaks}; {found.detail}")


class Workplace:
    """A folder for the compiled code of cells, with what all need: a test of the instruction sets, made once."""

    shares_device = False
    start_s = 60.0

    def __init__(self) -> None:
        self._folder: Path | None = None

    def start(self) -> Mapping[str, Any]:
        """Make the folder, and find the instruction sets for which to compile: a short program is compiled for each.

        Raises:
            UnavailableError: there is no compiler, or it cannot compile that program.
        """
        compiler.installed()
        temporary.remove_leftovers(_PREFIX)
        self._folder = temporary.make_folder(_PREFIX)
        os.environ[_CACHE] = str(self._folder / "common")
        if _PROGRAMS not in os.environ and (linker := compiler.fast_linker()):
            (self._folder / _LINKER).mkdir()
            (self._folder / _LINKER / "ld").symlink_to(linker)
        from torch._inductor import cpu_vec_isa

        try:
            cpu_vec_isa.pick_vec_isa()
        except Exception as error:
            raise UnavailableError(f"the compiler {compiler.found()} does not work: {error}", error_type="compiler_missing") from error
        return {_FOLDER: str(self._folder)}

    def alive(self) -> bool:
        """Whether the folder is there."""
        return self._folder is not None and self._folder.is_dir()

    def stop(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
