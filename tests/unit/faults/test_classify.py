"""How an exception ends a cell, an export or a bundle: by what ran out or cannot be done, whatever wraps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from recorded_errors import POSITIVE, name_of

from hwmatrix.errors import (
    BundleError,
    CellFailure,
    CrashedError,
    FactoryError,
    OutOfMemoryError,
    TimedOutError,
    UnavailableError,
    UnmakableError,
    UnsupportedError,
)
from hwmatrix.faults.catalogue import classify, match
from hwmatrix.records import Severity, Stage, Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ALLOCATION = "Failed to allocate memory for requested buffer of size 4096"
MEMORY = [entry for entry in POSITIVE if entry["type"] == "memory_pressure" and "status" not in entry]
WRAPPERS: dict[str, Callable[[str], Exception]] = {
    "a runtime's": RuntimeError,
    "a target's": lambda text: CellFailure(text, error_type="qnn_graph_failed"),
    "unsupported": lambda text: UnsupportedError(text, needs=("Conv",)),
    "a factory's": lambda text: FactoryError(text, error_type="build_failed"),
}


class ArrayMemoryError(MemoryError):
    """Like NumPy's."""


def raised(error: Exception, cause: Exception, *, explicit: bool = True) -> Exception:
    """The error as it is caught: raised from its cause, or while that was handled."""
    error.__context__ = cause
    error.__cause__ = cause if explicit else None
    return error


@pytest.mark.parametrize("entry", MEMORY, ids=name_of)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_recorded_lack_of_memory_is_oom_whatever_wraps_or_quotes_it(entry: dict[str, Any], wrapper: str) -> None:
    stage = Stage(entry.get("stage", "run"))
    cause = MemoryError(entry["message"]) if "exception" in entry else RuntimeError(entry["message"])
    found = {
        (outcome.status, outcome.type)
        for error in (
            raised(WRAPPERS[wrapper]("no session can be created"), cause),
            raised(WRAPPERS[wrapper]("no session can be created"), cause, explicit=False),
            raised(WRAPPERS[wrapper](f"no graph is accepted: {ALLOCATION}"), ValueError("of another export")),
        )
        for outcome in [classify(error, hardware=entry["hardware"], stage=stage)]
    }
    assert found == {(Status.OOM, "memory_pressure")}


@pytest.mark.parametrize("entry", [entry for entry in POSITIVE if "exception" not in entry and "status" not in entry], ids=name_of)
def test_an_untyped_error_gets_the_type_of_its_recorded_message(entry: dict[str, Any]) -> None:
    found = classify(RuntimeError(entry["message"]), hardware=entry["hardware"], stage=Stage(entry["stage"]) if "stage" in entry else None)
    assert found.type == entry["type"]
    assert (found.status is Status.OOM) == (entry["type"] in {"memory_pressure", "oom_killed", "webgpu_out_of_memory"})


@pytest.mark.parametrize(
    "limit", [FactoryError("no step", error_type="no_generation"), UnmakableError("no step", error_type="no_generation")]
)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_limit_of_hwmatrix_is_never_the_target_s_error(limit: Exception, wrapper: str) -> None:
    alone, wrapped = (
        classify(limit, hardware="onnxruntime"),
        classify(raised(WRAPPERS[wrapper]("it failed"), limit), hardware="onnxruntime"),
    )
    assert (alone.status, alone.type) == (Status.FACTORY_ERROR, "no_generation")
    assert wrapped.status is Status.FACTORY_ERROR


@pytest.mark.parametrize(
    "failure",
    [
        UnavailableError("no device", error_type="target_unavailable"),
        CrashedError("the page is gone", error_type="webgpu_device_lost"),
        TimedOutError("no export", error_type="export_timeout"),
        BundleError("no bundle", error_type="bundle_missing"),
        OutOfMemoryError("too little", error_type="webgpu_out_of_memory"),
    ],
)
def test_a_failure_that_blames_nobody_keeps_its_status(failure: CellFailure) -> None:
    found = classify(raised(failure, MemoryError()), hardware="webgpu")
    assert (found.status, found.type) == (Status(failure.status), failure.error_type)


def test_a_typed_failure_keeps_its_type_and_has_the_severity_of_the_hardware() -> None:
    found = classify(raised(CellFailure("no graph", error_type="memory_pressure"), KeyError("x")), hardware="cuda")
    assert (found.status, found.type, found.severity) == (Status.ERROR, "memory_pressure", Severity.CRITICAL)


@pytest.mark.parametrize(
    ("failure", "hardware", "status", "error_type", "severity"),
    [
        (ArrayMemoryError("no room"), "cpu", Status.OOM, "memory_pressure", Severity.ERROR),
        (RuntimeError("std::bad_alloc"), "cuda", Status.OOM, "memory_pressure", Severity.ERROR),  # the host's memory
        (RuntimeError("CUDA error: out of memory"), "cuda", Status.OOM, "memory_pressure", Severity.CRITICAL),
        (ValueError("nobody has ever seen this"), "any", Status.ERROR, "unmatched", Severity.ERROR),
    ],
)
def test_the_hardware_matters(failure: Exception, hardware: str, status: Status, error_type: str, severity: Severity) -> None:
    found = classify(failure, hardware=hardware, stage=Stage.RUN)
    assert (found.status, found.type, found.severity) == (status, error_type, severity)
    assert match(str(failure), hardware=hardware, exception=failure).type == error_type
