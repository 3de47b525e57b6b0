"""Compiles the C++ kernels of a graph in one file instead of one file each: most of a small kernel's time is that of its headers.

The kernels, their flags and their bindings are those of TorchInductor; each is in a namespace of its own. A kernel that another cell has
compiled is taken from there. PyTorch has no setting for this, so two of its methods are replaced in the process of a cell.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from torch._inductor import codecache
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.exc import CppCompileError
from torch._inductor.runtime.cache_dir_utils import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

_MOST: Final = 32
"""Kernels in one file, so that the compiler's memory has a limit."""
_PREFIX: Final = "#include <torch/csrc/inductor/cpp_prefix.h>"
_HEADERS: Final = f"{_PREFIX}\n#define PY_SSIZE_T_CLEAN\n#include <Python.h>\n#include <sstream>\n#include <cstdlib>\n#include <cerrno>\n"
"""What every kernel and its bindings include, once and outside the namespaces."""
_DIRECTIVE: Final = re.compile(r"^\s*#\s*(?!pragma)\w+.*$", re.MULTILINE)
_CPP_PYBINDING: Final = AsyncCompile.cpp_pybinding
_WAIT: Final = AsyncCompile.wait


def start() -> None:
    """Have this process compile kernels together from now on."""
    AsyncCompile.cpp_pybinding = _prepare  # type: ignore[method-assign]
    AsyncCompile.wait = _wait  # type: ignore[method-assign]


def stop() -> None:
    """Have this process compile each kernel on its own, as PyTorch does."""
    AsyncCompile.cpp_pybinding = _CPP_PYBINDING  # type: ignore[method-assign]
    AsyncCompile.wait = _WAIT  # type: ignore[method-assign]


def _prepare(self: AsyncCompile, argtypes: list[str], source_code: str) -> Any:
    """A kernel that will be compiled when all kernels of its graph are known."""
    if not _can_join(source_code):
        return _CPP_PYBINDING(self, argtypes, source_code)
    return codecache.LambdaFuture(_Kernels.load_pybinding_async(argtypes, source_code))


def _wait(self: AsyncCompile, scope: dict[str, Any]) -> None:
    self._wait_futures(scope)
    _WAIT(self, scope)


def _can_join(source: str) -> bool:
    """Whether a kernel includes and defines nothing of its own, as templates do."""
    return all(directive.strip() == _PREFIX for directive in _DIRECTIVE.findall(source))


class _Kernel:
    """A kernel with its bindings. Call it for its module: it, and what waits with it, is then compiled."""

    def __init__(self, code: str, alone: Callable[[], Callable[[], ModuleType]]) -> None:
        self.code = code
        self.alone = alone
        self.entry = f"kernel_{hashlib.sha256(code.encode()).hexdigest()[:32]}"
        self.module: ModuleType | None = None

    def __call__(self) -> ModuleType:
        if self.module is None:
            _load_waiting()
        if self.module is None:
            self.module = self.alone()()
        return self.module

    @property
    def library(self) -> Path:
        """A link to the library that contains it, if it has been compiled."""
        return Path(cache_dir()) / "kernels" / f"{self.entry}.so"

    def load(self) -> None:
        """Import its module, one of several in the library (PEP 489)."""
        path = self.library.resolve()
        bindings: Any = type("Bindings", (codecache.CppPythonBindingsCodeCache,), {"entry_function": self.entry})
        self.module = bindings._load_library_inner(str(path), path.stem)  # noqa: SLF001 - it also tells the bindings where tensors are


_waiting: list[_Kernel] = []


class _Kernels(codecache.CppPythonBindingsCodeCache):
    """Makes the bindings of kernels, and lets them wait."""

    @classmethod
    def load_async(cls, main_code: str, *arguments: Any, **settings: Any) -> Any:
        kernel = _Kernel(main_code, lambda: codecache.CppPythonBindingsCodeCache.load_async(main_code, *arguments, **settings))
        _waiting.append(kernel)
        return kernel


class _Libraries(codecache.CppPythonBindingsCodeCache):
    """Compiles a file with the flags of kernels, without importing it."""

    cache: dict[str, Callable[[], Any]] = {}  # noqa: RUF012 - as PyTorch declares it

    @classmethod
    def _load_library_inner(cls, path: str, key: str) -> Any:  # noqa: ARG003 - PyTorch passes it
        return SimpleNamespace(path=path)


def _load_waiting() -> None:
    """Compile what waits, in as few files as possible, and import it. What cannot be compiled so is left to be compiled alone."""
    waiting, missing = list(_waiting), {}
    _waiting.clear()
    for kernel in waiting:
        if not kernel.library.exists():
            missing[kernel.entry] = kernel
    kernels = list(missing.values())
    for begin in range(0, len(kernels), _MOST):
        with contextlib.suppress(CppCompileError):  # alone, it fails with PyTorch's own error
            _compile(kernels[begin : begin + _MOST])
    for kernel in waiting:
        if kernel.library.exists():
            kernel.load()


def _compile(kernels: Sequence[_Kernel]) -> None:
    """Compile kernels in one file, and link each one's name to the library."""
    library = Path(_Libraries.load(_HEADERS + "".join(map(_named, kernels))).path)
    for kernel in kernels:
        kernel.library.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            kernel.library.symlink_to(library)


def _named(kernel: _Kernel) -> str:
    """A kernel in a namespace, with names of its own for what C++ does not put there: ``extern "C"``."""
    names = {"kernel": kernel.entry, "PyInit_kernel": f"PyInit_{kernel.entry}"}
    given = "".join(f"#define {name} {own}\n" for name, own in names.items())
    taken = "".join(f"#undef {name}\n" for name in names)
    return f"{given}namespace of_{kernel.entry} {{\n{kernel.code}\n}}\n{taken}"
