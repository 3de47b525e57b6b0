"""Which change to a failed cell may make its model work on the same target: a policy without side effects.

``fallback`` is the policy for a model that may move to other hardware; both halve a batch by the same rule.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from hwmatrix.faults.belonging import PRECISION_LOSS
from hwmatrix.faults.catalogue import MEMORY, match
from hwmatrix.records import Change, Dtype, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hwmatrix.records import AdaptRule

_UNSUPPORTED_DTYPE: Final = "unsupported_dtype"
_BY_PRECISION: Final = frozenset(
    {_UNSUPPORTED_DTYPE, PRECISION_LOSS, "group_size", "nothing_to_quantize", "missing_package", "calibration_constant"}
)
"""Error types that another export of the same model, or another operator, cannot change."""
_WRONG: Final = frozenset({Status.MISMATCH, Status.UNSUPPORTED, Status.ERROR, Status.CRASH})
"""Statuses that a precision or an export may have caused."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failed:
    """A cell that failed: how, with which batch and precision, and the alternatives of its target.

    ``export`` is the export method that was used, None: the cell failed before the export. ``exports`` are all export methods that can be
    selected for the target, ``precisions`` all that it supports. ``rewrites``: the target can replace operators.
    """

    status: Status
    error_type: str | None
    short_of_memory: bool
    batch: int
    dtype: Dtype
    export: str | None = None
    exports: tuple[str, ...] = ()
    rewrites: bool = False
    precisions: tuple[Dtype, ...] = ()


def smaller_batch(batch: int) -> int | None:
    """The next smaller batch to try after running out of memory: half of it; None for a batch of 1."""
    return batch // 2 if batch > 1 else None


def short_of_memory(status: Status, error_type: str | None, message: str | None, *, hardware: str) -> bool:
    """Whether a cell ran out of memory: in its own process, or while its reference was built."""
    if status is not Status.FACTORY_ERROR:
        return status is Status.OOM
    return error_type == MEMORY or match(message or "", hardware=hardware).type == MEMORY


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """A change that was tried and did not help; and whether it ran out of memory again."""

    change: Change
    short_of_memory: bool = False


def next_change(rule: AdaptRule, failed: Failed, tried: Sequence[Attempt] = ()) -> Change | None:
    """The next change to try, given that none of ``tried`` worked; None if nothing is left that could help.

    ==============================================  ==========================================================================
    out of memory (``oom``, ``factory_error``)      half the batch, at most ``rule.halvings`` times, while the only failure is lack of
                                                    memory; after ``oom`` then precisions with smaller weights
    ``mismatch``, ``unsupported``, ``error``,       each other export, if the target exports; then replaced operators, if it replaces them;
    ``crash``                                       then the precisions of the rule, if the cell's is not float32 or the target does not
                                                    support it
    any other                                       nothing
    ==============================================  ==========================================================================

    After an error during the export, no other export is tried: the target tries all of them before it gives up. Nor is one tried if the
    precision is the cause.
    """
    before = [attempt.change for attempt in tried]
    enough = any(attempt.change.batch is not None and not attempt.short_of_memory for attempt in tried)
    return next((change for change in _changes(rule, failed) if change not in before and not (change.batch and enough)), None)


def _changes(rule: AdaptRule, failed: Failed) -> Iterator[Change]:
    precisions = [dtype for dtype in rule.precision.get(failed.dtype, ()) if dtype in failed.precisions]
    if failed.short_of_memory:
        batch = failed.batch
        for _ in range(rule.halvings):
            smaller = smaller_batch(batch)
            if smaller is not None:
                batch = smaller
                yield Change(batch=batch)
        if failed.status is Status.OOM:  # for ``factory_error`` the reference ran out of memory, which is in float32 for every cell
            yield from (Change(dtype=dtype) for dtype in precisions if dtype.weight_bits < failed.dtype.weight_bits)
    elif failed.status in _WRONG:
        if failed.error_type not in _BY_PRECISION and rule.export and (failed.export is not None or failed.status is Status.CRASH):
            yield from (Change(export=way) for way in failed.exports if way != failed.export)
        if failed.error_type not in _BY_PRECISION and rule.rewrite and failed.rewrites:
            yield Change(rewrite=True)
        if failed.dtype is not Dtype.FLOAT32 or failed.error_type == _UNSUPPORTED_DTYPE:
            yield from (Change(dtype=dtype) for dtype in precisions)
