from __future__ import annotations

import dataclasses
import signal
from typing import Any

import factory_plans as make
import pytest

from hwmatrix.faults.catalogue import catalogue
from hwmatrix.records import (
    Adaptation,
    CellResult,
    Divergence,
    Findings,
    Origin,
    Role,
    Severity,
    Stage,
    Status,
    measured_columns,
)
from hwmatrix.runner.forked import End, parse
from hwmatrix.runner.messages import cell_told
from hwmatrix.runner.results import error_record, not_executed, result_of

TYPES = {entry.type for entry in catalogue()}
FACTS: dict[str, Any] = {
    "stages": {"load": 64.0, "prepare": 1.5},
    "bundle": "cd" * 32,
    "method": "torch eager",
    "load_ms": 64.0,
    "prepare_ms": 1.5,
    "first_ms": 3.0,
    "parameters": 30_000,
    "on_target": 1.0,
    "placement_detail": "cpu",
    "relative_error": 1e-6,
    "max_error": 2e-6,
    "cosine": 1.0,
    "outputs": [{"name": "logits", "shape": [1, 2], "dtype": "float32", "parity": None}],
    "baseline_mb": 1.0,
    "load_peak_mb": 2.0,
    "peak_mb": 3.0,
    "delta_mb": 2.0,
    "samples_wall_ns": [3, 1, 2],
    "samples_cpu_ns": [2, 1, 1],
    "warmup_samples": 10,
    "converged": True,
    "inputs": ["image", "text"],
    "text_path": True,
    "device_processes": 2,
    "yardstick": "a product",
    "yardstick_ms": 0.25,
}


ADAPTED = Adaptation(of="bert/tiny/cpu", model="bert at batch 1", change={"batch": 1})


def end(*messages: dict[str, Any], **changes: Any) -> End:
    plain: dict[str, Any] = {"exit_code": 0, "signal": None, "timed_out": False, "oom_killed": False, "log": "", "wall_ms": 130.0}
    return End(messages=messages, **(plain | changes))


def killed(number: int, *messages: dict[str, Any], **changes: Any) -> End:
    return end(*messages, exit_code=None, signal=number, **changes)


def stage(name: str, **facts: Any) -> dict[str, Any]:
    return {"stage": name, "facts": facts}


def verdict(status: str, error: dict[str, Any] | None = None, *, final: bool = True, **facts: Any) -> dict[str, Any]:
    return {"verdict": status, "facts": facts, "error": error, "final": final}


def told(**changes: Any) -> dict[str, Any]:
    return {"type": "mismatch", "message": "a message", "traceback": "Traceback"} | changes


def result(ended: End, target: str = "cpu", **cell: Any) -> CellResult:
    model, on = make.model_plan(), make.target_plan(target)
    return result_of(ended, cell=make.cell_plan(target=target, **cell), model=model, target=on, started_at="2026-01-02T03:04:06")


def test_a_pass_has_all_measurements() -> None:
    found = result(end(stage("load"), stage("measure"), verdict("pass", **FACTS)))
    assert (found.status, found.stage, found.error) == (Status.PASS, Stage.MEASURE, None)
    assert (found.on_target, found.placement_detail) == (1.0, "cpu")
    assert (found.relative_error, found.max_error, found.cosine, found.top1) == (1e-6, 2e-6, 1.0, None)
    assert (found.baseline_mb, found.load_peak_mb, found.peak_mb, found.delta_mb, found.uss_mb) == (1.0, 2.0, 3.0, 2.0, None)
    assert found.outputs[0].shape == (1, 2)
    assert found.samples_wall_ns == (3, 1, 2)
    assert found.stages == {Stage.LOAD: 64.0, Stage.PREPARE: 1.5}
    assert (found.bundle, found.method, found.parameters) == ("cd" * 32, "torch eager", 30_000)
    assert (found.load_ms, found.prepare_ms, found.first_ms, found.wall_ms) == (64.0, 1.5, 3.0, 130.0)
    assert (found.key, found.model, found.target, found.role) == ("bert/tiny/cpu", "bert", "cpu", Role.MODEL)


OF_DOMAIN: dict[str, Any] = {
    "VARCHAR": "a word",
    "Number": 0.5,
    "Amount": 0.5,
    "Mebibytes": 0.5,
    "Share": 0.5,
    "Count": 3,
    "LargeCount": 4,
    "BOOLEAN": True,
    "Dtype": "bfloat16",
    "Texts": ["text"],
    "Amounts": [0.5],
    "Counts": [3],
    "Preparations": ["fixed_shapes"],
}


def test_no_measurement_of_a_child_is_lost() -> None:
    behind_the_verdict = Divergence(origin=Origin.UNKNOWN).columns()
    values = {column.name: OF_DOMAIN[column.domain] for column in measured_columns() if column.name not in behind_the_verdict}
    ended = end(verdict("pass", **(FACTS | values)))
    facts, found = cell_told(ended).facts, result(ended)
    names = {field.name for field in dataclasses.fields(Findings)} - behind_the_verdict.keys()
    assert {name for name in names if getattr(facts, name) in (None, (), {})} == set()
    assert {name: getattr(found, name) for name in names} == {name: getattr(facts, name) for name in names}
    assert found.started_at == "2026-01-02T03:04:06"


def test_an_adapted_cell_is_distinguished_from_the_failed_one() -> None:
    found = result(end(verdict("pass", **FACTS)), adaptation=ADAPTED)
    assert (found.role, found.model, found.adaptation) == (Role.ADAPTED, "bert at batch 1", ADAPTED)


@pytest.mark.parametrize(("log", "traceback"), [("the last words", "the last words"), ("", None)])
def test_an_invalid_message_before_the_verdict_is_a_crash(log: str, traceback: str | None) -> None:
    found = result(end(stage("run", load_ms=5.0), stage("dream"), verdict("pass", load_ms=5.0), log=log))
    assert (found.status, found.stage, found.load_ms) == (Status.CRASH, Stage.RUN, 5.0)
    assert found.error is not None
    assert (found.error.type, found.error.severity, found.error.traceback) == ("bad_message", Severity.CRITICAL, traceback)
    assert "line 2: " in found.error.message


@pytest.mark.parametrize("status", [status for status in Status if status not in {Status.PASS, Status.NOT_RUN}])
def test_a_verdict_keeps_its_own_error_type(status: Status) -> None:
    found = result(end(stage("compare"), verdict(status.value, told(type="mismatch"), load_ms=1.0)))
    assert (found.status, found.stage) == (status, Stage.COMPARE)
    assert found.error is not None
    assert (found.error.type, found.error.message, found.error.traceback) == ("mismatch", "a message", "Traceback")
    assert found.load_ms == 1.0


def where(found: CellResult) -> dict[str, Any]:
    """The divergence fields of a result."""
    return {name: getattr(found, name) for name in Divergence(origin=Origin.UNKNOWN).columns()}


WHERE = {"origin": "step", "at": "node_7", "operator": "TopK", "relative_error": 0.5, "inputs_error": 1e-3}


def test_a_divergence_after_the_verdict_is_recorded() -> None:
    wrong = verdict("mismatch", told(type="mismatch"))
    found = result(end(stage("compare"), wrong, {"divergence": WHERE}))
    assert where(found) == Divergence(origin=Origin.STEP, at="node_7", operator="TopK", relative_error=0.5, inputs_error=1e-3).columns()
    assert result(end(stage("compare"), wrong)).origin is None


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"exit_code": 3}, "the process exited with code 3"),
        ({"signal": signal.SIGSEGV, "exit_code": None}, "SIGSEGV ended the process"),
        ({"signal": signal.SIGKILL, "exit_code": None, "timed_out": True}, "the cell's time limit ended the process"),
        ({"signal": signal.SIGKILL, "exit_code": None, "oom_killed": True}, "the kernel killed the process for memory"),
        ({"refused": "it sent too much"}, "the process sent an invalid message: it sent too much"),
    ],
)
@pytest.mark.parametrize("status", ["pass", "mismatch", "fallback"])
@pytest.mark.parametrize("entered", ["compare", "measure"])
@pytest.mark.parametrize("final", [True, False])
def test_a_verdict_stands_however_the_process_ends_after_it(
    changes: dict[str, Any], detail: str, status: str, entered: str, *, final: bool
) -> None:
    error = None if status == "pass" else told(type="fallback")
    after = [stage("measure")] if entered == "measure" else []
    found = result(end(stage("compare"), verdict(status, error, final=final), *after, **changes))
    assert found.status is Status(status)
    assert (found.error.type if found.error else None) == (error["type"] if error else None)
    assert found.stage is (Stage.MEASURE if after and status == "pass" else Stage.COMPARE)
    assert found.timing_detail == (detail if after or status == "pass" else None)
    assert found.diverges_detail == (detail if status == "mismatch" and not after else None)


def test_a_verdict_that_is_not_final_is_replaced_and_measurements_are_added() -> None:
    first, last = verdict("pass", load_ms=1.0, final=False), verdict("mismatch", told(type="precision_loss"), load_ms=1.0)
    found = result(end(stage("compare"), first, last, stage("measure", load_ms=1.0, warmup_samples=3)))
    assert (found.status, found.stage, found.warmup_samples, found.timing_detail) == (Status.MISMATCH, Stage.COMPARE, 3, None)


def test_a_process_that_dies_after_another_verdict_than_mismatch_has_no_divergence() -> None:
    assert result(killed(signal.SIGSEGV, stage("measure"), verdict("pass"))).origin is None


@pytest.mark.parametrize(("target", "severity"), [("cpu", Severity.ERROR), ("cuda", Severity.CRITICAL)])
def test_the_severity_of_an_error_depends_on_the_hardware(target: str, severity: Severity) -> None:
    ends = [end(verdict("oom", told(type="memory_pressure"))), end(exit_code=1, log="CUDA error: out of memory\nMemoryError")]
    errors = [*(result(ended, target).error for ended in ends), error_record("memory_pressure", "no room", hardware=target)]
    assert [(error.type, error.severity) for error in errors if error is not None] == [("memory_pressure", severity)] * 3


def test_a_given_severity_overrides_that_of_the_type() -> None:
    error = result(end(verdict("oom", told(type="memory_pressure", severity="error"))), "cuda").error
    assert error is not None
    assert error.severity is Severity.ERROR


def test_missing_operators_are_recorded() -> None:
    found = result(end(stage("prepare"), verdict("unsupported", told(type="unsupported_operator", needs=["aten::x"]))))
    assert found.error is not None
    assert found.error.needs == ("aten::x",)


@pytest.mark.parametrize(
    ("number", "error_type"),
    [
        (signal.SIGSEGV, "segmentation_fault"),
        (signal.SIGBUS, "bus_error"),
        (signal.SIGABRT, "abort"),
        (signal.SIGILL, "illegal_instruction"),
        (signal.SIGFPE, "floating_point_exception"),
        (signal.SIGKILL, "killed"),
        (signal.SIGTERM, "killed"),
    ],
)
def test_a_signal_is_a_crash(number: signal.Signals, error_type: str) -> None:
    found = result(killed(number, stage("load"), stage("run", load_ms=5.0), log="the last words"))
    assert (found.status, found.stage, found.signal, found.exit_code) == (Status.CRASH, Stage.RUN, number, None)
    assert found.load_ms == 5.0
    assert found.error is not None
    assert found.error.type == error_type
    assert found.error.message == f"the process was ended by {number.name} (signal {number.value})"
    assert found.error.traceback == "the last words"


def test_a_real_time_signal_is_a_crash_too() -> None:
    found = result(killed(signal.SIGRTMIN + 4, stage("run")))
    assert found.status is Status.CRASH
    assert found.error is not None
    assert found.error.message.startswith("the process was ended by a real-time signal (signal ")


@pytest.mark.parametrize("code", [0, 1, 3])
def test_exiting_without_a_verdict_is_a_crash_with_any_exit_code(code: int) -> None:
    found = result(end(stage("prepare"), exit_code=code))
    assert (found.status, found.stage, found.exit_code) == (Status.CRASH, Stage.PREPARE, code)
    assert found.error is not None
    assert found.error.message == f"the process exited with code {code} before it sent a verdict"
    assert found.error.type == "process_exit"


def test_a_timeout_is_not_a_crash() -> None:
    found = result(killed(signal.SIGKILL, stage("run"), timed_out=True, oom_killed=True))
    assert found.status is Status.TIMEOUT
    assert found.error is not None
    assert (found.error.type, found.error.message) == ("timeout", "timed out after 30 s; the process was killed")


def test_the_limit_of_cpu_time_is_a_timeout() -> None:
    found = result(killed(signal.SIGXCPU, stage("run")))
    assert found.status is Status.TIMEOUT
    assert found.error is not None
    assert found.error.type == "cpu_time_limit"


def test_sigkill_is_out_of_memory_only_if_the_kernel_says_so() -> None:
    found = result(killed(signal.SIGKILL, stage("load"), oom_killed=True))
    assert found.status is Status.OOM
    assert found.error is not None
    assert found.error.type == "oom_killed"
    assert result(killed(signal.SIGSEGV, stage("load"), oom_killed=True)).status is Status.CRASH


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (end(exit_code=1, log="Traceback:\nMemoryError"), Status.OOM),
        (killed(signal.SIGABRT, log="terminate called after throwing an instance of 'std::bad_alloc'"), Status.OOM),
        (killed(signal.SIGABRT, log="assertion failed"), Status.CRASH),
        (end(exit_code=1, log="MemoryError\n1\n2\n3"), Status.CRASH),
        (killed(signal.SIGSEGV, log="MemoryError"), Status.CRASH),
        (end(exit_code=0, log="MemoryError"), Status.CRASH),
    ],
)
def test_the_last_output_can_show_that_memory_ran_out(ended: End, status: Status) -> None:
    found = result(ended)
    assert found.status is status
    assert found.error is not None
    assert (found.error.type == "memory_pressure") == (status is Status.OOM)


def test_a_process_that_ends_before_any_message_was_loading() -> None:
    assert result(killed(signal.SIGSEGV)).stage is Stage.LOAD


def test_without_messages_nothing_is_measured() -> None:
    found = result(killed(signal.SIGSEGV))
    assert {column.name for column in measured_columns() if getattr(found, column.name) is not None} == set()
    assert (found.samples_wall_ns, found.outputs) == ((), ())


def test_a_verdict_counts_even_if_the_exit_fails() -> None:
    assert result(killed(signal.SIGSEGV, stage("measure"), verdict("pass", **FACTS))).status is Status.PASS


def test_every_crash_has_a_type_of_the_catalogue() -> None:
    for number in range(1, signal.SIGRTMAX + 1):
        found = result(killed(number))
        assert found.error is not None
        assert found.error.type in TYPES


def test_a_cell_that_was_not_tried() -> None:
    error = error_record("factory_failed", "no bundle", hardware="cpu")
    found = not_executed(
        cell=make.cell_plan(),
        model=make.model_plan(),
        target=make.target_plan(),
        started_at="2026-01-02T03:04:06",
        status=Status.FACTORY_ERROR,
        stage=Stage.BUILD,
        error=error,
    )
    assert (found.status, found.stage, found.wall_ms, found.exit_code) == (Status.FACTORY_ERROR, Stage.BUILD, 0.0, None)
    assert (found.error, found.started_at) == (error, "2026-01-02T03:04:06")


def test_an_incomplete_last_line_is_ignored() -> None:
    received = b'{"stage": "load", "facts": {}}\n{"verdict": "pass", "facts": {}}\n{"half'
    messages, refused = parse(received)
    assert ([list(message) for message in messages], refused) == ([["stage", "facts"], ["verdict", "facts"]], None)
