"""Which part of all types of transformers is tried: another one each day."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PARTS: Final = 20
_PART: Final = re.compile(r"(\d+)/(\d+)", re.ASCII)


def part_of(names: tuple[str, ...], part: int, parts: int = PARTS) -> tuple[str, ...]:
    """One of ``parts`` equal parts of the names: every n-th name."""
    return names[part % parts :: parts]


def requested_part(environment: Mapping[str, str], variable: str, *, day: int) -> tuple[int, int]:
    """Which part to try, and the number of parts: from the environment variable (``7/20``), else by the day.

    Raises:
        ValueError: the variable has another form.
    """
    requested = environment.get(variable)
    if not requested:
        return day % PARTS, PARTS
    found = _PART.fullmatch(requested)
    if found is None or not int(found[1]) < int(found[2]):
        raise ValueError(f"{variable}={requested!r}: give a part and the number of parts, from 0/20 to 19/20, or 0/1 for all")
    return int(found[1]), int(found[2])
