"""The hardware test with scripted outcomes of ``hwmatrix test``. tests/torch runs the real command."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from typing import Any

import pytest

from hwmatrix.records import Severity, Status
from hwmatrix.reporter.stack import run_test


def trial(hardware: str, status: str = "pass", **attempt: Any) -> dict[str, Any]:
    ran = status != "unavailable"
    return {
        "expected_hardware": hardware,
        "status": status,
        "execution": "hardware" if ran else None,
        "dtype": "float32" if ran else None,
        "attempts": [{"wall_ms": 3.5 if ran else None, "reason": None, "error_type": None} | attempt],
    }


@pytest.fixture(autouse=True)
def everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: importlib.util.spec_from_loader(name, None))


def command_prints(monkeypatch: pytest.MonkeyPatch, text: str, *, log: str = "", code: int = 0) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, code, text, log))


def test_each_kind_of_hardware_is_a_result_and_each_failure_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = "no NVIDIA driver is loaded here"
    trials = [
        trial("cpu"),
        trial("cuda", "unavailable", reason=driver, error_type="target_unavailable"),
        trial("openvino", "crash", reason="the process was ended by SIGSEGV (signal 11)", error_type="segmentation_fault"),
        trial("mps", "error", reason="Failed to allocate memory for requested buffer of size 7"),
    ]
    command_prints(monkeypatch, json.dumps({"trials": trials}))
    results, errors = run_test()
    assert [(each.hardware, each.status, each.execution, each.wall_ms) for each in results] == [
        ("cpu", Status.PASS, "hardware", 3.5),
        ("cuda", Status.UNAVAILABLE, None, None),
        ("openvino", Status.CRASH, "hardware", 3.5),
        ("mps", Status.ERROR, "hardware", 3.5),
    ]
    assert results[1].message == driver
    assert [(each.hardware_type, each.error_type, each.component) for each in errors] == [
        ("openvino", "segmentation_fault", "hardware_stack"),
        ("mps", "memory_pressure", "hardware_stack"),
    ]
    assert errors[0].severity is Severity.CRITICAL
    assert errors[0].message == "the process was ended by SIGSEGV (signal 11)"


def test_a_test_that_could_not_begin_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    command_prints(monkeypatch, "", log="error: matrix.yaml:3: it has no key 'modles'\n", code=2)
    results, (error,) = run_test()
    assert results == ()
    assert "ended with exit code 2" in error.message
    assert "it has no key 'modles'" in error.message


def test_without_pytorch_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else importlib.util.spec_from_loader(name, None))
    results, (error,) = run_test()
    assert results == ()
    assert error.error_type == "runtime_not_installed"
    assert error.message.endswith("which lacks torch")
