"""Ctrl-C and SIGTERM, as the commands take them: a KeyboardInterrupt in the main thread, which the command turns into an exit code."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code that a shell reports for a program that Ctrl-C ended."""


def interrupt_on_sigterm() -> None:
    """Treat SIGTERM, which ``docker stop`` and runners send, like Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)


def forget_interrupt() -> None:
    """Call this where a KeyboardInterrupt is handled, so that ``python -m`` ends with the program's exit code.

    If the signal arrives while CPython executes the text of an ``exec``, as each dataclass does when it is imported, the interpreter notes
    an unhandled interrupt and ends itself by SIGINT, although the exception was caught above. The next text that runs clears the note
    (``unhandled_keyboard_interrupt`` in CPython's Python/pythonrun.c and Modules/main.c).
    """
    exec("")  # noqa: S102 - a constant


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
