"""Whether a target does a task as well as the reference, from the same examples: a paired test that can also say that it cannot tell."""

from __future__ import annotations

import math
from typing import Final

MARGIN: Final = 0.05
"""The share of answers that may become wrong: fewer is as well."""
LEVEL: Final = 0.05
"""The chance of each test to be wrong."""


def as_well(*, lost: int, gained: int, count: int) -> bool | None:
    """Whether fewer than :data:`MARGIN` of the answers become wrong; None if there are too few to tell.

    True if so few losses were unlikely otherwise (exact binomial test, which takes 59 answers), False if more answers become wrong than
    right (exact McNemar test), each at :data:`LEVEL`.

    Args:
        lost: the answers that only the reference gets right.
        gained: those that only the target gets right.
        count: all answers that were compared.
    """
    if _at_most(lost, count, MARGIN) < LEVEL:
        return True
    return False if _at_most(gained, lost + gained, 0.5) < LEVEL else None


def _at_most(most: int, count: int, share: float) -> float:
    """The probability of at most so many of ``count`` independent events with this probability."""
    of_all = math.lgamma(count + 1)  # in logarithms: of a thousand events there are more combinations than a float can hold
    ways = (of_all - math.lgamma(number + 1) - math.lgamma(count - number + 1) for number in range(most + 1))
    odds = (number * math.log(share) + (count - number) * math.log1p(-share) for number in range(most + 1))
    return math.fsum(math.exp(way + odd) for way, odd in zip(ways, odds, strict=True))
