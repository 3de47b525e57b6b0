"""Hints for an unknown word: what was probably meant, and which words are allowed."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_LISTED: Final = 80
_NEAREST: Final = 12


def near_miss(word: str, allowed: Iterable[str], *, besides: Iterable[str] = ()) -> str:
    """Return a hint for ``word``, which is not one of ``allowed``. Words in ``besides`` may be suggested too, but are not listed.

    If there are too many allowed words, only the ones most similar to ``word`` are listed.
    """
    options = sorted(allowed)
    near = closest(word, [*options, *besides])
    listed = ", ".join(options)
    if len(options) > _MOST_LISTED:
        nearest = difflib.get_close_matches(word, options, n=_NEAREST, cutoff=0.0)
        listed = f"{', '.join(sorted(nearest))} and {len(options) - len(nearest)} more"
    return f"did you mean {near!r}? allowed: {listed}" if near is not None else f"allowed: {listed}"


def closest(word: str, allowed: Iterable[str]) -> str | None:
    """Return the word that was probably meant; None if none is similar."""
    return next(iter(difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)), None)
