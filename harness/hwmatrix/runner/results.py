"""From a child's end to a result: how a cell that passed, failed, crashed, hung or was killed is told apart."""

from __future__ import annotations

import dataclasses
import re
import signal
from typing import TYPE_CHECKING, Any, Final

import pydantic

from hwmatrix.advice.catalogue import match, severity_of
from hwmatrix.records import (
    CellResult,
    Divergence,
    ErrorRecord,
    MemoryRecord,
    Origin,
    OutputRecord,
    Parity,
    Placement,
    Role,
    Stage,
    Status,
)

if TYPE_CHECKING:
    from hwmatrix.records import CellPlan, ModelPlan, TargetPlan
    from hwmatrix.runner.forked import End

_OUTPUTS = pydantic.TypeAdapter(tuple[OutputRecord, ...])
_PARITY = pydantic.TypeAdapter(Parity | None)
_PLACEMENT = pydantic.TypeAdapter(Placement | None)
_DIVERGENCE = pydantic.TypeAdapter(Divergence)
_MEMORY = pydantic.TypeAdapter(MemoryRecord | None)
_LAST_LINES: Final = 3
_NO_MEMORY: Final = re.compile(r"^MemoryError\b|std::bad_alloc|[Cc]an(?:no|')t allocate memory", re.MULTILINE)
"""The last words of a process that could not even report its failed allocation: Python's, C++'s, PyTorch's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Outcome:
    status: Status
    stage: Stage
    facts: dict[str, Any]
    error: ErrorRecord | None
    divergence: Divergence | None = None


def result_of(end: End, *, cell: CellPlan, model: ModelPlan, target: TargetPlan, started_at: str) -> CellResult:
    """What a cell's child left behind, as a result."""
    outcome = _outcome(end, cell, target)
    facts = outcome.facts
    return CellResult(
        **_identity(cell, model, target),
        status=outcome.status,
        stage=outcome.stage,
        started_at=started_at,
        wall_ms=end.wall_ms,
        bundle=facts.get("bundle"),
        method=facts.get("method"),
        inputs=tuple(facts["inputs"]) if facts.get("inputs") is not None else None,
        text_path=facts.get("text_path"),
        placement=_PLACEMENT.validate_python(facts.get("placement")),
        parity=_PARITY.validate_python(facts.get("parity")),
        load_ms=facts.get("load_ms"),
        prepare_ms=facts.get("prepare_ms"),
        first_ms=facts.get("first_ms"),
        converged=facts.get("converged"),
        memory=_MEMORY.validate_python(facts.get("memory")),
        device_processes=facts.get("device_processes"),
        outputs=_OUTPUTS.validate_python(facts.get("outputs", ())),
        stages={Stage(name): wall_ms for name, wall_ms in facts.get("stages", {}).items()},
        samples_wall_ns=tuple(facts.get("samples_wall_ns", ())),
        samples_cpu_ns=tuple(facts.get("samples_cpu_ns", ())),
        warmup_samples=facts.get("warmup_samples"),
        yardstick=facts.get("yardstick"),
        yardstick_ms=facts.get("yardstick_ms"),
        parameters=facts.get("parameters"),
        divergence=outcome.divergence,
        error=outcome.error,
        exit_code=end.exit_code,
        signal=end.signal,
    )


def not_executed(
    *, cell: CellPlan, model: ModelPlan, target: TargetPlan, started_at: str, status: Status, stage: Stage, error: ErrorRecord
) -> CellResult:
    """A cell that was not tried, because its model or its target is not there."""
    return CellResult(**_identity(cell, model, target), status=status, stage=stage, started_at=started_at, wall_ms=0.0, error=error)


def error_record(  # noqa: D417 - the other arguments are the record's own fields
    message: str, *, hardware: str, status: Status, stage: Stage | None, error_type: str | None = None, **details: Any
) -> ErrorRecord:
    """An error with its type and severity from the catalogue.

    Args:
        message: the error's own text.
        error_type: where the program knows it; else the catalogue recognises it by message, exception, status and stage.
    """
    exception = details.pop("exception", None)
    if error_type is not None:
        return ErrorRecord(type=error_type, severity=severity_of(error_type, hardware), message=message, **details)
    found = match(message, hardware=hardware, status=status, stage=stage, exception=exception)
    return ErrorRecord(type=found.type, severity=found.severity, message=message, **details)


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


def _outcome(end: End, cell: CellPlan, target: TargetPlan) -> _Outcome:
    stage = Stage.LOAD
    facts: dict[str, Any] = {}
    for number, message in enumerate(end.messages):
        facts = message["facts"]
        if "verdict" in message:
            told = _told(message, stage, target)
            return dataclasses.replace(told, divergence=_divergence(end, number + 1) if told.status is Status.MISMATCH else None)
        stage = Stage(message["stage"])
    status, text = _untold(end, cell)
    error = error_record(text, hardware=target.backend.value, status=status, stage=stage, traceback=end.log or None)
    return _Outcome(status=status, stage=stage, facts=facts, error=error)


def _told(message: dict[str, Any], stage: Stage, target: TargetPlan) -> _Outcome:
    """The child came to its own verdict."""
    status = Status(message["verdict"])
    error = None
    if message["error"] is not None:
        error = error_record(
            message["error"]["message"],
            hardware=target.backend.value,
            status=status,
            stage=stage,
            error_type=message["error"]["type"],
            exception=message["error"]["exception"],
            traceback=message["error"]["traceback"],
            needs=tuple(message["error"].get("needs", ())),
        )
    return _Outcome(status=status, stage=stage, facts=message["facts"], error=error)


def _divergence(end: End, behind: int) -> Divergence | None:
    """What the child told behind its verdict: where a difference begins, or nothing. It may have died of looking for that."""
    for message in end.messages[behind:]:
        if "divergence" in message:
            return _DIVERGENCE.validate_python(message["divergence"])
    if end.timed_out:
        return Divergence(origin=Origin.UNKNOWN, detail="the time of the cell was over before it was found")
    if end.signal is not None:
        return Divergence(origin=Origin.UNKNOWN, detail=f"looking for it ended the process by {_signal_name(end.signal)}")
    if end.exit_code:
        return Divergence(origin=Origin.UNKNOWN, detail=f"looking for it ended the process with exit code {end.exit_code}")
    return None


def _untold(end: End, cell: CellPlan) -> tuple[Status, str]:
    """The child ended without a verdict."""
    if end.timed_out:
        return Status.TIMEOUT, f"no end within {cell.limits.timeout_s:g} s; the process was killed"
    if end.signal == signal.SIGXCPU:
        return Status.TIMEOUT, "the limit of CPU time was reached (SIGXCPU)"
    if end.signal == signal.SIGKILL and end.oom_killed:
        return Status.OOM, "the kernel killed the process for memory (SIGKILL, and the cgroup counts an oom_kill)"
    last = "\n".join(end.log.splitlines()[-_LAST_LINES:])
    if (end.signal == signal.SIGABRT or end.exit_code) and _NO_MEMORY.search(last):
        return Status.OOM, f"an allocation failed within {cell.limits.memory_mb} MiB, and the process gave up: {last}"
    if end.signal is not None:
        return Status.CRASH, f"the process was ended by {_signal_name(end.signal)} (signal {end.signal})"
    return Status.CRASH, f"the process left with exit code {end.exit_code} before it gave a verdict"


def _signal_name(number: int) -> str:
    """Real-time signals have no names of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"
