from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmatrix.knowledge.adapting import Attempt, Failed, next_change, short_of_memory
from hwmatrix.records import AdaptRule, Change, Dtype, Status, in_words

TORCH = (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16)
RULE = AdaptRule()


def failed(status: Status, **changes: Any) -> Failed:
    """A cell of batch 8 in float32 on a target that computes in what PyTorch does, and exports nothing."""
    made = Failed(
        status=status, error_type=None, short_of_memory=status is Status.OOM, batch=8, dtype=Dtype.FLOAT32, precisions=TORCH, exports=()
    )
    return dataclasses.replace(made, **changes)


def all_changes(cell: Failed, rule: AdaptRule = RULE, *, short: bool = True) -> list[dict[str, Any]]:
    """Everything that is tried when nothing helps; memory is ``short`` again each time, or something else fails."""
    tried: list[Attempt] = []
    while (change := next_change(rule, cell, tried)) is not None:
        tried.append(Attempt(change=change, short_of_memory=short))
    return [attempt.change.data for attempt in tried]


def test_memory_halves_the_batch_and_then_takes_smaller_weights() -> None:
    assert all_changes(failed(Status.OOM)) == [{"batch": 4}, {"batch": 2}, {"batch": 1}, {"dtype": "bfloat16"}, {"dtype": "float16"}]
    assert all_changes(failed(Status.OOM, batch=64), AdaptRule(halvings=1, precision={})) == [{"batch": 32}]
    assert all_changes(failed(Status.OOM, batch=1, dtype=Dtype.FLOAT16)) == []  # no precision there has smaller weights


def test_a_smaller_batch_that_fails_otherwise_ends_the_halving() -> None:
    assert all_changes(failed(Status.OOM), AdaptRule(precision={}), short=False) == [{"batch": 4}]


def test_a_reference_that_was_short_of_memory_gets_a_smaller_batch_and_no_other_precision() -> None:
    assert all_changes(failed(Status.FACTORY_ERROR, short_of_memory=True, batch=2)) == [{"batch": 1}]
    assert all_changes(failed(Status.FACTORY_ERROR)) == []


@pytest.mark.parametrize("status", [Status.MISMATCH, Status.UNSUPPORTED, Status.ERROR, Status.CRASH])
def test_a_reduced_precision_that_fails_gives_way_to_those_of_the_list_that_the_target_has(status: Status) -> None:
    assert all_changes(failed(status, dtype=Dtype.FLOAT16)) == [{"dtype": "bfloat16"}, {"dtype": "float32"}]
    assert all_changes(failed(status, dtype=Dtype.FLOAT16, precisions=(Dtype.FLOAT32, Dtype.FLOAT16))) == [{"dtype": "float32"}]
    assert all_changes(failed(status)) == []  # the reference's own precision: no other is more exact


def test_a_target_that_does_not_have_float32_is_asked_for_what_it_has() -> None:
    cell = failed(Status.UNSUPPORTED, error_type="unsupported_dtype", precisions=(Dtype.FLOAT16, Dtype.A8W8), exports=("one", "two"))
    assert all_changes(cell) == [{"dtype": "float16"}]


def test_another_export_is_tried_where_one_was_made_and_something_is_wrong_with_it() -> None:
    ways = ("transformers", "torch")
    assert all_changes(failed(Status.MISMATCH, exports=ways, export="transformers")) == [{"export": "torch"}]
    assert all_changes(failed(Status.CRASH, exports=ways)) == [{"export": "transformers"}, {"export": "torch"}]
    assert all_changes(failed(Status.ERROR, exports=ways)) == []  # the target has tried both before it gave up
    assert all_changes(failed(Status.MISMATCH, exports=ways, export="torch"), AdaptRule(export=False)) == []


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.OOM, Status.MISMATCH, Status.UNSUPPORTED, Status.ERROR, Status.CRASH}))
def test_nothing_is_tried_where_nothing_could_help(status: Status) -> None:
    assert all_changes(failed(status, dtype=Dtype.FLOAT16, export="torch", exports=("transformers", "torch"))) == []


@given(
    status=st.sampled_from(Status),
    batch=st.integers(1, 4096),
    dtype=st.sampled_from(Dtype),
    precisions=st.sets(st.sampled_from(Dtype)),
    export=st.sampled_from([None, "a", "b"]),
    short=st.booleans(),
)
def test_it_is_short_and_no_change_is_made_twice_or_changes_nothing(
    status: Status, batch: int, dtype: Dtype, precisions: set[Dtype], export: str | None, *, short: bool
) -> None:
    cell = failed(status, batch=batch, dtype=dtype, precisions=tuple(precisions), exports=("a", "b"), export=export)
    changes = all_changes(cell, short=short)
    assert len(changes) <= 5
    assert all(changes.count(change) == 1 for change in changes)
    assert not any(change in ({"batch": batch}, {"dtype": dtype}, {"export": export}) for change in changes)


def test_whose_memory_was_short() -> None:
    assert short_of_memory(Status.OOM, None, None, hardware="cpu")
    words = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 33554432 bytes"
    assert short_of_memory(Status.FACTORY_ERROR, "factory_failed", words, hardware="cpu")
    assert not short_of_memory(Status.FACTORY_ERROR, "no_inputs", "needs inputs that cannot be made up", hardware="cpu")
    assert not short_of_memory(Status.ERROR, "unmatched", words, hardware="cpu")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change(batch=4), "batch 4 instead of 8"),
        (Change(dtype=Dtype.FLOAT32), "float32 instead of float16"),
        (Change(export="torch"), "the torch export"),
    ],
)
def test_a_change_in_words(change: Change, words: str) -> None:
    assert in_words(change.data, batch=8, dtype="float16") == words
