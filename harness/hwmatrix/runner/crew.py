"""Runs several tasks in parallel: workers forked by the warm parent, each of which forks one child per task.

The parent forks its workers before anything is computed, and gives each a new task when it is free. Only the parent stores and reports
results. If a worker dies, only its current task is lost: the parent reports that, and replaces the worker.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from hwmatrix.basics.json_text import read_json
from hwmatrix.runner.forked import SPAWNS, adopt_strays, children, end_strays, end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType, TracebackType

    Work = Callable[[int, tuple[int, ...]], dict[str, Any]]
    """Does the task of this number and returns its answer, which is sent as JSON; its children must close the descriptors."""

_NUMBER_BYTES: Final = 4
_LENGTH_BYTES: Final = 8
_MOST_BYTES: Final = 256 * 2**20
"""Size limit of one answer, which contains everything that a child sent, with its texts escaped."""
_GRACE_S: Final = 30.0
"""How long after a task's time limit a worker may still answer."""
_ENDING_S: Final = 5.0
_GONE: Final = 0
"""The process id of a worker that has ended."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Done:
    """A finished task: its answer, or how its worker ended or failed (``problem``)."""

    number: int
    answer: dict[str, Any] | None = None
    problem: str | None = None


class _Worker:
    """A forked worker, as its parent sees it."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.number: int | None = None
        self.deadline = 0.0


class Crew:
    """A pool of workers. Use as a context manager: leaving it ends them. With ``size`` 1 there are none: the caller does the work.

    ``patience`` returns a task's time limit in seconds. A worker that exceeds it by far is killed. Every worker calls ``ending`` before
    it exits, to end what the work has started there.
    """

    def __init__(self, work: Work, *, size: int, patience: Callable[[int], float], ending: Callable[[], None] | None = None) -> None:
        self._work = work
        self._ending = ending
        self._size = size
        self._patience = patience
        self._workers: list[_Worker] = []
        self._others: set[int] = set()

    def __enter__(self) -> Self:
        """Fork the workers. Before this, the process must not have computed anything or started a runtime's threads."""
        if self._size > 1:
            adopt_strays()
            self._others = children()
            gc.collect()
            gc.freeze()  # a collection in a worker would write to, and so copy, every page of objects shared with the parent
            for _ in range(self._size):
                self._workers.append(self._fork())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End all workers and the processes that they started."""
        for worker in self._workers:
            worker.channel.close()  # an idle worker then exits
            if worker.number is not None:
                os.kill(worker.pid, signal.SIGTERM)
        for worker in self._workers:
            _reap(worker.pid, _ENDING_S)
        if self._workers:
            end_strays(self._others)
            gc.unfreeze()
        self._workers = []

    def do(self, numbers: Iterable[int], started: Callable[[int], None]) -> Iterator[Done]:
        """Do tasks; yield each as soon as it is done, in any order. ``started`` is called when a task begins.

        Without workers, a task begins when the caller asks for the next result, and exceptions of the work propagate.
        """
        waiting = deque(numbers)
        if not self._workers:
            for number in waiting:
                started(number)
                yield Done(number=number, answer=self._work(number, ()))
            return
        for index in range(len(self._workers)):
            self._hand_out(index, waiting, started)
        while busy := [worker for worker in self._workers if worker.number is not None]:
            for worker in _ready_workers(busy):
                done = self._collect(worker)
                self._hand_out(self._workers.index(worker), waiting, started)
                yield done

    def _hand_out(self, index: int, waiting: deque[int], started: Callable[[int], None]) -> None:
        """Give the next task to a worker; if the worker has died, to a new one in its place."""
        if not waiting:
            return
        if self._workers[index].pid == _GONE:
            self._workers[index] = self._fork()
        worker = self._workers[index]
        number = waiting.popleft()
        started(number)
        worker.number, worker.deadline = number, time.monotonic() + self._patience(number) + _GRACE_S
        try:
            worker.channel.sendall(number.to_bytes(_NUMBER_BYTES, "big"))
        except OSError:  # the worker is dead; the next read of its channel reports that
            return

    def _collect(self, worker: _Worker) -> Done:
        """A worker's answer, or how the worker ended. A worker that has ended is marked as gone."""
        number, worker.number = worker.number, None
        assert number is not None  # noqa: S101 - only busy workers are asked
        late = time.monotonic() > worker.deadline
        problem = "did not answer in time and was killed" if late else None
        try:
            done = None if late else _receive(worker.channel, number)
        except _GarbledError as error:
            done, problem = None, f"sent an unreadable answer and was killed: {error}"
        if done is not None:
            return done
        worker.channel.close()
        how = _reap(worker.pid, 0.0 if problem else _ENDING_S)
        worker.pid = _GONE
        end_strays(self._others | {other.pid for other in self._workers})
        return Done(number=number, problem=problem or how)

    def _fork(self) -> _Worker:
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            unneeded = [ours, *(worker.channel for worker in self._workers)]
            _run_worker(self._work, theirs, ending=self._ending, unneeded=unneeded, parent=parent)
        theirs.close()
        return _Worker(pid, ours)


def at_once(asked: int, threads: int) -> int:
    """How many cells with ``threads`` threads each run in parallel: ``asked``, limited by the cores of this process."""
    if SPAWNS:
        return 1
    return max(1, min(asked, len(os.sched_getaffinity(0)) // max(1, threads)))


def _ready_workers(busy: list[_Worker]) -> list[_Worker]:
    """Wait for workers that answer, end, or miss their deadline."""
    with selectors.DefaultSelector() as selector:
        for worker in busy:
            selector.register(worker.channel, selectors.EVENT_READ, worker)
        nearest = min(worker.deadline for worker in busy)
        ready = [key.data for key, _ in selector.select(max(0.0, nearest - time.monotonic()))]
    now = time.monotonic()
    return ready or [worker for worker in busy if now > worker.deadline]


class _GarbledError(Exception):
    """A worker sent something other than an answer. The message says what is wrong with it."""


def _receive(channel: socket.socket, number: int) -> Done | None:
    """The whole answer for a task; None if the worker ended before sending all of it.

    Raises:
        _GarbledError: it is too long, not JSON, or neither an answer nor a problem.
    """
    channel.settimeout(_GRACE_S)
    try:
        length = int.from_bytes(_read(channel, _LENGTH_BYTES), "big")
        if length > _MOST_BYTES:
            raise _GarbledError(f"{length:,} bytes exceed the limit of {_MOST_BYTES:,}")
        message = read_json(_read(channel, length))
    except (EOFError, OSError):
        return None
    except ValueError as error:
        raise _GarbledError(f"not JSON: {error}") from error
    match message:
        case {"answer": dict() as answer, **rest} if not rest:
            return Done(number=number, answer=answer)
        case {"problem": str() as problem, **rest} if not rest:
            return Done(number=number, problem=problem)
    raise _GarbledError("neither an answer nor a problem")


def _read(channel: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = channel.recv(min(size - len(received), 1 << 20))
        if not chunk:
            raise EOFError
        received += chunk
    return bytes(received)


def _reap(pid: int, patience_s: float) -> str:
    """Wait up to ``patience_s`` seconds for a worker to exit, then kill it. Returns how it ended."""
    if pid == _GONE:
        return "had already ended"
    until = time.monotonic() + patience_s
    while not (done := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.005)
    if not done[0]:
        os.kill(pid, signal.SIGKILL)
        done = os.waitpid(pid, 0)
    status = done[1]
    return f"was ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exited with code {os.WEXITSTATUS(status)}"


def _run_worker(
    work: Work, channel: socket.socket, *, ending: Callable[[], None] | None, unneeded: list[socket.socket], parent: int
) -> NoReturn:
    """Do tasks until the channel closes. The parent's death or SIGTERM interrupts: the worker kills its child, then exits."""
    code = 1
    try:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, _interrupt)
        end_with_parent()
        if os.getppid() != parent:
            raise KeyboardInterrupt  # noqa: TRY301 - the parent died before end_with_parent took effect
        for other in unneeded:
            other.close()
        while order := channel.recv(_NUMBER_BYTES, socket.MSG_WAITALL):
            answer = json.dumps(_answer_of(work, int.from_bytes(order, "big"), channel.fileno())).encode()
            channel.sendall(len(answer).to_bytes(_LENGTH_BYTES, "big") + answer)
        code = 0
    except KeyboardInterrupt:
        code = 128 + signal.SIGTERM
    except BaseException:  # noqa: BLE001 - the parent's code must not continue in its worker
        import traceback

        traceback.print_exc()
    finally:
        _exit_worker(code, ending)


def _exit_worker(code: int, ending: Callable[[], None] | None) -> NoReturn:
    """End this worker. Further signals are ignored, so that it can end what it started."""
    try:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)
        if ending is not None:
            ending()
    finally:
        os._exit(code)


def _answer_of(work: Work, number: int, channel: int) -> dict[str, Any]:
    try:
        return {"answer": work(number, (channel,))}
    except Exception as error:  # noqa: BLE001 - reported to the parent, so that only this task is lost
        return {"problem": f"failed: {type(error).__name__}: {error}"}


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
