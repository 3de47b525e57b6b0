"""A forward cell with rounded weights: how it is compared with these in float32, and that it outlives this comparison."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

pytest.importorskip("duckdb")

from hwmatrix.errors import TwinError
from hwmatrix.measure import parity, verdict
from hwmatrix.records import Dtype, NoiseFloor, Placement, Status, Tolerance
from hwmatrix.runner import cell
from hwmatrix.runner.job import Progress, unless_it_fails

LOGITS = np.linspace(1.0, 2.0, 8, dtype=np.float32).reshape(1, 8)
GIVEN = {"input_ids": np.arange(8)}
HELD_OUT = {"input_ids": np.arange(8, 16)}
TOLERANCE = Tolerance(relative_error=0.1, reason="a test", excess=8.0)


def bundle_of() -> Any:
    held_out = types.SimpleNamespace(
        answers=types.SimpleNamespace(outputs=("logits",)),
        labels=[0],
        inputs={name: array[None] for name, array in HELD_OUT.items()},
        expected={"logits": LOGITS[None]},
    )
    return types.SimpleNamespace(
        input_arrays=lambda: GIVEN,
        expected_arrays=lambda: {"logits": LOGITS},
        held_out=lambda: held_out,
        floor=lambda dtype: NoiseFloor(outputs={"logits": 1e-6} if dtype is Dtype.FLOAT32 else None),
    )


def target_of(outputs: Any) -> Any:
    return types.SimpleNamespace(in_float=lambda: types.SimpleNamespace(outputs=outputs))


@pytest.mark.parametrize(
    ("off", "held_off", "status"), [(4e-6, 4e-6, Status.PASS), (1e-3, 0.0, Status.MISMATCH), (0.0, 1e-3, Status.MISMATCH)]
)
def test_outputs_and_answers_are_compared_with_the_rounded_weights_in_float32(off: float, held_off: float, status: Status) -> None:
    own, answers = ({"logits": LOGITS * (1 + each)} for each in (off, held_off))
    twin, there = cell._twins(target_of(lambda _: {"logits": LOGITS}), bundle_of(), own, answers, 1, Dtype.INT8)
    compared = [parity.compare(each, {"logits": LOGITS}) for each in (own, answers)]
    allowance = verdict.Allowance(dtype=Dtype.INT8, tolerance=TOLERANCE)
    placement = Placement(on_target=1.0, detail="")
    found = verdict.judge(compared[0], placement, allowance, None, compared[1], twin=twin, held_out_twin=there)
    assert found.status is status


@pytest.mark.parametrize("failure", [TwinError("no constants"), RuntimeError("cannot compile"), MemoryError("no memory")])
def test_a_comparison_of_ours_that_fails_is_on_record_and_ends_nothing(failure: Exception) -> None:
    """What the parent has already if it ends the process says so, too."""
    told: list[dict[str, Any]] = []
    progress = Progress(told.append)

    def outputs(_: Any) -> Any:
        raise failure

    def twins() -> Any:
        return cell._twins(target_of(outputs), bundle_of(), {"logits": LOGITS}, None, 1, Dtype.INT8)

    before = verdict.Judgement(status=Status.PASS, allowed=0.1)
    assert unless_it_fails(twins, before, progress) is None
    progress.end(Status.PASS)
    assert [(each["verdict"], each["final"]) for each in told] == [(Status.PASS, False), (Status.PASS, True)]
    assert told[0]["facts"]["kernel_detail"] == "the same weights in float32 ended the process"
    assert told[0]["facts"]["allowed_error"] == 0.1
    assert str(failure) in told[1]["facts"]["kernel_detail"]
