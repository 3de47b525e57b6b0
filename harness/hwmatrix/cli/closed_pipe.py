"""Detects that the reader of the output closed the pipe (``hwmatrix show | head -1``), and exits quietly.

Python ignores the signal SIGPIPE and raises BrokenPipeError; rich and typer turn that into exit code 1. Other broken connections
raise it too, so the output descriptors themselves are checked for a closed reader.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

CLOSED_PIPE: Final = 128 + signal.SIGPIPE
"""The exit code that a shell reports for a program killed by SIGPIPE."""


class Outputs:
    """stdout and stderr at the start of the program. Use as a context manager."""

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}

    def __enter__(self) -> Self:
        """Keep a copy of each descriptor: rich replaces a closed one."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # there is no such stream, or it has no file descriptor
                self._copies[stream.fileno()] = os.dup(stream.fileno())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the copies."""
        for copy in self._copies.values():
            os.close(copy)
        self._copies = {}

    def unread(self) -> list[int]:
        """The descriptors whose reader is gone."""
        return [descriptor for descriptor, copy in self._copies.items() if _is_unread(copy)]

    def silence(self) -> None:
        """Redirect outputs without a reader to the null device: Python flushes at exit, and would print an error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in self.unread():
            os.dup2(nowhere, descriptor)
        os.close(nowhere)


def broken_pipe(error: BaseException) -> BrokenPipeError | None:
    """The BrokenPipeError that an error is or was caused by; None if there is none."""
    found = error.__context__ if isinstance(error, SystemExit) else error
    return found if isinstance(found, BrokenPipeError) else None


def flush() -> None:
    """Flush the outputs.

    Raises:
        BrokenPipeError: the reader is gone.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _is_unread(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
