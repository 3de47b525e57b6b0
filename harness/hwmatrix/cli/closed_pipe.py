"""Detects that the reader of the output closed the pipe (``hwmatrix show | head -1``), and exits quietly.

Python turns the signal SIGPIPE off and raises BrokenPipeError; rich and typer make an exit code of 1 of that. A broken connection to
something else raises the same, so the outputs themselves are asked whether anybody still reads them.
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
"""What a shell reads of a program that SIGPIPE has ended."""


class Outputs:
    """stdout and stderr as they are at the beginning of the program. Use as a context manager."""

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}

    def __enter__(self) -> Self:
        """Keep a copy of each: rich puts something else into the place of one that is closed."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is no file of the system's
                self._copies[stream.fileno()] = os.dup(stream.fileno())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Let go of the copies."""
        for copy in self._copies.values():
            os.close(copy)
        self._copies = {}

    def unread(self) -> list[int]:
        """The descriptors of those that nobody reads any more."""
        return [descriptor for descriptor, copy in self._copies.items() if _is_unread(copy)]

    def silence(self) -> None:
        """Lead those that nobody reads to nowhere: Python writes what is left when it ends, and would complain."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in self.unread():
            os.dup2(nowhere, descriptor)
        os.close(nowhere)


def broken_pipe(error: BaseException) -> BrokenPipeError | None:
    """The broken pipe that an error is, or because of which somebody wants to leave."""
    found = error.__context__ if isinstance(error, SystemExit) else error
    return found if isinstance(found, BrokenPipeError) else None


def flush() -> None:
    """Write what is held back.

    Raises:
        BrokenPipeError: nobody reads it any more.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _is_unread(descriptor: int) -> bool:
    asking = select.poll()
    asking.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in asking.poll(0))
