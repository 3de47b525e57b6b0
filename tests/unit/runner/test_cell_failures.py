"""The status and type of a cell's failures that have no type of our own."""

from __future__ import annotations

import pytest

from hwmatrix.records import Severity, Stage, Status
from hwmatrix.runner.cell import recognized


class ArrayMemoryError(MemoryError):
    """Like NumPy's."""


LONG = 5000 * "x"


@pytest.mark.parametrize(
    ("failure", "hardware", "status", "error_type", "severity"),
    [
        (MemoryError(), "cpu", Status.OOM, "memory_pressure", Severity.ERROR),
        (ArrayMemoryError("no room"), "cpu", Status.OOM, "memory_pressure", Severity.ERROR),
        (RuntimeError("std::bad_alloc"), "cuda", Status.OOM, "memory_pressure", Severity.ERROR),  # the host's memory
        (RuntimeError("CUDA error: out of memory"), "cuda", Status.OOM, "memory_pressure", Severity.CRITICAL),
        (RuntimeError(f"{LONG} CUDA error: out of memory"), "cuda", Status.OOM, "memory_pressure", Severity.CRITICAL),
        (ModuleNotFoundError("No module named 'x'"), "cpu", Status.ERROR, "missing_package", Severity.ERROR),
        (ValueError("nobody has ever seen this"), "cpu", Status.ERROR, "unmatched", Severity.ERROR),
    ],
)
def test_the_catalogue_determines_status_type_and_severity(
    failure: Exception, hardware: str, status: Status, error_type: str, severity: Severity
) -> None:
    found, error = recognized(failure, hardware=hardware, stage=Stage.RUN)
    assert (found, error["type"], error["severity"]) == (status, error_type, severity)
    assert len(error["message"]) < len(LONG)


@pytest.mark.parametrize(
    ("hardware", "stage", "error_type"),
    [
        ("openvino", Stage.PREPARE, "compile_failed"),
        ("openvino", Stage.RUN, "inference_failed"),
        ("cpu", Stage.PREPARE, "unmatched"),  # only OpenVINO has this message
    ],
)
def test_the_hardware_and_the_stage_matter(hardware: str, stage: Stage, error_type: str) -> None:
    failure = RuntimeError("Exception from src/plugins")
    assert recognized(failure, hardware=hardware, stage=stage)[1]["type"] == error_type


def test_a_failure_without_a_text_has_the_name_of_its_class() -> None:
    assert recognized(MemoryError(), hardware="cpu", stage=Stage.RUN)[1]["message"] == "MemoryError"
