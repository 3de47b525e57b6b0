"""ExecuTorch's runtime: its version and delegates, its programs, and its error codes in words."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import CellFailure, OutOfMemoryError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DELEGATE: Final = "XnnpackBackend"
"""The name of XNNPACK's delegate in the runtime."""
CODES: Final = {
    0x01: "Internal",
    0x02: "InvalidState",
    0x03: "EndOfMethod",
    0x04: "AlreadyLoaded",
    0x10: "NotSupported",
    0x11: "NotImplemented",
    0x12: "InvalidArgument",
    0x13: "InvalidType",
    0x14: "OperatorMissing",
    0x15: "RegistrationExceedingMaxKernels",
    0x16: "RegistrationAlreadyRegistered",
    0x20: "NotFound",
    0x21: "MemoryAllocationFailed",
    0x22: "AccessFailed",
    0x23: "InvalidProgram",
    0x24: "InvalidExternalData",
    0x25: "OutOfResources",
    0x30: "DelegateInvalidCompatibility",
    0x31: "DelegateMemoryAllocationFailed",
    0x32: "DelegateInvalidHandle",
}
"""ExecuTorch's error codes (1.5, runtime/core/error.h)."""
_OF_MEMORY: Final = frozenset({"MemoryAllocationFailed", "OutOfResources", "DelegateMemoryAllocationFailed"})
_OF_THE_PROGRAM: Final = frozenset({"InvalidProgram", "DelegateInvalidCompatibility"})
_CODE: Final = re.compile(r"error:? 0x:?([0-9a-f]+)", re.IGNORECASE)
_METHOD: Final = "forward"
_EXECUTION: Final = "Execute"
_DELEGATE_CALL: Final = "DELEGATE_CALL"
_KERNEL_CALL: Final = "native_call_"
"""How the names of the events of kernels begin: ``native_call_convolution.out``."""
_RUNS: Final = 6
_ENOUGH_S: Final = 1.0
"""After how many seconds no further run is recorded."""
_MOST_BYTES: Final = 256 * 2**20
"""The largest program that is loaded a second time."""
_LOG: Final = logging.getLogger(__name__)


def detect() -> tuple[str, dict[str, Any]]:
    """Return the runtime's version and its delegates. This loads PyTorch's libraries.

    Raises:
        UnavailableError: the package is not installed (``missing_package``), does not load (``executorch_unloadable``), or lacks XNNPACK
            (``executorch_delegate_missing``).
    """
    name, facts = installed()
    return name, facts | {"delegates": delegates()}


def installed() -> tuple[str, dict[str, Any]]:
    """Return what is known without importing it: the version. ``delegates`` is None.

    Raises:
        UnavailableError: the package is not installed.
    """
    if util.find_spec("executorch") is None:
        raise UnavailableError("the package executorch is not installed", error_type="missing_package")
    version = metadata.version("executorch")
    return f"ExecuTorch {version}", {"version": version, "delegates": None}


def delegates() -> list[str]:
    """Return the delegates that the runtime was built with.

    Raises:
        UnavailableError: it does not load here, or lacks XNNPACK.
    """
    try:
        names = sorted(_registered())
    except ImportError as error:
        message = f"ExecuTorch {metadata.version('executorch')} does not load beside torch {metadata.version('torch')}: {error}"
        raise UnavailableError(message, error_type="executorch_unloadable") from error
    if DELEGATE not in names:
        message = f"this build of ExecuTorch has no {DELEGATE} (it has: {', '.join(names) or 'no delegate'})"
        raise UnavailableError(message, error_type="executorch_delegate_missing")
    return names


def _registered() -> list[str]:
    """The runtime's delegates, from its extension (1.5). Its public module imports the exporter too, which takes seconds."""
    with contextlib.suppress(ImportError):  # another version has no such extension, or nothing loads: the public module says which
        import torch  # noqa: F401 - loads the libraries that the extension is linked with
        from executorch.extension.pybindings import _C

        return list(_C._get_registered_backend_names())  # noqa: SLF001 - what the public module returns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package uses deprecated calls of Python's own
        from executorch.runtime import Runtime
    return list(Runtime.get().backend_registry.registered_backend_names)


def use_threads(number: int) -> None:
    """Give the runtime's thread pool, which XNNPACK and its own kernels use, this number of threads."""
    from executorch.extension.pybindings import portable_lib

    portable_lib._unsafe_reset_threadpool(number)  # noqa: SLF001 - the only way; unsafe while a program runs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """Milliseconds of one run, with its events recorded: in XNNPACK's delegates, and in the runtime's own kernels by name."""

    delegates_ms: float
    kernels_ms: Mapping[str, float]

    @property
    def total_ms(self) -> float:
        """All of it."""
        return self.delegates_ms + sum(self.kernels_ms.values())


class Program:
    """A program in the runtime, ready to run."""

    def __init__(self, data: bytes, *, kernels: Iterable[str]) -> None:
        """Load a program. ``kernels`` are the operators that it calls outside delegates, as the runtime names them.

        Raises:
            UnsupportedError: the runtime has no kernel for some of them; the message names them.
            CellFailure: the runtime rejects the program.
        """
        from executorch.runtime import Runtime

        runtime = Runtime.get()
        missing = tuple(sorted(set(kernels) - runtime.operator_registry.operator_names))
        if missing:
            raise UnsupportedError(f"ExecuTorch's runtime has no kernel for {', '.join(missing)}", needs=missing)
        self._data = data
        try:
            self._program = runtime.load_program(data)
            self._method: Any = self._program.load_method(_METHOD)
        except RuntimeError as error:
            raise explained(error) from error

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        """Run the program on its arguments. Return copies of its outputs.

        Raises:
            CellFailure: the runtime ends it with an error code.
        """
        try:
            found: Sequence[Any] = self._method.execute(values)
        except RuntimeError as error:
            raise explained(error, last=_last_call(self._data, values)) from error
        return found

    def times(self, values: Sequence[Any]) -> Times | None:
        """Run the program a few times more, loaded anew with its events recorded, and return the median of each call.

        None: it takes too much memory to be loaded twice, or its events cannot be read. The first run is slower, and only counts if it is
        the only one.
        """
        if len(self._data) > _MOST_BYTES:
            return None
        calls = _calls(self._data, values, runs=_RUNS)
        timed = [(name, statistics.median(spent[1:] or spent)) for name, spent in calls if spent]
        if not timed:
            return None
        kernels_ms: defaultdict[str, float] = defaultdict(float)
        for name, spent_ms in timed:
            if name != DELEGATE:
                kernels_ms[name] += spent_ms
        return Times(delegates_ms=sum(spent_ms for name, spent_ms in timed if name == DELEGATE), kernels_ms=kernels_ms)


def _last_call(data: bytes, values: Sequence[Any]) -> str | None:
    """Run a failing program once more. Return its last call, which is the one that failed; None: not known."""
    calls = _calls(data, values, runs=1)
    return calls[-1][0] if calls else None


def _calls(data: bytes, values: Sequence[Any], *, runs: int) -> list[tuple[str, list[float]]]:
    """Run a program with its events recorded. Return its calls in order, each with its milliseconds in every run; empty: not known.

    There are fewer runs if they take long. A call is a kernel by name, or :data:`DELEGATE`. If the runtime ends a run with an error, the
    calls are those that came before it, and the one that failed.
    """
    from executorch.runtime import Runtime

    try:
        from executorch.devtools import Inspector

        with tempfile.TemporaryDirectory(prefix="hwmatrix-executorch-") as folder:
            program = Runtime.get().load_program(data, enable_etdump=True)
            with contextlib.suppress(RuntimeError):
                method, begin = program.load_method(_METHOD), time.monotonic()
                for _ in range(runs):
                    method.execute(values)
                    if time.monotonic() - begin > _ENOUGH_S:
                        break
            events, values_of = Path(folder) / "events.etdp", Path(folder) / "values.bin"
            program.write_etdump_result_to_file(str(events), str(values_of))
            blocks = Inspector(etdump_path=str(events)).event_blocks
        found = [event for block in blocks if block.name == _EXECUTION for event in block.events]
        return [
            (
                DELEGATE if event.name == _DELEGATE_CALL else event.name.removeprefix(_KERNEL_CALL),
                list(event.perf_data.raw) if event.perf_data is not None else [],
            )
            for event in found
            if event.name == _DELEGATE_CALL or event.name.startswith(_KERNEL_CALL)
        ]
    except Exception as failure:  # noqa: BLE001 - what the tool raises must neither hide the runtime's own error nor end a cell
        _LOG.info("the events of a program cannot be read: %s", failure)
        return []


def explained(error: RuntimeError, *, last: str | None = None) -> Exception:
    """Return an error of the runtime with its code in words, and with the ``last`` call; the error itself if it names no code."""
    found = _CODE.search(str(error))
    name = CODES.get(int(found[1], 16)) if found else None
    if found is None or name is None:
        return error
    message = f"{error} ({name})" + (f" in {last}" if last is not None else "")
    if name in _OF_MEMORY:
        return OutOfMemoryError(message, error_type="memory_pressure")
    return CellFailure(message, error_type="executorch_program" if name in _OF_THE_PROGRAM else "executorch_failed")
