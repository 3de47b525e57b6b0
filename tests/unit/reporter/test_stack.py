"""The hardware test with scripted processes: how each way of ending becomes a result. tests/torch runs real ones."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from hwmatrix.records import Severity, Status
from hwmatrix.reporter.stack import Ended, StackResult, try_everything
from hwmatrix.reporter.stack_probe import MARK, RUNTIMES


def said(*events: dict[str, Any]) -> str:
    return "chatter of a driver\n" + "".join(f"\n{MARK}{json.dumps(event)}\n" for event in events)


def passed(device: str, hardware: str = "cuda", **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    done = {"end": device, "hardware": hardware, "status": "pass", "relative_error": 1e-7, "wall_ms": 3.0, "message": None}
    return {"begin": device, "hardware": hardware}, done | changes


DONE = {"finished": "torch"}


class Script:
    """Replaces the probe process of a runtime by a sequence of outcomes."""

    def __init__(self, *ends: Ended) -> None:
        self.ends = list(ends)
        self.calls: list[tuple[str, tuple[str, ...]]] = []

    def __call__(self, runtime: str, skipped: tuple[str, ...], timeout_s: float) -> Ended:
        assert timeout_s == 7
        self.calls.append((runtime, skipped))
        return self.ends.pop(0)


@pytest.fixture(autouse=True)
def only_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "torch" else None)


def results(script: Script) -> tuple[dict[str | None, StackResult], list[Any]]:
    found, errors = try_everything(run=script, timeout_s=7)
    return {result.device: result for result in found if result.runtime == "torch"}, list(errors)


def test_everything_works() -> None:
    script = Script(Ended(code=0, output=said(*passed("cpu", "cpu"), *passed("cuda:0"), DONE), log=""))
    found, errors = results(script)
    assert [(device, result.status, result.hardware) for device, result in found.items()] == [
        ("cpu", Status.PASS, "cpu"),
        ("cuda:0", Status.PASS, "cuda"),
    ]
    assert found["cpu"].relative_error == 1e-7
    assert errors == []
    assert script.calls == [("torch", ())]


def test_a_missing_runtime_is_not_run_and_not_an_error() -> None:
    found, errors = try_everything(run=Script(Ended(code=0, output=said(*passed("cpu", "cpu"), DONE), log="")), timeout_s=7)
    untried = {result.runtime: result for result in found if result.status is Status.NOT_RUN}
    assert untried.keys() == {*RUNTIMES, "browser"} - {"torch"}
    assert untried["openvino"].message == "the module openvino is not installed in this interpreter"
    assert untried["openvino"].relative_error is None
    assert errors == ()


def test_a_crash_is_a_result_and_the_other_devices_are_still_tried() -> None:
    script = Script(
        Ended(
            code=-11,
            output=said(*passed("cpu", "cpu"), {"begin": "cuda:0", "hardware": "cuda"}),
            log="Fatal Python error: Segmentation fault",
        ),
        Ended(code=0, output=said(*passed("cuda:1"), DONE), log=""),
    )
    found, errors = results(script)
    assert [(device, result.status) for device, result in found.items()] == [
        ("cpu", Status.PASS),
        ("cuda:0", Status.CRASH),
        ("cuda:1", Status.PASS),
    ]
    assert script.calls[1] == ("torch", ("cpu", "cuda:0"))
    (error,) = errors
    assert (error.error_type, error.hardware_type, error.severity) == ("segmentation_fault", "cuda", Severity.CRITICAL)
    assert error.message == "torch on cuda:0: the process was ended by SIGSEGV (signal 11)"
    assert error.traceback == "Fatal Python error: Segmentation fault"


def test_the_last_output_identifies_the_error_better_than_the_signal() -> None:
    log = "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: uncorrectable ECC error encountered"
    script = Script(Ended(code=-6, output=said({"begin": "cuda:0", "hardware": "cuda"}), log=log), Ended(code=0, output=said(DONE), log=""))
    _, (error,) = results(script)
    assert error.error_type == "gpu_memory_error"


def test_a_hang_is_a_timeout() -> None:
    script = Script(
        Ended(code=None, output=said({"begin": "cuda:0", "hardware": "cuda"}), log=""), Ended(code=0, output=said(DONE), log="")
    )
    found, (error,) = results(script)
    assert found["cuda:0"].status is Status.TIMEOUT
    assert error.error_type == "timeout"
    assert error.message == "torch on cuda:0: timed out after 7 s; the process was killed"


def test_an_exception_is_recognized() -> None:
    told: dict[str, Any] = {
        "status": "error",
        "relative_error": None,
        "message": "CUDA error: no kernel image is available for execution on the device",
        "exception": "torch.AcceleratorError",
        "traceback": "Traceback",
    }
    found, (error,) = results(Script(Ended(code=0, output=said(*passed("cuda:0", **told), DONE), log="")))
    assert found["cuda:0"].status is Status.ERROR
    assert (error.error_type, error.traceback) == ("gpu_no_kernels", "Traceback")


def test_wrong_numbers_are_a_mismatch() -> None:
    told: dict[str, Any] = {"status": "mismatch", "relative_error": 0.5, "message": "relative L2 error 0.5 of a product exceeds 0.005"}
    found, (error,) = results(Script(Ended(code=0, output=said(*passed("cuda:0", **told), DONE), log="")))
    assert found["cuda:0"].status is Status.MISMATCH
    assert error.error_type == "mismatch"


def test_a_runtime_that_cannot_be_imported_is_reported_once() -> None:
    log = "Traceback (most recent call last):\nImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"
    script = Script(Ended(code=1, output="", log=log))
    found, (error,) = results(script)
    assert found[None].status is Status.ERROR
    assert error.error_type == "shared_library_missing"
    assert error.message == "torch: the process exited with code 1, while no device was used"
    assert error.component == "hardware_stack"
    assert len(script.calls) == 1


def test_an_incomplete_line_is_not_an_event() -> None:
    output = said(*passed("cpu", "cpu")) + f'\n{MARK}{{"begin": "cuda'
    script = Script(Ended(code=-9, output=output, log=""))
    found, (error,) = results(script)
    assert found["cpu"].status is Status.PASS
    assert error.error_type == "killed"


def test_a_runtime_that_crashes_on_exit() -> None:
    script = Script(Ended(code=-11, output=said(*passed("cpu", "cpu"), DONE), log=""))
    found, (error,) = results(script)
    assert (found["cpu"].status, found[None].status) == (Status.PASS, Status.CRASH)
    assert error.message == "torch: the process was ended by SIGSEGV (signal 11), after all devices were tried"
    assert error.error_type == "segmentation_fault"
    assert len(script.calls) == 1


def test_no_process_can_be_started() -> None:
    def full(runtime: str, skipped: tuple[str, ...], timeout_s: float) -> Ended:
        assert (runtime, skipped, timeout_s) == ("torch", (), 7)
        raise OSError(28, "No space left on device")

    found, errors = try_everything(run=full, timeout_s=7)
    (result,) = (result for result in found if result.runtime == "torch")
    (error,) = errors
    assert (result.status, error.error_type) == (Status.ERROR, "disk_full")
    assert error.message == "torch: its process cannot be started: [Errno 28] No space left on device"
