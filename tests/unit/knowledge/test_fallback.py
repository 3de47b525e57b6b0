from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmatrix.errors import ConfigError
from hwmatrix.knowledge.fallback import (
    Attempt,
    AttemptPlan,
    Cost,
    Tried,
    cost_of,
    general_purpose,
    kind_of,
    next_attempt,
    report_of,
)
from hwmatrix.records import Status

ORDER = ("cuda", "openvino", "cpu")


def follow(plan: AttemptPlan, *statuses: Status) -> list[tuple[str, int, int]]:
    """The attempts of a plan with these outcomes."""
    tried: list[Tried] = []
    for status in statuses:
        attempt = next_attempt(plan, tried)
        assert attempt is not None
        tried.append(Tried(attempt=attempt, status=status))
    last = next_attempt(plan, tried)
    attempts = [*(each.attempt for each in tried), *([last] if last is not None else [])]
    return [(attempt.hardware, attempt.batch, attempt.retry) for attempt in attempts]


def test_the_first_attempt_is_the_request() -> None:
    assert next_attempt(AttemptPlan(order=ORDER, batch=8)) == Attempt(hardware="cuda", batch=8)


@pytest.mark.parametrize("status", [Status.PASS, Status.MISMATCH, Status.FACTORY_ERROR, Status.FALLBACK, Status.NOT_RUN])
def test_outcomes_that_no_other_attempt_could_change_end_the_sequence(status: Status) -> None:
    assert follow(AttemptPlan(order=ORDER, batch=8), status) == [("cuda", 8, 0)]


def test_missing_hardware_is_followed_by_the_next_in_order() -> None:
    missing = Status.UNAVAILABLE
    assert follow(AttemptPlan(order=ORDER), missing, missing, missing) == [("cuda", 1, 0), ("openvino", 1, 0), ("cpu", 1, 0)]


def test_the_batch_halves_down_to_1_then_the_cpu_gets_the_full_batch() -> None:
    attempts = follow(AttemptPlan(order=ORDER, batch=5), *[Status.OOM] * 6)
    assert attempts == [("cuda", 5, 0), ("cuda", 2, 0), ("cuda", 1, 0), ("cpu", 5, 0), ("cpu", 2, 0), ("cpu", 1, 0)]


def test_only_a_reference_out_of_memory_gets_a_smaller_batch() -> None:
    plan = AttemptPlan(order=ORDER, batch=2)
    for error_type, expected in (("memory_pressure", Attempt(hardware="cuda", batch=1)), ("factory_failed", None), (None, None)):
        tried = [Tried(attempt=Attempt(hardware="cuda", batch=2), status=Status.FACTORY_ERROR, error_type=error_type)]
        assert next_attempt(plan, tried) == expected
    smallest = Tried(attempt=Attempt(hardware="cuda", batch=1), status=Status.FACTORY_ERROR, error_type="memory_pressure")
    assert next_attempt(plan, [smallest]) is None


def test_a_fixed_batch_is_not_changed() -> None:
    plan = AttemptPlan(order=("cuda",), batch=8, retries=0, adapt_batch=False)
    for status in Status:
        assert next_attempt(plan, [Tried(attempt=Attempt(hardware="cuda", batch=8), status=status, error_type="memory_pressure")]) is None


def test_without_a_cpu_in_the_order_the_next_hardware_is_tried() -> None:
    assert follow(AttemptPlan(order=("cuda:0", "cuda:1")), Status.OOM) == [("cuda:0", 1, 0), ("cuda:1", 1, 0)]


@pytest.mark.parametrize("status", [Status.ERROR, Status.UNSUPPORTED])
def test_after_an_error_on_special_hardware_general_purpose_hardware_is_tried(status: Status) -> None:
    assert follow(AttemptPlan(order=("openvino", "qnn", "webgpu", "cpu"), batch=4), status) == [("openvino", 4, 0), ("cpu", 4, 0)]
    assert follow(AttemptPlan(order=("cuda", "openvino", "mps", "cpu")), status) == [("cuda", 1, 0), ("mps", 1, 0)]
    assert follow(AttemptPlan(order=("cpu", "openvino")), status) == [("cpu", 1, 0)]


@pytest.mark.parametrize("status", [Status.CRASH, Status.TIMEOUT, Status.INFRA_ERROR])
def test_a_crash_is_retried_with_a_limit(status: Status) -> None:
    plan = AttemptPlan(order=ORDER, batch=4)
    assert follow(plan, status, status) == [("cuda", 4, 0), ("cuda", 4, 1), ("openvino", 4, 0)]
    assert follow(AttemptPlan(order=ORDER, retries=0), status) == [("cuda", 1, 0), ("openvino", 1, 0)]
    assert follow(AttemptPlan(order=ORDER, retries=3), *[status] * 4) == [*(("cuda", 1, retry) for retry in range(4)), ("openvino", 1, 0)]


def test_a_smaller_batch_after_a_retry_has_its_own_retries() -> None:
    plan = AttemptPlan(order=ORDER, batch=4)
    assert follow(plan, Status.CRASH, Status.OOM, Status.CRASH) == [("cuda", 4, 0), ("cuda", 4, 1), ("cuda", 2, 0), ("cuda", 2, 1)]


def test_wrong_numbers_are_never_retried() -> None:
    plan = AttemptPlan(order=ORDER, batch=4)
    for before in itertools.product(Status, repeat=2):
        tried: list[Tried] = []
        for status in before:
            attempt = next_attempt(plan, tried)
            if attempt is None:
                break
            tried.append(Tried(attempt=attempt, status=status))
        attempt = next_attempt(plan, tried)
        if attempt is not None:
            assert next_attempt(plan, [*tried, Tried(attempt=attempt, status=Status.MISMATCH)]) is None


@given(
    order=st.lists(
        st.sampled_from(["cuda", "cuda:0", "cuda:1", "rocm", "mps", "openvino", "qnn", "webgpu", "cpu"]), min_size=1, unique=True
    ),
    batch=st.integers(1, 64),
    retries=st.integers(0, 3),
    statuses=st.lists(st.sampled_from(list(Status)), min_size=400, max_size=400),
)
def test_every_sequence_ends_without_repetitions(order: list[str], batch: int, retries: int, statuses: list[Status]) -> None:
    plan = AttemptPlan(order=tuple(order), batch=batch, retries=retries)
    tried: list[Tried] = []
    for status in statuses:
        attempt = next_attempt(plan, tried)
        if attempt is None:
            break
        assert attempt not in [each.attempt for each in tried]
        assert attempt.hardware in order
        assert 1 <= attempt.batch <= batch
        assert attempt.retry <= retries
        if tried and tried[-1].status in {Status.ERROR, Status.UNSUPPORTED}:
            assert general_purpose(kind_of(attempt.hardware))
        tried.append(Tried(attempt=attempt, status=status))
    else:
        pytest.fail("400 attempts and no end")
    places = [order.index(each.attempt.hardware) for each in tried]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": ()}, "there is none to try"),
        ({"order": ("cpu", "cpu")}, "listed twice"),
        ({"order": ORDER, "batch": 0}, "make no batch"),
        ({"order": ORDER, "retries": -1}, "not a valid number of retries"),
    ],
)
def test_an_invalid_plan_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AttemptPlan(**arguments)


# ── reports ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def attempts(*told: tuple[str, int, Status]) -> list[Tried]:
    return [
        Tried(attempt=Attempt(hardware=hardware, batch=batch), status=status, reason=f"why {hardware}", wall_ms=10.0)
        for hardware, batch, status in told
    ]


def test_a_report_names_expected_and_actual_hardware() -> None:
    plan = AttemptPlan(order=ORDER, batch=8)
    tried = attempts(("cuda", 8, Status.OOM), ("cuda", 4, Status.PASS))
    report = report_of("bert", plan, tried)
    assert report.fell_back
    assert (report.expected, report.actual, report.batch, report.actual_batch, report.status) == ("cuda", "cuda", 8, 4, Status.PASS)
    assert report.sentence() == "bert ran on cuda with batch 4 instead of 8; cuda was expected (cuda: oom, why cuda)"
    assert report.lost_ms == 10.0


def test_a_success_on_the_first_attempt_is_not_a_fallback() -> None:
    report = report_of("bert", AttemptPlan(order=ORDER), attempts(("cuda", 1, Status.PASS)))
    assert not report.fell_back
    assert report.sentence() == "bert ran on cuda, as expected"
    assert report.lost_ms is None
    on_any = report_of("bert", AttemptPlan(order=("cuda", "cpu")), attempts(("cuda:1", 1, Status.PASS)), expected="cuda")
    assert not on_any.fell_back
    on_another = report_of("bert", AttemptPlan(order=("cuda:0", "cuda:1")), attempts(("cuda:1", 1, Status.PASS)), expected="cuda:0")
    assert on_another.fell_back


def test_a_mismatch_counts_as_executed() -> None:
    report = report_of("bert", AttemptPlan(order=ORDER), attempts(("cuda", 1, Status.UNAVAILABLE), ("openvino", 1, Status.MISMATCH)))
    assert (report.actual, report.status) == ("openvino", Status.MISMATCH)


def test_if_nothing_ran_nothing_is_claimed() -> None:
    plan = AttemptPlan(order=("cuda", "cpu"), batch=2)
    report = report_of("bert", plan, attempts(("cuda", 2, Status.UNAVAILABLE), ("cpu", 2, Status.ERROR)))
    assert (report.actual, report.actual_batch, report.cost.factor) == (None, None, None)
    assert report.fell_back
    assert report.sentence() == "bert ran nowhere; cuda was expected (cuda: unavailable, why cuda; cpu: error, why cpu)"
    assert report.lost_ms == 20.0
    with pytest.raises(ValueError, match="at least one attempt"):
        report_of("bert", plan, [])


def test_recommendations_come_only_from_the_catalogue() -> None:
    tried = [
        Tried(attempt=Attempt(hardware="cuda:1"), status=Status.OOM, error_type="memory_pressure"),
        Tried(attempt=Attempt(hardware="openvino"), status=Status.ERROR, error_type="unmatched"),
        Tried(attempt=Attempt(hardware="mps"), status=Status.ERROR),
        Tried(attempt=Attempt(hardware="cpu"), status=Status.PASS),
    ]
    report = report_of("bert", AttemptPlan(order=("cuda:1", "openvino", "mps", "cpu")), tried)
    assert report.recommendations[0] == "Close other programs that use the GPU's memory."
    assert len(report.recommendations) == 4
    assert report_of("bert", AttemptPlan(order=("mps",)), tried[2:3]).recommendations == ()


def test_a_cost_is_measured_or_none() -> None:
    cost = cost_of(4.0, 8, 3.0, 2)
    assert (cost.expected_ms, cost.actual_ms, cost.factor) == (0.5, 1.5, 3.0)
    assert cost.note.startswith("measured")
    assert cost_of(None, 8, 3.0, 2) == Cost(expected_ms=None, actual_ms=1.5, note="not measured on the expected hardware")
    assert cost_of(None, 8, None, 2).note == "not measured on the expected hardware and on the actual one"
    assert cost_of(None, 8, 3.0, 2).factor is None
    assert Cost() == Cost(expected_ms=None, actual_ms=None, note="not measured")


def test_a_report_as_json() -> None:
    plan = AttemptPlan(order=ORDER, batch=2)
    report = report_of("bert", plan, attempts(("cuda", 2, Status.UNAVAILABLE), ("cpu", 2, Status.PASS)), cost=cost_of(None, 2, 3.0, 2))
    shown = json.loads(json.dumps(report.as_dict()))
    assert (shown["expected_hardware"], shown["actual_hardware"], shown["fell_back"]) == ("cuda", "cpu", True)
    assert shown["attempts"][0] == {
        "hardware": "cuda",
        "batch": 2,
        "retry": 0,
        "status": "unavailable",
        "reason": "why cuda",
        "error_type": None,
        "wall_ms": 10.0,
    }
    assert shown["cost"] == {"expected_ms": None, "actual_ms": 1.5, "factor": None, "note": "not measured on the expected hardware"}
