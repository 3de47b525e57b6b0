"""Turns a child's end into a result: distinguishes cells that passed, failed, crashed, hung or were killed."""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING, Any

from hwmatrix.faults.catalogue import match, severity_of
from hwmatrix.records import CellResult, Divergence, ErrorRecord, Findings, Origin, Role, Stage, Status
from hwmatrix.runner.endings import killed_for_memory, last_lines, out_of_memory
from hwmatrix.runner.messages import CellTold, Failure, cell_told

if TYPE_CHECKING:
    from hwmatrix.records import CellPlan, ModelPlan, TargetPlan
    from hwmatrix.runner.forked import End


def result_of(end: End, *, cell: CellPlan, model: ModelPlan, target: TargetPlan, started_at: str) -> CellResult:
    """A cell's result from how its child ended. A verdict stands, however the child ended after it."""
    told = cell_told(end)
    status, error = _status_and_error(end, told, cell, target)
    found = {field.name: getattr(told.facts, field.name) for field in dataclasses.fields(Findings)}
    return CellResult(
        **_identity(cell, model, target),
        **found | _missing_after(end, told),
        status=status,
        stage=told.stage,
        started_at=started_at,
        wall_ms=end.wall_ms,
        error=error,
        exit_code=end.exit_code,
        signal=end.signal,
    )


def not_executed(
    *, cell: CellPlan, model: ModelPlan, target: TargetPlan, started_at: str, status: Status, stage: Stage, error: ErrorRecord
) -> CellResult:
    """A cell that was not run, because its model or its target is missing."""
    return CellResult(**_identity(cell, model, target), status=status, stage=stage, started_at=started_at, wall_ms=0.0, error=error)


def error_record(error_type: str, message: str, *, hardware: str, **details: Any) -> ErrorRecord:
    """An error of a known type, with the catalogue's severity for it. ``details`` are the record's other fields."""
    return ErrorRecord(type=error_type, severity=severity_of(error_type, hardware), message=message, **details)


def _identity(cell: CellPlan, model: ModelPlan, target: TargetPlan) -> dict[str, Any]:
    return {
        "key": cell.key,
        "role": model.role if cell.adaptation is None else Role.ADAPTED,
        "model": model.name if cell.adaptation is None else cell.adaptation.model,
        "size": cell.size,
        "target": target.name,
        "settings": cell.settings,
        "family": model.family,
        "architecture": model.architecture,
        "hub_id": model.hub_id,
        "execution": target.execution,
        "adaptation": cell.adaptation,
    }


def _status_and_error(end: End, told: CellTold, cell: CellPlan, target: TargetPlan) -> tuple[Status, ErrorRecord | None]:
    """The verdict: the child's own if it sent one, otherwise from how it ended."""
    hardware = target.backend
    if told.verdict is not None:
        return told.verdict, _told_error(told.error, hardware) if told.error is not None else None
    if told.problem is not None:
        text = f"the process sent an invalid message: {told.problem}"
        return Status.CRASH, error_record("bad_message", text, hardware=hardware, traceback=end.log or None)
    status, text = _end_without_verdict(end, cell, hardware)
    found = match(text, hardware=hardware, status=status, stage=told.stage)
    return status, ErrorRecord(type=found.type, severity=found.severity, message=text, traceback=end.log or None)


def _told_error(failure: Failure, hardware: str) -> ErrorRecord:
    """The error that the child reported, with the severity that it sent or else the catalogue's for its type."""
    severity = failure.severity or severity_of(failure.type, hardware)
    return ErrorRecord(type=failure.type, severity=severity, message=failure.message, traceback=failure.traceback, needs=failure.needs)


def _missing_after(end: End, told: CellTold) -> dict[str, Any]:
    """What came after the verdict: where a difference begins, and what the end of the process left unmeasured, with the reason."""
    if told.divergence is not None and told.verdict is Status.MISMATCH:
        return told.divergence.columns()
    reason = _ended_early(end, told)
    if told.verdict is None or reason is None:
        return {}
    if told.verdict is Status.MISMATCH and told.entered is not Stage.MEASURE:
        return Divergence(origin=Origin.UNKNOWN, detail=reason).columns()
    untimed = told.entered is Stage.MEASURE or told.verdict is Status.PASS
    return {"timing_detail": reason} if untimed and not told.facts.samples_wall_ns else {}


def _ended_early(end: End, told: CellTold) -> str | None:
    """What ended a process that had its verdict; None if it did all that it had to do."""
    if told.problem is not None:
        return f"the process sent an invalid message: {told.problem}"
    if end.timed_out:
        return "the cell's time limit ended the process"
    if end.oom_killed:
        return "the kernel killed the process for memory"
    if end.signal is not None:
        return f"{_signal_name(end.signal)} ended the process"
    return f"the process exited with code {end.exit_code}" if end.exit_code else None


def _end_without_verdict(end: End, cell: CellPlan, hardware: str) -> tuple[Status, str]:
    """Status and message for a child that ended without a verdict."""
    if end.timed_out:
        return Status.TIMEOUT, f"timed out after {cell.limits.timeout_s:g} s; the process was killed"
    if end.signal == signal.SIGXCPU:
        return Status.TIMEOUT, "the CPU time limit was reached (SIGXCPU)"
    if killed_for_memory(end):
        return Status.OOM, "the kernel killed the process for memory (SIGKILL, and the cgroup counts an oom_kill)"
    if out_of_memory(end, hardware):
        return Status.OOM, f"an allocation failed within {cell.limits.memory_mb} MiB, and the process gave up: {last_lines(end)}"
    if end.signal is not None:
        return Status.CRASH, f"the process was ended by {_signal_name(end.signal)} (signal {end.signal})"
    return Status.CRASH, f"the process exited with code {end.exit_code} before it sent a verdict"


def _signal_name(number: int) -> str:
    """The signal's name; real-time signals have none of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"
