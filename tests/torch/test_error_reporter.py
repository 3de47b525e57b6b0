"""The reporter on the machine that tests: real runtimes in real processes, the detection's reasons, the example of docs/errors.md."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hwmatrix.faults.catalogue import UNMATCHED
from hwmatrix.pool.pool import ResourcePool
from hwmatrix.records import Status
from hwmatrix.reporter import stack, stack_probe
from hwmatrix.reporter.document import json_schema
from hwmatrix.reporter.reporter import HardwareCompatibilityReporter

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"
EXAMPLE = re.compile(r"<!-- executed by tests/torch/test_error_reporter\.py -->\n\n```python\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with a cache of its own; processes find the package where this one does."""
    shutil.copy(ROOT / "matrix.yaml", tmp_path / "matrix.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "harness"))
    return tmp_path


def fake_torch(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch that does as it is told, for new interpreters."""
    (folder / "modules").mkdir()
    (folder / "modules" / "torch.py").write_text(textwrap.dedent(code), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder / "modules"), str(ROOT / "harness"))))


GPUS = """
    import os, signal, time
    import numpy

    class version:
        hip = None

    class cuda:
        device_count = staticmethod(lambda: 3)

    class backends:
        class mps:
            is_available = staticmethod(lambda: False)

    class Tensor:
        def __init__(self, values): self.values = values
        def to(self, device):
            if device == "cuda:1": act()
            return self
        def __matmul__(self, other): return Tensor(self.values @ other.values)
        def cpu(self): return self
        def numpy(self): return self.values

    from_numpy = Tensor
"""


def on_torch(results: list[dict[str, Any]]) -> dict[str | None, dict[str, Any]]:
    return {result["device"]: result for result in results if result["runtime"] == "torch"}


def test_everything_that_is_installed_here_multiplies_rightly() -> None:
    reporter = HardwareCompatibilityReporter(pool=ResourcePool())
    results = reporter.test_full_hardware_stack()
    tried = [result for result in results if result["status"] != "not_run"]
    assert on_torch(results)["cpu"]["status"] == "pass"
    for result in tried:
        assert result["status"] == "pass", result
        assert 0 <= result["relative_error"] < 2e-2
        assert result["wall_ms"] > 0
        assert result["message"] is None
    assert reporter.errors == ()
    assert {result["runtime"] for result in results} == {*stack_probe.RUNTIMES, "browser"}
    for result in results:
        if result["status"] == "not_run":
            assert result["message"]


def test_a_daemon_that_a_driver_leaves_behind_is_not_waited_for(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act = """
def act():
    if os.fork() == 0:
        os.setsid()
        open("daemon", "w").write(str(os.getpid()))
        time.sleep(100)
    while not os.path.exists("daemon"):
        time.sleep(0.01)
"""
    fake_torch(project, textwrap.dedent(GPUS) + act, monkeypatch)
    begin = time.monotonic()
    ended = stack.in_a_process("torch", (), 60)
    try:
        assert ended.code == 0, ended.log
        assert time.monotonic() - begin < 60
    finally:
        os.kill(int((project / "daemon").read_text(encoding="utf-8")), signal.SIGKILL)


@pytest.mark.parametrize(
    ("act", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process was ended by SIGSEGV (signal 11)"),
        ("os.kill(os.getpid(), signal.SIGBUS)", f"the process was ended by SIGBUS (signal {int(signal.SIGBUS)})"),
        ("os._exit(0)", "the process exited with code 0"),
    ],
)
def test_a_driver_that_takes_its_process_along(act: str, how: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(project, f"{textwrap.dedent(GPUS)}\ndef act():\n    {act}\n", monkeypatch)
    monkeypatch.setattr(stack, "RUNTIMES", {"torch": "torch"})
    results, errors = stack.try_everything()
    found = {result.device: result for result in results if result.runtime == "torch"}
    assert {device: result.status for device, result in found.items()} == {
        "cpu": Status.PASS,
        "cuda:0": Status.PASS,
        "cuda:1": Status.CRASH,
        "cuda:2": Status.PASS,
    }
    assert found["cuda:1"].message == how
    (error,) = errors
    assert error.hardware_type == "cuda"
    assert error.message == f"torch on cuda:1: {how}"


def test_a_driver_that_hangs_is_ended_with_its_children(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act = """
def act():
    child = os.fork()
    if child == 0:
        time.sleep(60)
    open("child", "w").write(str(child))
    time.sleep(60)
"""
    fake_torch(project, textwrap.dedent(GPUS) + act, monkeypatch)
    monkeypatch.setattr(stack, "RUNTIMES", {"torch": "torch"})
    begin = time.monotonic()
    results, (error,) = stack.try_everything(timeout_s=10)
    assert time.monotonic() - begin < 60
    found = {result.device: result.status for result in results if result.runtime == "torch"}
    assert found == {"cpu": Status.PASS, "cuda:0": Status.PASS, "cuda:1": Status.TIMEOUT, "cuda:2": Status.PASS}
    assert "timed out after 10 s" in error.message
    child = int((project / "child").read_text(encoding="utf-8"))
    deadline = time.monotonic() + 10
    while _runs(child):
        assert time.monotonic() < deadline, "a child of the probe outlives it"
        time.sleep(0.05)


def _runs(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_exceptions_and_wrong_numbers(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act = "\ndef act():\n    raise RuntimeError('CUDA error: no kernel image is available for execution on the device')\n"
    fake_torch(
        project,
        textwrap.dedent(GPUS).replace("device_count = staticmethod(lambda: 3)", "device_count = staticmethod(lambda: 2)") + act,
        monkeypatch,
    )
    monkeypatch.setattr(stack, "RUNTIMES", {"torch": "torch"})
    _, (error,) = stack.try_everything()
    assert (error.error_type, error.hardware_type) == ("gpu_no_kernels", "cuda")
    assert error.message.startswith("torch on cuda:1: CUDA error: no kernel image")
    assert error.traceback is not None
    assert "RuntimeError" in error.traceback
    (project / "modules" / "torch.py").write_text(
        textwrap.dedent(GPUS).replace("self.values @ other.values", "self.values @ other.values * 2") + "\ndef act(): pass\n",
        encoding="utf-8",
    )
    results, errors = stack.try_everything()
    assert {result.status for result in results if result.runtime == "torch"} == {Status.MISMATCH}
    assert {error.error_type for error in errors} == {"mismatch"}


def test_a_file_in_the_current_folder_stands_in_for_nothing(project: Path) -> None:
    for name in ("torch", "numpy", "json", "onnxruntime", "hwmatrix"):
        (project / f"{name}.py").write_text("raise SystemExit('imported from the current folder')", encoding="utf-8")
    ended = stack.in_a_process("torch", (), 120)
    assert ended.code == 0, ended.log
    assert "imported from the current folder" not in ended.log


def test_nothing_is_executed_in_the_process_that_asks(project: Path) -> None:
    """A new interpreter that tests the stack imports none of its runtimes."""
    code = """
import sys
from hwmatrix import HardwareCompatibilityReporter
HardwareCompatibilityReporter().test_full_hardware_stack()
print(*sorted({"torch", "openvino", "onnxruntime", "onnxruntime_qnn", "transformers"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300, cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_this_machine_s_own_reasons_are_recognized() -> None:
    """Whatever is missing on the machine that tests: the catalogue knows the detection's words."""
    made = HardwareCompatibilityReporter(pool=ResourcePool())
    made.collect_hardware_detection_errors()
    assert all(error.error_type not in {UNMATCHED, "target_unavailable"} for error in made.errors), [error.message for error in made.errors]


def test_the_graph_beside_the_probe_is_one_product_of_its_sizes() -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_model_from_string(importlib.resources.files("hwmatrix.reporter").joinpath("stack_probe.onnx").read_bytes())
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["MatMul"]
    shapes = {
        value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {
        "left": [stack_probe.ROWS, stack_probe.INNER],
        "right": [stack_probe.INNER, stack_probe.COLUMNS],
        "product": [stack_probe.ROWS, stack_probe.COLUMNS],
    }


def test_the_example_of_the_page(project: Path) -> None:
    (example,) = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    exec(compile(example, PAGE.name, "exec"), names)  # noqa: S102 - our own page
    document = json.loads(names["document"])
    jsonschema.validate(document, json_schema(), cls=jsonschema.Draft202012Validator)
    assert [dict(entry) for entry in document["stack"]] == names["stack"]
    assert (project / "hardware_report.md").read_text(encoding="utf-8") == names["markdown"]
    assert names["matrix"].startswith("# Models against hardware\n")
    assert document["collected"] == ["components", "hardware_detection", "resource_pool", "model bert-base-uncased", "hardware_stack"]
