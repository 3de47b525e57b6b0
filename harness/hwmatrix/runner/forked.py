"""One piece of work in one forked child: started, limited, waited for without polling, and its end told exactly.

The warm parent has imported the frameworks and stays at one thread without ever computing: a child forked from a parent
that had run a parallel loop hangs in its first one. The child talks through a pipe, one JSON object a line; whatever it
prints goes to a file, of which the end is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import resource
import selectors
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

from hwmatrix.measure import memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.records import Limits

    Send = Callable[[dict[str, Any]], None]

_PR_SET_PDEATHSIG: Final = 1
"""linux/prctl.h: the signal that a process gets when its parent dies."""
_LOG_TAIL: Final = 8192
_CHUNK: Final = 1 << 16
_DRAIN_S: Final = 1.0
_CGROUP_EVENTS: Final = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Where cgroup v2 and v1 count the processes that the kernel killed for memory (both have a line ``oom_kill N``)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
    """How a child ended. Exactly one of ``exit_code`` and ``signal`` is set; ``log`` is the end of what it printed."""

    messages: tuple[dict[str, Any], ...]
    exit_code: int | None
    signal: int | None
    timed_out: bool
    oom_killed: bool
    log: str
    wall_ms: float


def run_forked(work: Callable[[Send], None], *, limits: Limits) -> End:
    """Run ``work(send)`` in a forked child and wait for its end, at most ``limits.timeout_s``.

    The child's whole process group is killed at the end, so that nothing it started stays behind.
    """
    begin = time.monotonic()
    kills = _oom_kills()
    with tempfile.TemporaryFile() as log:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _be_child(work, writing, log, limits)
        os.close(writing)
        try:
            received, status, timed_out = _wait(pid, reading, begin + limits.timeout_s)
        except BaseException:
            _kill_group(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            raise
        finally:
            os.close(reading)
        return End(
            messages=tuple(_parse(received)),
            exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            timed_out=timed_out,
            oom_killed=_oom_kills() > kills,
            log=_tail(log),
            wall_ms=(time.monotonic() - begin) * 1000,
        )


def _be_child(work: Callable[[Send], None], writing: int, log: IO[bytes], limits: Limits) -> NoReturn:
    """Everything the child does. Ends by ``os._exit``: the parent's exit handlers and buffers are not the child's."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        _limit(limits)

        def send(message: dict[str, Any]) -> None:
            data = memoryview(json.dumps(message).encode() + b"\n")
            while data:
                data = data[os.write(writing, data) :]

        work(send)
        code = 0
    except BaseException:  # noqa: BLE001 - the log is the only place where the parent can read of it
        import traceback  # noqa: PLC0415

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _limit(limits: Limits) -> None:
    """Address space, CPU time, no core file; and if the kernel needs memory, it shall be this process that goes."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = int(limits.timeout_s * (os.cpu_count() or 1)) + 5
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    had_mb = memory.address_space_mb()
    if had_mb is not None:
        space = int((had_mb + limits.memory_mb) * 1024 * 1024)
        resource.setrlimit(resource.RLIMIT_AS, (space, space))


def _wait(pid: int, reading: int, deadline: float) -> tuple[bytes, int, bool]:
    """Collect what the child sends until it ends, or until the deadline, and then end it."""
    received = bytearray()
    os.set_blocking(reading, False)
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ, "pipe")
        ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        try:
            if ended is not None:
                selector.register(ended, selectors.EVENT_READ, "end")
            while True:
                left = deadline - time.monotonic()
                events = selector.select(max(0.0, left) if ended is not None else max(0.0, min(left, 0.01)))
                for key, _ in events:
                    if key.data == "pipe" and not _read(reading, received):
                        selector.unregister(reading)
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    _kill_group(pid, reaped=True)
                    _drain(reading, received)
                    return bytes(received), status, False
                if left <= 0:
                    _kill_group(pid)
                    _, status = os.waitpid(pid, 0)
                    _drain(reading, received)
                    return bytes(received), status, True
        finally:
            if ended is not None:
                os.close(ended)


def _read(reading: int, received: bytearray) -> bool:
    """Take what is there. False at the end of the pipe."""
    try:
        chunk = os.read(reading, _CHUNK)
    except BlockingIOError:
        return True
    received += chunk
    return bool(chunk)


def _drain(reading: int, received: bytearray) -> None:
    """What is still in the pipe; not for ever, since a stray grandchild may hold its other end."""
    until = time.monotonic() + _DRAIN_S
    while time.monotonic() < until:
        try:
            chunk = os.read(reading, _CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            return
        received += chunk


def _kill_group(pid: int, *, reaped: bool = False) -> None:
    """Kill the child's group; and the child alone too, which is no group of its own in its first instant."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if not reaped:  # a reaped child's number may belong to somebody else by now
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _parse(received: bytes) -> list[dict[str, Any]]:
    """Whole lines only: a killed child may leave half of one."""
    lines = received.split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _LOG_TAIL))
    return log.read().decode(errors="replace").strip()


def _oom_kills() -> int:
    """How many processes of this cgroup the kernel has killed for memory; 0 where nobody counts."""
    for path in _CGROUP_EVENTS:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
