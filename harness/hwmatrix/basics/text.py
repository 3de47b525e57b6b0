"""Short words for numbers, and texts that are too long to store or show."""

from __future__ import annotations

from typing import Final

_KEPT: Final = 0.75
"""The share of the kept text that is its beginning. The rest is its end, where tracebacks say what happened."""


_DIRTY: Final = "-dirty"
_COMMIT: Final = 12


def commit(name: str) -> str:
    """Shorten a commit as git describes it to 12 digits. The mark of a working tree that differed from it stays."""
    return name.removesuffix(_DIRTY)[:_COMMIT] + (_DIRTY if name.endswith(_DIRTY) else "")


def plural(count: int, noun: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def cut(text: str, length: int) -> str:
    """Shorten a text of more than ``length`` characters to its beginning and end, and say how much was left out between them."""
    if len(text) <= length:
        return text
    begin = int(length * _KEPT)
    end = length - begin
    return f"{text[:begin]}\n[{len(text) - length:,} characters left out]\n{text[-end:]}"
