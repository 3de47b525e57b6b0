"""What to tell somebody who wrote a word that has no meaning where it stands."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_LISTED: Final = 80
_NEAREST: Final = 12


def near_miss(word: str, allowed: Iterable[str], *, besides: Iterable[str] = ()) -> str:
    """What to tell somebody who wrote ``word`` where only ``allowed`` has a meaning. ``besides`` may be meant too, and is not listed.

    Of more words than anybody reads, those that are most like ``word`` are listed.
    """
    options = sorted(allowed)
    near = closest(word, [*options, *besides])
    listed = ", ".join(options)
    if len(options) > _MOST_LISTED:
        nearest = difflib.get_close_matches(word, options, n=_NEAREST, cutoff=0.0)
        listed = f"{', '.join(sorted(nearest))} and {len(options) - len(nearest)} more"
    return f"did you mean {near!r}? allowed: {listed}" if near is not None else f"allowed: {listed}"


def closest(word: str, allowed: Iterable[str]) -> str | None:
    """The word that was probably meant; None where none is like it."""
    return next(iter(difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)), None)
