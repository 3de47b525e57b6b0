"""One task in one forked child: started, limited, waited for without polling, and its end classified exactly.

The warm parent has imported the frameworks and stays at one thread without ever computing: a child forked from a parent
that had run a parallel loop hangs in its first one. The child talks through a pipe, one JSON object a line; whatever it
prints goes through another one, of which the end is kept: no disk is filled by a model that prints without end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from hwmatrix.runner.child import PR_SET_PDEATHSIG, prctl, work_and_exit
from hwmatrix.runner.spawned import spawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.records import Limits

    Send = Callable[[dict[str, Any]], None]

SPAWNS: Final = sys.platform == "darwin"
"""Where a child needs an interpreter of its own: see ``spawned``."""
_PR_SET_CHILD_SUBREAPER: Final = 36
"""linux/prctl.h: whoever loses its parent below this process becomes this process's child."""
_LOG_TAIL: Final = 8192
_MOST_BYTES: Final = 16 * 2**20
"""Of all messages of a child. The longest are samples: a million of them."""
_SHOWN: Final = 60
_CHUNK: Final = 1 << 16
_DRAIN_S: Final = 1.0
_STRAYS_S: Final = 2.0
_CGROUP_EVENTS: Final = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Where cgroup v2 and v1 count the processes that the kernel killed for memory (both have a line ``oom_kill N``)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
    """How a child ended. Exactly one of ``exit_code`` and ``signal`` is set; ``log`` is the end of what it printed.

    ``oom_killed``: SIGKILL ended it, not because it was late, and meanwhile the kernel killed for memory in this cgroup. The kernel
    counts by cgroup: of two children that ran at once, the one that ended in another way is not taken for the one that it killed.

    ``messages`` are the JSON objects that it sent, of which nothing is checked yet (see ``messages``); ``refused`` says why those
    end where they do, if a line behind them is no JSON object or the child sent too much.
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
    """What comes from a child: all of it up to a limit, or, with ``keep``, only the last bytes."""

    def __init__(self, *, keep: int | None = None) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.received = bytearray()
        self._keep = keep

    def read(self) -> bool:
        """Take what is there. False at the end of the pipe."""
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
        """Whether more came than any child has to tell."""
        return len(self.received) > _MOST_BYTES

    def drain(self) -> None:
        """What is still in the pipe; not for ever, since somebody may hold its other end and go on writing."""
        until = time.monotonic() + _DRAIN_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.reading, selectors.EVENT_READ)
            while time.monotonic() < until and selector.select(0):
                if not self.read():
                    return


def run_forked(work: Callable[[Send], None], *, limits: Limits, reserves_address_space: bool = False, closing: tuple[int, ...] = ()) -> End:
    """Run ``work(send)`` in a forked child and wait for its end, at most ``limits.timeout_s``.

    ``reserves_address_space`` limits the memory that can be written instead of the address space: for runtimes that reserve
    as much of that as a GPU has memory, and more. ``closing`` are descriptors of ours that a forked child must not have.

    Whatever the child has started is killed at the end (on Linux also what has left its process group), so that nothing
    stays behind to disturb the next one. ``work`` must be a module's function or a partial of one, since some systems spawn.
    """
    begin = time.monotonic()
    kills, others = _oom_kills(), children()
    adopt_strays()
    sys.stdout.flush()
    sys.stderr.flush()
    messages, log = _Pipe(), _Pipe(keep=_LOG_TAIL)
    settings = {"limits": limits, "reserves_address_space": reserves_address_space}
    if SPAWNS:
        pid = spawn(work, messages=messages.writing, log=log.writing, settings=settings)
    elif (pid := os.fork()) == 0:
        _be_child(work, messages, log, settings, closing)
    os.close(messages.writing)
    os.close(log.writing)
    try:
        status, timed_out = _wait(pid, messages, log, begin + limits.timeout_s)
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


def end_with_parent() -> None:
    """Have this process interrupted (SIGTERM) when its parent dies, so that no runner works on for a host that was killed."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def adopt_strays() -> None:
    """Have those who lose their parent below this process become its children (:func:`children`), which it can end."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _be_child(work: Callable[[Send], None], messages: _Pipe, log: _Pipe, settings: dict[str, Any], closing: tuple[int, ...]) -> NoReturn:
    """What a forked child does first: a group of its own, and the pipes in the place of what it has from its parent."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(log.writing, 1)
        os.dup2(log.writing, 2)
        for unneeded in (messages.reading, log.reading, log.writing, *closing):
            os.close(unneeded)
    except BaseException:  # noqa: BLE001 - nobody could read of it, and the parent's code must not go on in its child
        os._exit(1)
    work_and_exit(work, messages.writing, **settings)


def _wait(pid: int, messages: _Pipe, log: _Pipe, deadline: float) -> tuple[int, bool]:
    """Collect what the child sends until it ends, or until the deadline, and then end it. Gives its status; was it late."""
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
    """What becomes readable when the child ends; None on macOS, and on kernels (those of sandboxes) that do not have it."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _kill_group(pid: int, *, reaped: bool = False) -> None:
    """Kill the child's group; and the child alone too, which is no group of its own in its first instant."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if not reaped:  # a reaped child's number may belong to somebody else by now
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children() -> set[int]:
    """The children of this process, as the kernel lists them (proc(5), task/<tid>/children); none where it does not."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.update(int(pid) for pid in listing.read_text(encoding="ascii").split())
    return found


def end_strays(others: set[int]) -> None:
    """End what a child left running in a group of its own: it is ours since its parent died. Its own children come up next."""
    until = time.monotonic() + _STRAYS_S
    while (strays := children() - others) and time.monotonic() < until:
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def parse(received: bytes) -> tuple[tuple[dict[str, Any], ...], str | None]:
    """The JSON objects of whole lines, a killed child may leave half of one, up to the first that is none; and what is wrong with it."""
    messages: list[dict[str, Any]] = []
    for number, line in enumerate(received.split(b"\n")[:-1], 1):
        shown = ascii(line[:_SHOWN].decode(errors="replace")) + (" ..." if len(line) > _SHOWN else "")
        try:
            message = json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:  # a number of too many digits, or too many brackets, is one of these
            return tuple(messages), f"line {number} is no JSON ({str(error)[:_SHOWN]}): {shown}"
        if not isinstance(message, dict):
            return tuple(messages), f"line {number} is no JSON object: {shown}"
        messages.append(message)
    return tuple(messages), None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a valid JSON number")


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
