"""Tests all available hardware with ``hwmatrix test``: one tiny model on every target, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pydantic
from pydantic.dataclasses import dataclass

from hwmatrix.faults.error_records import of_type, recognized
from hwmatrix.records import Backend, Dtype, Execution, Status
from hwmatrix.records.backends import descriptor_of
from hwmatrix.reporter.components import missing

if TYPE_CHECKING:
    from hwmatrix.faults.error_records import ReportedError

COMPONENT: Final = "hardware_stack"
_MODEL: Final = "bert"
_TEST: Final = ("test", "--model", _MODEL, "--all-hardware", "--no-fallback", "--no-timing", "--isolation", "none", "--format", "json")
_NO_ERRORS: Final = frozenset({Status.PASS, Status.UNAVAILABLE})
"""Unavailable hardware is an error of the detection, which reports it."""


@dataclass(frozen=True, kw_only=True, config=pydantic.ConfigDict(extra="forbid"))
class StackResult:
    """The test model on one kind of hardware. ``message`` says why it did not pass.

    ``wall_ms`` is the duration of the whole cell, which says nothing about speed. It, ``execution`` and ``dtype`` are None if no cell ran.
    """

    hardware: str
    status: Status
    execution: Execution | None
    dtype: Dtype | None
    wall_ms: float | None
    message: str | None


def run_test() -> tuple[tuple[StackResult, ...], tuple[ReportedError, ...]]:
    """Run ``hwmatrix test`` in new processes, in which nothing is imported from the current folder.

    Returns:
        The result of each kind of hardware, and the errors of those that are available and did not pass; without results, the error that
        kept the test from running.
    """
    if lacking := missing(descriptor_of(Backend.CPU).requires):  # they build the model and its reference
        reason = f"the hardware test cannot run in this interpreter, which lacks {', '.join(lacking)}"
        return (), (of_type("runtime_not_installed", reason, component=COMPONENT),)
    done = subprocess.run(
        [sys.executable, "-m", "hwmatrix", *_TEST],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=os.environ | {"PYTHONSAFEPATH": "1"},
    )
    if not done.stdout:
        reason = f"hwmatrix {' '.join(_TEST)} ended with exit code {done.returncode}:\n{done.stderr.strip()}"
        return (), (recognized(reason, component=COMPONENT),)
    trials = json.loads(done.stdout)["trials"]
    results = tuple(_result(trial) for trial in trials)
    errors = (_error(trial, result) for trial, result in zip(trials, results, strict=True) if result.status not in _NO_ERRORS)
    return results, tuple(errors)


def _result(trial: dict[str, Any]) -> StackResult:
    (attempt,) = trial["attempts"]
    return StackResult(
        hardware=trial["expected_hardware"],
        status=Status(trial["status"]),
        execution=trial["execution"],
        dtype=trial["dtype"],
        wall_ms=attempt["wall_ms"],
        message=attempt["reason"],
    )


def _error(trial: dict[str, Any], result: StackResult) -> ReportedError:
    return recognized(
        result.message or f"it ended as {result.status} without a message",
        error_type=trial["attempts"][0]["error_type"],
        component=COMPONENT,
        hardware=result.hardware,
        status=result.status,
        model_name=_MODEL,
    )
