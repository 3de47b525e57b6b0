"""Shortens texts that are too long to store or show."""

from __future__ import annotations

from typing import Final

_KEPT: Final = 0.75
"""How much of the kept text is its beginning; the rest is its end, where tracebacks say what happened."""


def cut(text: str, length: int) -> str:
    """The beginning and the end of a text of more than ``length`` characters, with how much was left out between them."""
    if len(text) <= length:
        return text
    begin = int(length * _KEPT)
    end = length - begin
    return f"{text[:begin]}\n[{len(text) - length:,} characters left out]\n{text[-end:]}"
