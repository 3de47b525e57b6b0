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
    """A failed cell with batch 8 in float32, on a target that supports PyTorch's precisions and needs no export."""
    made = Failed(
        status=status, error_type=None, short_of_memory=status is Status.OOM, batch=8, dtype=Dtype.FLOAT32, precisions=TORCH, exports=()
    )
    return dataclasses.replace(made, **changes)


def all_changes(cell: Failed, rule: AdaptRule = RULE, *, short: bool = True) -> list[dict[str, Any]]:
    """All changes that are tried if none helps; each attempt runs out of memory again (``short``) or fails otherwise."""
    tried: list[Attempt] = []
    while (change := next_change(rule, cell, tried)) is not None:
        tried.append(Attempt(change=change, short_of_memory=short))
    return [attempt.change.data for attempt in tried]


def test_out_of_memory_halves_the_batch_then_tries_smaller_weights() -> None:
    assert all_changes(failed(Status.OOM)) == [{"batch": 4}, {"batch": 2}, {"batch": 1}, {"dtype": "bfloat16"}, {"dtype": "float16"}]
    assert all_changes(failed(Status.OOM, batch=64), AdaptRule(halvings=1, precision={})) == [{"batch": 32}]
    assert all_changes(failed(Status.OOM, batch=1, dtype=Dtype.FLOAT16)) == []  # no supported precision has smaller weights


def test_another_failure_ends_the_halving() -> None:
    assert all_changes(failed(Status.OOM), AdaptRule(precision={}), short=False) == [{"batch": 4}]


def test_a_reference_out_of_memory_gets_only_a_smaller_batch() -> None:
    assert all_changes(failed(Status.FACTORY_ERROR, short_of_memory=True, batch=2)) == [{"batch": 1}]
    assert all_changes(failed(Status.FACTORY_ERROR)) == []


@pytest.mark.parametrize("status", [Status.MISMATCH, Status.UNSUPPORTED, Status.ERROR, Status.CRASH])
def test_after_a_reduced_precision_the_supported_ones_in_the_list_are_tried(status: Status) -> None:
    assert all_changes(failed(status, dtype=Dtype.FLOAT16)) == [{"dtype": "bfloat16"}, {"dtype": "float32"}]
    assert all_changes(failed(status, dtype=Dtype.FLOAT16, precisions=(Dtype.FLOAT32, Dtype.FLOAT16))) == [{"dtype": "float32"}]
    assert all_changes(failed(status)) == []  # the reference's own precision: no other is more accurate


def test_a_target_without_float32_tries_its_own_precisions() -> None:
    cell = failed(Status.UNSUPPORTED, error_type="unsupported_dtype", precisions=(Dtype.FLOAT16, Dtype.A8W8), exports=("one", "two"))
    assert all_changes(cell) == [{"dtype": "float16"}]


def test_operators_are_replaced_after_another_export_and_if_none_could_be_made() -> None:
    cell = failed(Status.MISMATCH, export="one", exports=("one", "two"), rewrites=True)
    assert all_changes(cell) == [{"export": "two"}, {"rewrite": True}]
    assert all_changes(cell, AdaptRule(rewrite=False)) == [{"export": "two"}]
    assert all_changes(dataclasses.replace(cell, export=None)) == [{"rewrite": True}]
    assert all_changes(dataclasses.replace(cell, error_type="unsupported_dtype", precisions=())) == []


def test_no_other_export_is_tried_if_the_precision_costs_too_much() -> None:
    ways, precisions = ("transformers", "torch"), (Dtype.FLOAT16, Dtype.A16W8, Dtype.A8W8)
    cell = failed(Status.MISMATCH, error_type="precision_loss", dtype=Dtype.A8W8, exports=ways, export="torch", precisions=precisions)
    assert all_changes(cell) == [{"dtype": "a16w8"}, {"dtype": "float16"}]


def test_another_export_is_tried_if_the_first_gave_a_wrong_result_or_crashed() -> None:
    ways = ("transformers", "torch")
    assert all_changes(failed(Status.MISMATCH, exports=ways, export="transformers")) == [{"export": "torch"}]
    assert all_changes(failed(Status.CRASH, exports=ways)) == [{"export": "transformers"}, {"export": "torch"}]
    assert all_changes(failed(Status.ERROR, exports=ways)) == []  # the target has already tried both
    assert all_changes(failed(Status.MISMATCH, exports=ways, export="torch"), AdaptRule(export=False)) == []


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.OOM, Status.MISMATCH, Status.UNSUPPORTED, Status.ERROR, Status.CRASH}))
def test_nothing_is_tried_if_no_change_could_help(status: Status) -> None:
    assert all_changes(failed(status, dtype=Dtype.FLOAT16, export="torch", exports=("transformers", "torch"))) == []


@given(
    status=st.sampled_from(Status),
    batch=st.integers(1, 4096),
    dtype=st.sampled_from(Dtype),
    precisions=st.sets(st.sampled_from(Dtype)),
    export=st.sampled_from([None, "a", "b"]),
    short=st.booleans(),
)
def test_the_changes_are_few_distinct_and_effective(
    status: Status, batch: int, dtype: Dtype, precisions: set[Dtype], export: str | None, *, short: bool
) -> None:
    cell = failed(status, batch=batch, dtype=dtype, precisions=tuple(precisions), exports=("a", "b"), export=export)
    changes = all_changes(cell, short=short)
    assert len(changes) <= 6  # two exports, and the four precisions of int4
    assert all(changes.count(change) == 1 for change in changes)
    assert not any(change in ({"batch": batch}, {"dtype": dtype}, {"export": export}) for change in changes)


def test_which_memory_ran_out() -> None:
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
