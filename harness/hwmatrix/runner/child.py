"""The child's side, forked or spawned: sets its own limits, does its work, sends the results, and exits."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import math
import os
import resource
import signal
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from hwmatrix.basics.text import cut
from hwmatrix.measure import memory
from hwmatrix.runner import landlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.records import Limits

    Send = Callable[[dict[str, Any]], None]

_TEMPORARY: Final = (Path("/tmp"), Path("/dev/shm"))  # noqa: S108 - a container has its own
_WRITTEN: Final = (Path("/dev"), Path("/proc"))
"""Devices, and the kernel's switches for a process, such as the one that resets its peak memory."""
_LONGEST_TEXT: Final = 4000
_LONGEST_TRACEBACK: Final = 100_000
"""Characters. Exporters' tracebacks have up to 50,000; longer ones are exceptions that print whole graphs (one had 3 million)."""
PR_SET_PDEATHSIG: Final = 1
"""linux/prctl.h: sets the signal that a process gets when its parent dies."""


def prctl(option: int, value: int) -> None:
    """Make this system call on Linux; do nothing on other systems, which have no equivalent."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, value)


def work_and_exit(
    work: Callable[[Send], None],
    writing: int,
    *,
    limits: Limits,
    reserves_address_space: bool,
    writable: tuple[Path, ...] | None = None,
    cores: tuple[int, ...] | None = None,
    temporary: Path | None = None,
) -> NoReturn:
    """Limit this process, do the work, and end by ``os._exit``, which skips the exit handlers and buffers of the parent.

    ``writable``: the only places, besides those for temporary files, where it may change files; None: wherever its user may.
    ``cores``: the only ones that it runs on; None: all that its parent may use. ``temporary``: its folder for temporary files, which the
    parent removes; None: the system's.
    """
    code = 1
    try:
        if temporary is not None:
            os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        _limit(limits, reserves_address_space=reserves_address_space)
        if cores is not None:
            os.sched_setaffinity(0, cores)  # before it has other threads
        if writable is not None:
            _close_files_open_for_writing()
            own = () if temporary is None else (temporary,)  # anywhere, if TMPDIR says so
            landlock.restrict(changing=(*writable, *own, *_TEMPORARY), writing=_WRITTEN)

        def send(message: dict[str, Any]) -> None:
            text = json.dumps(_sendable(message), ensure_ascii=False)
            data = memoryview(text.encode(errors="replace") + b"\n")  # texts may contain lone surrogates
            while data:
                data = data[os.write(writing, data) :]

        work(send)
        code = 0
    except BaseException:  # noqa: BLE001 - the parent sees it only in the log
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _sendable(value: Any, key: str = "") -> Any:
    """A message as its receiver takes it (``messages``): texts of limited length, and no number that is not finite.

    The only place that cuts texts. Such a number is not known (None), and so is a list that has one.
    """
    if isinstance(value, str):
        return cut(value, _LONGEST_TRACEBACK if key == "traceback" else _LONGEST_TEXT)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _sendable(each, name) for name, each in value.items()}
    if isinstance(value, (list, tuple)) and not (value and isinstance(value[0], int)):  # a million samples are integers
        found = [_sendable(each) for each in value]
        return None if None in found else found
    return value


def _close_files_open_for_writing() -> None:
    """Close the regular files that the parent has open for writing, such as the shard. Pipes and sockets stay open."""
    for listed in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            descriptor = int(listed.name)
            changing = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
            if changing and stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)


def _limit(limits: Limits, *, reserves_address_space: bool) -> None:
    """Limit memory, write no core file, and make this process the OOM killer's first choice.

    No RLIMIT_CPU: while it is set, the kernel counts the process's CPU time in ticks of some milliseconds, and a sample's
    CPU time would read 0 or 4 ms. The parent kills a child that misses its deadline; the kernel kills it if the parent dies.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kind, had_mb = resource.RLIMIT_AS, memory.address_space_mb()
    if reserves_address_space:
        kind, had_mb = resource.RLIMIT_DATA, memory.data_mb()
    if had_mb is not None:
        most = int((had_mb + limits.memory_mb) * 1024 * 1024)
        resource.setrlimit(kind, (most, most))
