"""The search for the largest batch: any limit is found, in few tries, and nothing above a failure is tried."""

from __future__ import annotations

import pytest

from hwmatrix.knowledge.fallback import Attempt, Tried
from hwmatrix.knowledge.largest_batch import MOST, TRIES, BatchSearch, found_by, next_batch
from hwmatrix.records import Status


def searched(search: BatchSearch, limit: int, status: Status = Status.OOM) -> list[Tried]:
    """The tries of a search in which batches up to ``limit`` pass, and others end with ``status``."""
    tried: list[Tried] = []
    while (batch := next_batch(search, tried)) is not None:
        tried.append(Tried(attempt=Attempt(hardware="cpu", batch=batch), status=Status.PASS if batch <= limit else status))
    return tried


def batches(tried: list[Tried]) -> list[int]:
    return [each.attempt.batch for each in tried]


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 5, 7, 16, 31, 33, 100, 1000, 1023, 1024, 3000, 4095])
@pytest.mark.parametrize("status", [Status.OOM, Status.CRASH, Status.TIMEOUT, Status.MISMATCH, Status.FACTORY_ERROR])
def test_the_default_search_finds_every_limit_within_a_sixteenth(limit: int, status: Status) -> None:
    tried = searched(BatchSearch(), limit, status)
    found = found_by(BatchSearch(), tried)
    assert found.complete
    assert found.failed is not None
    passed = found.passed.attempt.batch if found.passed else 0
    assert passed <= limit < found.failed.attempt.batch
    assert found.failed.attempt.batch - passed <= max(1, passed // 16)
    assert len(tried) <= TRIES
    assert len(set(batches(tried))) == len(tried)


def test_it_doubles_then_halves_the_gap_and_tries_nothing_above_a_failure() -> None:
    assert batches(searched(BatchSearch(), 11)) == [1, 2, 4, 8, 16, 12, 10, 11]


def test_the_largest_allowed_batch_ends_it() -> None:
    tried = searched(BatchSearch(most=100), 10_000)
    assert batches(tried)[-2:] == [64, 100]
    assert found_by(BatchSearch(most=100), tried).complete
    assert found_by(BatchSearch(most=100), tried).failed is None
    assert max(batches(searched(BatchSearch(), 10_000))) == MOST


def test_the_number_of_tries_ends_it_with_both_ends_known() -> None:
    tried = searched(BatchSearch(tries=6), 11)
    found = found_by(BatchSearch(tries=6), tried)
    assert batches(tried) == [1, 2, 4, 8, 16, 12]
    assert (found.passed, found.failed, found.complete) == (tried[3], tried[5], False)


def test_a_batch_of_one_that_fails_ends_it() -> None:
    (only,) = searched(BatchSearch(), 0)
    found = found_by(BatchSearch(), [only])
    assert (found.passed, found.failed, found.complete) == (None, only, True)


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.INFRA_ERROR, Status.NOT_RUN])
def test_what_says_nothing_about_the_batch_ends_it_without_a_verdict(status: Status) -> None:
    passed = Tried(attempt=Attempt(hardware="cpu", batch=1), status=Status.PASS)
    cut_off = Tried(attempt=Attempt(hardware="cpu", batch=2), status=status)
    assert next_batch(BatchSearch(), [passed, cut_off]) is None
    found = found_by(BatchSearch(), [passed, cut_off])
    assert (found.passed, found.failed, found.complete) == (passed, None, False)
