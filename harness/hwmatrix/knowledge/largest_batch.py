"""Which batch to try next in search of the largest one that passes: a policy without side effects.

The batch is doubled until one fails, then the gap between the largest that passed and the smallest that failed is halved, until it is at
most a sixteenth of the former: the exact number is seldom worth six more tries. A batch larger than one that failed is not tried, since
larger batches take more memory and more time.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from hwmatrix.knowledge.fallback import Tried
from hwmatrix.records import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST: Final = 4096
"""The largest batch that is tried by default."""
TRIES: Final = 20
"""How many batches are tried by default: enough for every batch up to 4,096 (thirteen doublings, four halvings)."""
_GAP: Final = 16
"""The search ends when the gap is at most this part of the largest batch that passed: below 32, at the exact number."""
_SAYS_NOTHING: Final = frozenset({Status.UNAVAILABLE, Status.INFRA_ERROR, Status.NOT_RUN})
"""Statuses that say nothing about a batch, since the model was not executed: the search ends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSearch:
    """The bounds of a search: the largest batch to try, and how many batches."""

    most: int = MOST
    tries: int = TRIES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """What a search has found: the largest batch that passed and the smallest that failed (None: none did).

    ``complete``: the gap between the two is small enough, or the largest allowed batch passed.
    """

    passed: Tried | None
    failed: Tried | None
    complete: bool


def next_batch(search: BatchSearch, tried: Sequence[Tried]) -> int | None:
    """The next batch to try; None if the search has ended. The same arguments give the same answer, and no batch comes twice."""
    if len(tried) >= search.tries or any(each.status in _SAYS_NOTHING for each in tried):
        return None
    found = found_by(search, tried)
    if found.complete:
        return None
    low = found.passed.attempt.batch if found.passed else 0
    if found.failed is None:
        return min(2 * low, search.most) if low else 1
    return (low + found.failed.attempt.batch) // 2


def found_by(search: BatchSearch, tried: Sequence[Tried]) -> Found:
    """The result of the tries so far."""
    executed = [each for each in tried if each.status not in _SAYS_NOTHING]
    passed = max((each for each in executed if each.status is Status.PASS), key=lambda each: each.attempt.batch, default=None)
    failed = min((each for each in executed if each.status is not Status.PASS), key=lambda each: each.attempt.batch, default=None)
    low = passed.attempt.batch if passed else 0
    complete = low >= search.most if failed is None else failed.attempt.batch - low <= max(1, low // _GAP)
    return Found(passed=passed, failed=failed, complete=complete)
