"""Keeps a command going after the reader of its output has closed the pipe (``hwmatrix publish | head -1``).

Python ignores the signal SIGPIPE and raises BrokenPipeError from the next print, in the middle of whatever the command was doing. Here the
rest of the output goes nowhere instead, and the command does its work to the end. Other broken connections raise the error as usual.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

    from _typeshed import ReadableBuffer

CLOSED_PIPE: Final = 128 + signal.SIGPIPE
"""The exit code that a shell reports for a program killed by SIGPIPE."""
_STREAMS: Final = ("stdout", "stderr")


class Outputs:
    """Replaces stdout and stderr, as far as they are files, by streams that survive a closed pipe. Use as a context manager."""

    def __init__(self) -> None:
        self._replaced: dict[str, tuple[io.TextIOWrapper, io.TextIOWrapper, _Lasting]] = {}

    def __enter__(self) -> Self:
        for name in _STREAMS:
            stream = getattr(sys, name)
            if not isinstance(stream, io.TextIOWrapper):  # there is none, or it is no file
                continue
            with contextlib.suppress(OSError, ValueError):  # it has no file descriptor
                _flush(stream)
                raw = _Lasting(stream.fileno())
                lasting = io.TextIOWrapper(
                    io.BufferedWriter(raw),
                    encoding=stream.encoding,
                    errors=stream.errors,
                    line_buffering=stream.line_buffering,
                    write_through=stream.write_through,
                )
                self._replaced[name] = (stream, lasting, raw)
                setattr(sys, name, lasting)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Write what is buffered, and put the streams back."""
        for name, (stream, lasting, _) in self._replaced.items():
            lasting.flush()
            if getattr(sys, name) is lasting:
                setattr(sys, name, stream)

    def unread(self) -> bool:
        """Write what is buffered; return whether the reader of an output is gone."""
        for _, lasting, _ in self._replaced.values():
            lasting.flush()
        return any(raw.unread for _, _, raw in self._replaced.values())


class _Lasting(io.FileIO):
    """An output whose descriptor leads to the null device as soon as its reader is gone, for this process and for those it starts."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.unread = False

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            self.unread = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def _flush(stream: io.TextIOWrapper) -> None:
    with contextlib.suppress(BrokenPipeError):
        stream.flush()


def broken_pipe(error: BaseException) -> BrokenPipeError | None:
    """The BrokenPipeError that an error is or was caused by; None if there is none. typer turns it into an exit code."""
    found = error.__context__ if isinstance(error, SystemExit) else error
    return found if isinstance(found, BrokenPipeError) else None
