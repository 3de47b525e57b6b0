"""Runs one task in one forked child: starts and limits it, waits without polling, and reports exactly how it ended.

The warm parent has imported the frameworks but never computes and keeps a single thread: if the parent has ever run a parallel
loop, a forked child hangs in its first one. The child sends messages through a pipe, one JSON object per line. Its output goes
through a second pipe, of which only the tail is kept, so that a model that prints endlessly fills no disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import selectors
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from hwmatrix.basics.temporary import make_folder, remove_leftovers
from hwmatrix.runner.child import PR_SET_PDEATHSIG, prctl, work_and_exit
from hwmatrix.runner.spawned import spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hwmatrix.records import Limits

    Send = Callable[[dict[str, Any]], None]

SPAWNS: Final = sys.platform == "darwin"
"""Whether a child needs a new interpreter: see ``spawned``."""
_PR_SET_CHILD_SUBREAPER: Final = 36
"""linux/prctl.h: a descendant of this process that loses its parent becomes this process's child."""
_FOLDER_PREFIX: Final = "hwmatrix-child-"
_LOG_TAIL: Final = 8192
_MOST_BYTES: Final = 16 * 2**20
"""Size limit of all messages of a child. The longest hold samples: up to a million."""
_SHOWN: Final = 60
_CHUNK: Final = 1 << 16
_DRAIN_S: Final = 1.0
_STRAYS_S: Final = 2.0
_CGROUP_EVENTS: Final = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Where cgroup v2 and v1 count the processes that the kernel killed for memory (both have a line ``oom_kill N``)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
    """How a child ended. Exactly one of ``exit_code`` and ``signal`` is set; ``log`` is the end of what it printed.

    ``oom_killed``: SIGKILL ended the child, not because of a timeout, and the cgroup's OOM kill count rose while it ran. The count is
    per cgroup and also rises for a parallel child, so SIGKILL is required as well.

    ``messages`` are the JSON objects that the child sent, not validated yet (see ``messages``). ``refused`` is set if the messages were
    cut off at a line that is not a JSON object, or because the child sent too much.
    """

    messages: tuple[dict[str, Any], ...]
    exit_code: int | None
    signal: int | None
    timed_out: bool
    oom_killed: bool
    log: str
    wall_ms: float
    refused: str | None = None


class _Pipe:
    """A pipe from a child. It keeps everything up to a limit, or, with ``keep``, only the last bytes."""

    def __init__(self, *, keep: int | None = None) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.received = bytearray()
        self._keep = keep

    def read(self) -> bool:
        """Read what is available. False at the end of the pipe."""
        try:
            chunk = os.read(self.reading, _CHUNK)
        except BlockingIOError:
            return True
        self.received += chunk
        if self._keep is not None:
            del self.received[: -self._keep]
        elif self.overflows:
            del self.received[_MOST_BYTES + 1 :]
        return bool(chunk)

    @property
    def overflows(self) -> bool:
        """Whether the child sent more than the limit."""
        return len(self.received) > _MOST_BYTES

    def drain(self) -> None:
        """Read what is still in the pipe, for a limited time: some process may hold the other end and keep writing."""
        until = time.monotonic() + _DRAIN_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.reading, selectors.EVENT_READ)
            while time.monotonic() < until and selector.select(0):
                if not self.read():
                    return


def run_forked(
    work: Callable[[Send], None],
    *,
    limits: Limits,
    reserves_address_space: bool = False,
    closing: tuple[int, ...] = (),
    writable: tuple[Path, ...] | None = None,
    cores: tuple[int, ...] | None = None,
) -> End:
    """Run ``work(send)`` in a forked child and wait for its end, at most ``limits.timeout_s``.

    ``reserves_address_space`` limits writable memory instead of the address space: for runtimes that reserve at least as much address
    space as a GPU has memory. ``closing`` are the parent's descriptors that a forked child must close. ``writable`` takes from the child
    the right to change files elsewhere and to signal others (``landlock``), as far as the kernel can; None: it is not restricted.
    ``cores`` are the only ones that it may use (Linux); None: all of this process.

    Every process that the child started is killed at the end (on Linux also those outside its process group), so that none
    disturbs the next child. Its temporary files are removed, too: a killed child leaves them, and a container's memory holds them.
    ``work`` must be a module's function or a partial of one, since some systems spawn.
    """
    settings = {"limits": limits, "reserves_address_space": reserves_address_space, "writable": writable, "cores": cores}
    with _temporary_folder() as temporary:
        return _run_to_end(work, settings | {"temporary": temporary}, closing, limits.timeout_s)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path | None]:
    """A child's folder for temporary files. None if it cannot be made: then the child itself fails when it writes one."""
    _remove_leftovers()
    try:
        folder = make_folder(_FOLDER_PREFIX)
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _remove_leftovers() -> None:
    """Remove, once, the folders of processes that were killed together with their child."""
    remove_leftovers(_FOLDER_PREFIX)


def _run_to_end(work: Callable[[Send], None], settings: dict[str, Any], closing: tuple[int, ...], timeout_s: float) -> End:
    """Run work in a child with these settings of ``work_and_exit``; end it and what it started."""
    begin = time.monotonic()
    kills, others = _oom_kills(), children()
    adopt_strays()
    sys.stdout.flush()
    sys.stderr.flush()
    messages, log = _Pipe(), _Pipe(keep=_LOG_TAIL)
    if SPAWNS:
        pid = spawn(work, messages=messages.writing, log=log.writing, settings=settings)
    elif (pid := os.fork()) == 0:
        _run_child(work, messages, log, settings, closing)
    os.close(messages.writing)
    os.close(log.writing)
    try:
        status, timed_out = _wait(pid, messages, log, begin + timeout_s)
    except BaseException:
        _kill_group(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        raise
    finally:
        end_strays(others)
        for pipe in (messages, log):
            pipe.drain()
            os.close(pipe.reading)
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    parsed, refused = parse(bytes(messages.received))
    return End(
        messages=parsed,
        refused=f"it sent more than {_MOST_BYTES:,} bytes" if messages.overflows else refused,
        exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        signal=ended_by,
        timed_out=timed_out,
        oom_killed=ended_by == signal.SIGKILL and not timed_out and _oom_kills() > kills,
        log=log.received.decode(errors="replace").strip(),
        wall_ms=(time.monotonic() - begin) * 1000,
    )


def run_owning(work: Callable[[Send], None], own: Path, *, limits: Limits, closing: tuple[int, ...] = (), restricted: bool) -> End:
    """Run work in a child that, if it is ``restricted``, can change only files in the folder ``own``, besides temporary ones."""
    return run_forked(work, limits=limits, closing=closing, writable=(own,) if restricted else None)


def end_with_parent() -> None:
    """Have this process interrupted (SIGTERM) when its parent dies, so that no runner outlives a killed host."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def adopt_strays() -> None:
    """Make orphaned descendants children of this process (:func:`children`), so that it can end them."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _run_child(work: Callable[[Send], None], messages: _Pipe, log: _Pipe, settings: dict[str, Any], closing: tuple[int, ...]) -> NoReturn:
    """Give a forked child its own process group, redirect its output to the pipes, and do the work."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(log.writing, 1)
        os.dup2(log.writing, 2)
        for unneeded in (messages.reading, log.reading, log.writing, *closing):
            os.close(unneeded)
    except BaseException:  # noqa: BLE001 - nobody could read a message, and the parent's code must not continue in its child
        os._exit(1)
    work_and_exit(work, messages.writing, **settings)


def _wait(pid: int, messages: _Pipe, log: _Pipe, deadline: float) -> tuple[int, bool]:
    """Collect what the child sends until it ends; kill it at the deadline. Returns its wait status, and whether it timed out."""
    with selectors.DefaultSelector() as selector:
        for pipe in (messages, log):
            selector.register(pipe.reading, selectors.EVENT_READ, pipe)
        ended = _pidfd(pid)
        try:
            if ended is not None:
                selector.register(ended, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                for key, _ in selector.select(max(0.0, left) if ended is not None else max(0.0, min(left, 0.01))):
                    if key.data is not None and not key.data.read():
                        selector.unregister(key.data.reading)
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    _kill_group(pid, reaped=True)
                    return status, False
                if left <= 0 or messages.overflows:
                    _kill_group(pid)
                    _, status = os.waitpid(pid, 0)
                    return status, left <= 0
        finally:
            if ended is not None:
                os.close(ended)


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the child ends; None on macOS and on kernels without it (some sandboxes)."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _kill_group(pid: int, *, reaped: bool = False) -> None:
    """Kill the child's process group, and the child itself, which has no group of its own right after the fork."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if not reaped:  # a reaped child's process id may have been reused
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children() -> set[int]:
    """The children of this process, as the kernel lists them (proc(5), task/<tid>/children); empty where it does not."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.update(int(pid) for pid in listing.read_text(encoding="ascii").split())
    return found


def end_strays(others: set[int]) -> None:
    """Kill orphans that a child left in other process groups: they are our children now. Killing one may orphan its own children."""
    until = time.monotonic() + _STRAYS_S
    while (strays := children() - others) and time.monotonic() < until:
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def parse(received: bytes) -> tuple[tuple[dict[str, Any], ...], str | None]:
    """The JSON objects up to the first invalid line, and what is wrong with that line. A partial last line of a killed child is ignored."""
    messages: list[dict[str, Any]] = []
    for number, line in enumerate(received.split(b"\n")[:-1], 1):
        shown = ascii(line[:_SHOWN].decode(errors="replace")) + (" ..." if len(line) > _SHOWN else "")
        try:
            message = json.loads(line, parse_constant=_reject_constant)
        except (ValueError, RecursionError) as error:  # too many digits or too deep nesting raise these
            return tuple(messages), f"line {number} is not JSON ({str(error)[:_SHOWN]}): {shown}"
        if not isinstance(message, dict):
            return tuple(messages), f"line {number} is not a JSON object: {shown}"
        messages.append(message)
    return tuple(messages), None


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a valid JSON number")


def _oom_kills() -> int:
    """How many processes of this cgroup the OOM killer has killed; 0 where the kernel does not count them."""
    for path in _CGROUP_EVENTS:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
