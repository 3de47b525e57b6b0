"""Reading the values of a graph on QNN, with fake runs that return only the outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwmatrix.errors import TraceError
from hwmatrix.records.traces import Step
from hwmatrix.targets.onnx.trace import AllValues
from hwmatrix.targets.qnn import trace as qnn_trace
from hwmatrix.targets.qnn.trace import look

Array = np.ndarray[Any, np.dtype[Any]]
COUNT = 100
WRONG_FROM = 63
NAMES = [f"v{number}" for number in range(COUNT)]
KEPT = AllValues(
    path=Path("model.onnx"),
    steps=tuple(
        Step(name=f"n{number}", operator="Relu", inputs=(NAMES[number - 1] if number else "x",), outputs=(NAMES[number],))
        for number in range(COUNT)
    ),
    names=("v99", *NAMES[:-1]),
    results=("v99",),
)
EXPECTED: dict[str, Array] = {name: np.full(4, 2.0) for name in NAMES}
HAD: dict[str, Array] = {"v99": np.full(4, 3.0)}


@dataclasses.dataclass
class Runs:
    """A chain of nodes that is wrong from one node on; ``output`` returns its final output if these values are kept."""

    output: Callable[[Sequence[str]], float | None]
    asked: list[list[str]] = dataclasses.field(default_factory=list)

    def __call__(self, names: Sequence[str]) -> dict[str, Array]:
        self.asked.append(list(names))
        told = self.output(names)
        if told is None:
            raise TraceError("Failed to finalize QNN graph")
        values: dict[str, Array] = {name: np.full(4, 3.0 if int(name[1:]) >= WRONG_FROM else 2.0) for name in names}
        return {**values, "v99": np.full(4, told)}


def looked(runs: Runs) -> qnn_trace.Looked:
    return look(KEPT, runs, had=HAD, expected=EXPECTED)


def test_all_values_are_read_at_once_if_the_outputs_do_not_change() -> None:
    runs = Runs(lambda _: 3.02)  # rounded differently in float16
    found = looked(runs)
    assert found.faithful
    assert found.values.keys() == set(NAMES)
    assert len(runs.asked) == 1


@pytest.mark.parametrize("instead", [2.0, 7.0, None])
def test_if_keeping_all_values_changes_the_outputs_few_are_kept_in_a_narrowing_search(instead: float | None) -> None:
    runs = Runs(lambda names: 3.0 if len(names) <= 8 else instead)
    found = looked(runs)
    assert found.faithful
    assert {"v62", "v63", "v99"} <= found.values.keys()
    assert found.values["v62"][0] == 2.0
    assert found.values["v63"][0] == 3.0
    assert found.values["v99"] is HAD["v99"]
    assert len(runs.asked) <= 5
    assert len(found.values) < 30


def test_a_value_that_cannot_be_kept_is_avoided() -> None:
    runs = Runs(lambda names: 3.0 if len(names) == 1 and names[0] not in {"v62", "v63"} else 2.0)
    found = looked(runs)
    assert found.faithful
    assert {"v61", "v64"} <= found.values.keys()
    assert found.values.keys().isdisjoint({"v62", "v63"})


def test_if_no_two_runs_agree_the_values_of_one_are_used_and_marked() -> None:
    numbers = iter(range(10, 100))
    runs = Runs(lambda _: float(next(numbers)))
    found = looked(runs)
    assert not found.faithful
    assert found.values.keys() == set(NAMES)
    assert found.values["v99"][0] == 10.0
    assert len(runs.asked) == 6


def test_a_graph_without_values_is_reported_with_qnn_s_message() -> None:
    with pytest.raises(TraceError, match="Failed to finalize QNN graph"):
        looked(Runs(lambda _: None))


def test_no_session_starts_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qnn_trace, "_SECONDS", -1.0)
    runs = Runs(lambda names: 3.0 if len(names) <= 8 else 2.0)
    assert not looked(runs).faithful
    assert len(runs.asked) == 1


def test_large_mask_numbers_do_not_hide_other_differences() -> None:
    mask = np.array([-65504.0, -65504.0, 1.0])
    assert qnn_trace._relative(np.array([-65504.0, -np.inf, 1.5]), mask) == pytest.approx(0.5)
    assert qnn_trace._relative(np.array([-65504.0, 2.0, 1.0]), mask) > 1.0
    assert qnn_trace._relative(np.ones(2), np.ones(3)) == float("inf")
