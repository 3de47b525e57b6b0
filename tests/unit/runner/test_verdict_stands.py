"""Whatever happens after the comparison, the verdict is the one that the comparison gave."""

from __future__ import annotations

import json
from typing import Any

import factory_plans as make
import fake_target
import pytest
from fake_target import FakeTarget

pytest.importorskip("duckdb")

from hwmatrix.errors import CellFailure, CrashedError
from hwmatrix.records import CellResult, Status
from hwmatrix.runner.forked import End
from hwmatrix.runner.results import result_of

ERRORS = [
    MemoryError(),
    RuntimeError("CUDA error: out of memory"),
    CellFailure("each run compiled the model again", error_type="recompile_limit"),
    CrashedError("the page is gone", error_type="webgpu_device_lost"),
]
VERDICTS = {1.0: Status.PASS, 2.0: Status.MISMATCH}


def result(messages: list[dict[str, Any]], **changes: Any) -> CellResult:
    plain: dict[str, Any] = {"exit_code": 0, "signal": None, "timed_out": False, "oom_killed": False, "log": "", "wall_ms": 130.0}
    end = End(messages=tuple(json.loads(json.dumps(messages))), **(plain | changes))
    return result_of(end, cell=make.cell_plan(), model=make.model_plan(), target=make.target_plan(), started_at="2026-01-02T03:04:06")


@pytest.mark.parametrize("expected", VERDICTS)
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("failing", ["run 2", "run 3", "device_use 2", "trace 1"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_no_error_after_the_comparison_changes_it(
    monkeypatch: pytest.MonkeyPatch, expected: float, failing: str, error: Exception, *, timed: bool
) -> None:
    monkeypatch.setattr(FakeTarget, "failing", (failing,))
    monkeypatch.setattr(FakeTarget, "error", error)
    found = result(fake_target.executed(monkeypatch, expected=expected, timed=timed))
    assert found.status is VERDICTS[expected]
    if timed and expected == 1.0 and failing.startswith("run"):
        assert found.timing_detail is not None
        assert type(error).__name__ in found.timing_detail


@pytest.mark.parametrize("expected", VERDICTS)
@pytest.mark.parametrize(
    "ending", [{"signal": 11, "exit_code": None}, {"signal": 9, "exit_code": None, "timed_out": True}, {"exit_code": 1}]
)
def test_no_end_of_the_process_after_the_comparison_changes_it(
    monkeypatch: pytest.MonkeyPatch, expected: float, ending: dict[str, Any]
) -> None:
    messages = fake_target.executed(monkeypatch, expected=expected, timed=True)
    first = next(number for number, message in enumerate(messages) if "verdict" in message)
    for sent in range(first + 1, len(messages) + 1):
        found = result(messages[:sent], **ending)
        assert found.status is VERDICTS[expected]
    assert result(messages[:first], **ending).status in {Status.CRASH, Status.TIMEOUT}


@pytest.mark.parametrize("failing", ["check 1", "load 1", "prepare 1", "run 1", "outputs 1", "placement 1", "run 2", "device_use 2"])
def test_timing_changes_no_status(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    monkeypatch.setattr(FakeTarget, "failing", (failing,))
    timed, untimed = (result(fake_target.executed(monkeypatch, timed=each)) for each in (True, False))
    kinds = [each.error.type if each.error else None for each in (timed, untimed)]
    assert (timed.status, kinds[0]) == (untimed.status, kinds[1])
