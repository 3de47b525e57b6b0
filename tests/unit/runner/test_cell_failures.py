"""The message about a cell's failure."""

from __future__ import annotations

import pytest

from hwmatrix.records import Stage, Status
from hwmatrix.runner.cell import failed

LONG = 50_000 * "x"


def test_the_whole_text_is_classified() -> None:
    status, error = failed(RuntimeError(f"{LONG} CUDA error: out of memory"), hardware="cuda", stage=Stage.RUN)
    assert (status, error["type"]) == (Status.OOM, "memory_pressure")


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
    assert failed(failure, hardware=hardware, stage=stage)[1]["type"] == error_type


def test_a_failure_without_a_text_has_the_name_of_its_class() -> None:
    assert failed(MemoryError(), hardware="cpu", stage=Stage.RUN)[1]["message"] == "MemoryError"
