"""Tests the hardware stack: every installed runtime on all available hardware, each in its own process.

A crash, a hang or wrong numbers become a result. Nothing is executed in the calling process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from hwmatrix.faults.error_records import recognized
from hwmatrix.records import Backend, Stage, Status
from hwmatrix.records.backends import descriptors
from hwmatrix.reporter.stack_probe import MARK, RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwmatrix.faults.error_records import ReportedError

COMPONENT: Final = "hardware_stack"
TIMEOUT_S: Final = 120.0
"""Time limit of one runtime. Importing the slowest takes a few seconds; compiling for a GPU for the first time may take a minute."""
_LAST_LINES: Final = 20
_HARDWARE_OF: Final = {"torch": Backend.CPU, "openvino": Backend.OPENVINO, "onnxruntime": Backend.ONNXRUNTIME, "qnn": Backend.QNN}
"""The hardware that an error counts for if a runtime ends before it names a device."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended: ``code`` is negative for a signal, None if it timed out or never started (``problem``)."""

    code: int | None
    output: str
    log: str
    problem: str | None = None


class Run(Protocol):
    """Runs the probe of a runtime without the skipped devices, at most ``timeout_s``."""

    def __call__(self, runtime: str, skipped: tuple[str, ...], timeout_s: float) -> Ended:
        """Run the probe until it ends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackResult:
    """One runtime on one device. ``status`` is ``not_run`` if the runtime is not installed here; ``message`` says why.

    ``relative_error`` is the L2 error of a product against float64; ``wall_ms`` is the duration of the first use including start-up,
    which says nothing about speed.
    """

    runtime: str
    hardware: str
    device: str | None
    status: Status
    relative_error: float | None
    wall_ms: float | None
    message: str | None


def try_everything(*, run: Run | None = None, timeout_s: float = TIMEOUT_S) -> tuple[tuple[StackResult, ...], tuple[ReportedError, ...]]:
    """Try every available runtime and device once.

    Returns:
        The result of every runtime and device, and the errors of those that did not return the right product.
    """
    results: list[StackResult] = []
    errors: list[ReportedError] = []
    for runtime, module in RUNTIMES.items():
        if importlib.util.find_spec(module) is None:
            results.append(_not_run(runtime, _HARDWARE_OF[runtime], f"the module {module} is not installed in this interpreter"))
            continue
        found, problems = _try_runtime(runtime, run or in_a_process, timeout_s)
        results += found
        errors += problems
    for each in descriptors():
        if each.in_browser:
            results.append(_not_run("browser", each.name, "it runs in the target's own image: hwmatrix matrix --targets " + each.name))
    return tuple(results), tuple(errors)


def in_a_process(runtime: str, skipped: tuple[str, ...], timeout_s: float) -> Ended:
    """Run the probe in a new interpreter; after ``timeout_s``, kill it and the processes that it started.

    Its output goes to files: a daemon that a driver leaves behind would keep a pipe open. Nothing is imported from the current folder,
    where a file may have the name of a runtime.
    """
    command = [sys.executable, "-P", "-m", "hwmatrix.reporter.stack_probe", runtime, *skipped]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=log, start_new_session=True)
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # also if the wait is interrupted
            with contextlib.suppress(ProcessLookupError, PermissionError):  # no process is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return Ended(code=code, output=_text(output), log=_text(log))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")


def _try_runtime(runtime: str, run: Run, timeout_s: float) -> tuple[list[StackResult], list[ReportedError]]:
    """Run a probe on all its devices. If a device ends the process, run it again without the devices that are done."""
    results: list[StackResult] = []
    errors: list[ReportedError] = []
    skipped: tuple[str, ...] = ()
    while True:
        try:
            ended = run(runtime, skipped, timeout_s)
        except OSError as problem:  # no process can be started, or the disk is full
            ended = Ended(code=None, output="", log="", problem=f"its process cannot be started: {problem}")
        events = tuple(_events(ended.output))
        for event in events:
            if "end" in event:
                result, error = _reported_result(runtime, event)
                results.append(result)
                errors += [error] if error else []
                skipped += (event["end"],)
        finished = any("finished" in event for event in events)
        if finished and ended.code == 0:
            return results, errors
        begun = next((event for event in reversed(events) if "begin" in event and event["begin"] not in skipped), None)
        result, error = _missing_result(runtime, begun, ended, timeout_s, finished=finished)
        results.append(result)
        errors.append(error)
        if begun is None:  # it ended while no device was used, and would do so again
            return results, errors
        skipped += (begun["begin"],)


def _reported_result(runtime: str, event: dict[str, Any]) -> tuple[StackResult, ReportedError | None]:
    """The result of a device that returned a product or raised an exception."""
    status = Status(event["status"])
    result = StackResult(
        runtime=runtime,
        hardware=event["hardware"],
        device=event["end"],
        status=status,
        relative_error=event["relative_error"],
        wall_ms=event["wall_ms"],
        message=event["message"],
    )
    if status is Status.PASS:
        return result, None
    error = recognized(
        event["message"],
        component=COMPONENT,
        hardware=event["hardware"],
        status=status,
        stage=Stage.COMPARE if status is Status.MISMATCH else Stage.RUN,
        exception=event.get("exception"),
        traceback=event.get("traceback"),
    )
    return result, dataclasses.replace(error, message=f"{runtime} on {event['end']}: {event['message']}")


def _missing_result(
    runtime: str, begun: dict[str, Any] | None, ended: Ended, timeout_s: float, *, finished: bool
) -> tuple[StackResult, ReportedError]:
    """The result of a process that ended early: on a device, or while it used none (``begun`` is None)."""
    hardware = begun["hardware"] if begun else _HARDWARE_OF[runtime].value
    device = begun["begin"] if begun else None
    status, how = _status_and_text(ended, timeout_s)
    log = "\n".join(ended.log.strip().splitlines()[-_LAST_LINES:])
    if begun is None and not ended.problem:
        how += ", after all devices were tried" if finished else ", while no device was used"
    message = f"{runtime} on {device}: {how}" if device else f"{runtime}: {how}"
    said = recognized(f"{how}\n{log}", component=COMPONENT, hardware=hardware, status=status, stage=Stage.RUN, traceback=log or None)
    result = StackResult(runtime=runtime, hardware=hardware, device=device, status=status, relative_error=None, wall_ms=None, message=how)
    return result, dataclasses.replace(said, message=message)


def _status_and_text(ended: Ended, timeout_s: float) -> tuple[Status, str]:
    if ended.problem:
        return Status.ERROR, ended.problem
    if ended.code is None:
        return Status.TIMEOUT, f"timed out after {timeout_s:g} s; the process was killed"
    if ended.code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return Status.CRASH, f"the process was ended by {names.get(-ended.code, 'a signal')} (signal {-ended.code})"
    return Status.ERROR if ended.code else Status.CRASH, f"the process exited with code {ended.code}"


def _not_run(runtime: str, hardware: str, why: str) -> StackResult:
    return StackResult(
        runtime=runtime, hardware=str(hardware), device=None, status=Status.NOT_RUN, relative_error=None, wall_ms=None, message=why
    )


def _events(output: str) -> Iterable[dict[str, Any]]:
    """The lines that the probe marked. The partial last line of a killed process is ignored."""
    for line in output.splitlines():
        if line.startswith(MARK):
            try:
                yield json.loads(line.removeprefix(MARK))
            except ValueError:
                continue
