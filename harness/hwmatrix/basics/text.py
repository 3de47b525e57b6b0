"""Short words for numbers, and texts that are too long to store or show."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final

_KEPT: Final = 0.75
"""The share of the kept text that is its beginning. The rest is its end, where tracebacks say what happened."""

_SPACES: Final = re.compile(r"\s+")
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


def plain(text: Any) -> str:
    """Return the text on one line without control characters: those that could hide or reorder text become the replacement character."""
    return visible(_SPACES.sub(" ", str(text))).strip()


def visible(text: str, keep: str = "") -> str:
    """Return the text without invisible characters: control, format, surrogate and private ones become the replacement character.

    ``keep`` are characters that are left unchanged, such as tabs and line breaks.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character in keep or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} else "\ufffd"
        for character in text
    )
