"""Keeps a command going after the reader of its output has closed the pipe (``hwmatrix publish | head -1``)."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import ReadableBuffer


class _Lasting(io.FileIO):
    """An output whose descriptor leads to the null device as soon as its reader is gone, for this process and for those it starts."""

    unread = False

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            self.unread = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


@contextlib.contextmanager
def lasting_outputs() -> Iterator[Callable[[], bool]]:
    """Replace stdout and stderr, as far as they are files. Yields a function that says whether the reader of one is gone."""
    files: list[_Lasting] = []
    streams: list[io.TextIOWrapper] = []
    with contextlib.ExitStack() as stack:
        for before, redirect in ((sys.stdout, contextlib.redirect_stdout), (sys.stderr, contextlib.redirect_stderr)):
            if not isinstance(before, io.TextIOWrapper):  # there is none, or it is no file
                continue
            with contextlib.suppress(OSError, ValueError):  # it has no descriptor
                files.append(_Lasting(before.fileno(), "w", closefd=False))
                buffered, lines = io.BufferedWriter(files[-1]), before.line_buffering
                streams.append(io.TextIOWrapper(buffered, encoding=before.encoding, errors=before.errors, line_buffering=lines))
                stack.enter_context(redirect(streams[-1]))

        def unread() -> bool:
            for stream in streams:
                stream.flush()
            return any(file.unread for file in files)

        yield unread
