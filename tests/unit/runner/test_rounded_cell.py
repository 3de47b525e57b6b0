"""A forward cell with rounded weights: how often they are nudged, and what that explains."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

pytest.importorskip("duckdb")

from hwmatrix.measure import verdict
from hwmatrix.records import Dtype, NoiseFloor, Status, Tolerance
from hwmatrix.runner import cell

LOGITS = np.linspace(1.0, 2.0, 8, dtype=np.float32).reshape(1, 8)
GIVEN = {"input_ids": np.arange(8)}
HELD_OUT = {"input_ids": np.arange(8, 16)}


class InFloat:
    """A graph with its rounded weights in float32, and others that each draw moves: by so much on its inputs, by half of it held out."""

    def __init__(self, moves: tuple[float, ...], moved: float = 0.0) -> None:
        self.moves = moves
        self.moved = moved
        self.drawn = 0

    def outputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        share = 1.0 if inputs["input_ids"][0] == 0 else 0.5
        return {"logits": LOGITS * (1 + share * self.moved)}

    def nudged(self, draw: int) -> InFloat | None:
        assert draw == self.drawn, "one after the other"
        self.drawn += 1
        return InFloat((), self.moves[draw]) if self.moves else None


def bundle_of() -> Any:
    held_out = types.SimpleNamespace(
        answers=types.SimpleNamespace(outputs=("logits",)), labels=[0], inputs={name: array[None] for name, array in HELD_OUT.items()}
    )
    return types.SimpleNamespace(
        input_arrays=lambda: GIVEN,
        expected_arrays=lambda: {"logits": LOGITS},
        held_out=lambda: held_out,
        floor=lambda dtype: NoiseFloor(outputs={"logits": 1e-6} if dtype is Dtype.FLOAT32 else None),
    )


@pytest.mark.parametrize(
    ("off", "held_off", "moves", "drawn", "status"),
    [
        (4e-6, 4e-6, (9.0,), 0, Status.PASS),  # the noise floor explains it: nothing is drawn
        (1e-3, 0.0, (6e-4,), 1, Status.PASS),
        (1e-3, 0.0, (1e-4, 1e-5, 6e-4), 3, Status.PASS),
        (1e-3, 0.0, (1e-4, 2e-4, 4e-4, 1e-4), 4, Status.MISMATCH),
        (0.0, 1e-3, (1.2e-3,), 1, Status.PASS),  # on held-out inputs, it moves by half of that
        (0.0, 1e-3, (6e-4, 6e-4, 6e-4, 6e-4), 4, Status.MISMATCH),
        (1e-3, 0.0, (), 1, Status.MISMATCH),  # the graph rounds no input
    ],
)
def test_weights_are_nudged_until_that_explains_the_difference(
    off: float, held_off: float, moves: tuple[float, ...], drawn: int, status: Status
) -> None:
    in_float = InFloat(moves)
    target: Any = types.SimpleNamespace(in_float=lambda: in_float)
    tolerance = Tolerance(relative_error=0.1, reason="a test", excess=8.0, bound=100.0, kernel_excess=8.0)
    allowance = verdict.Allowance(dtype=Dtype.A8W8, tolerance=tolerance)
    answers = {"logits": LOGITS * (1 + held_off)}
    rounded = cell._rounded(target, bundle_of(), {"logits": LOGITS * (1 + off)}, answers, 1, allowance)
    assert rounded is not None
    assert in_float.drawn == drawn
    placement: Any = types.SimpleNamespace(on_target=1.0, detail="")
    found = verdict.judge(cell.parity.compare({"logits": LOGITS * (1 + off)}, {"logits": LOGITS}), placement, allowance, rounded=rounded)
    assert found.status is status
