"""Child processes whose output is shown immediately, and which never outlive the block that started them."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Final, Self

from hwmatrix.basics.text import cut, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

TAIL_LINES: Final = 200
_TAIL: Final = 4_000
"""Characters of a line in the last lines of output."""
LINE: Final = 2**20
"""Characters that count as a line if no newline comes before: a child may print without end."""
GRACE_S: Final = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    """How a child ended: its exit code (negative: the signal that killed it) and its last lines of output."""

    command: tuple[str, ...]
    code: int
    output: str


class Processes:
    """Children in their own process groups. Leaving the block, for whatever reason, ends those still running.

    Several threads may run children through one object. The thread that leaves the block (the main one on Ctrl-C) ends them all, and each
    :meth:`run` then returns with the signal's exit code.
    """

    def __init__(self, *, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with self._lock:
            self._closed = True
            left = list(self._running)
        for child in left:
            _signal_group(child, signal.SIGTERM)
        for child in left:
            try:
                child.wait(timeout=self._grace_s)
            except subprocess.TimeoutExpired:
                _signal_group(child, signal.SIGKILL)
                child.wait()

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        stdin: str = "",
    ) -> Finished:
        """Run a command to its end. ``on_line`` gets each line of stdout and stderr, without its newline and without control characters.

        Raises:
            OSError: the program cannot be started.
        """
        tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        with self._lock:
            if self._closed:
                return Finished(command=tuple(command), code=-signal.SIGTERM, output="")
            child = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._running.add(child)
        try:
            assert child.stdin is not None  # noqa: S101 - Popen's contract for PIPE, for the type checker
            assert child.stdout is not None  # noqa: S101 - the same
            with child.stdout:
                with contextlib.suppress(BrokenPipeError):  # a child that exits without reading explains why in its output
                    child.stdin.write(stdin)
                    child.stdin.close()
                while line := child.stdout.readline(LINE):
                    shown = visible(line.rstrip("\n"), keep="\t")
                    tail.append(cut(shown, _TAIL))
                    on_line(shown)
            code = child.wait()
        except BaseException:
            _signal_group(child, signal.SIGTERM)
            raise
        with self._lock:
            self._running.discard(child)
        return Finished(command=tuple(command), code=code, output="\n".join(tail))


def _signal_group(child: subprocess.Popen[str], number: signal.Signals) -> None:
    """Signal a child and its descendants. A child that was already waited for is left alone: its process id may have been reused."""
    if child.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS returns EPERM for a group of zombies
        os.killpg(child.pid, number)
