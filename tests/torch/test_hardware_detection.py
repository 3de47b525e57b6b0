"""The detector beside the real frameworks: it imports none of them, agrees with them, and leaves them usable."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hwmatrix.hardware import torch_build
from hwmatrix.hardware.api import HardwareDetector
from hwmatrix.hardware.detector import detect
from hwmatrix.records import Backend
from hwmatrix.records.backends import descriptors

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "openvino", "onnxruntime", "onnxruntime_qnn", "numpy", "duckdb", "docker", "jinja2")
PAGE = ROOT / "docs" / "hardware.md"


def run(code: str, tmp_path: Path) -> str:
    """What a new interpreter prints."""
    environment = os.environ | {"HWMATRIX_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT / "harness")}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_after(code: str, tmp_path: Path) -> set[str]:
    """Which heavy packages a new interpreter has imported after some code."""
    printed = run(f"{code}\nimport sys; print('\\n' + ' '.join(sys.modules))", tmp_path)
    return set(HEAVY) & {name.partition(".")[0] for name in printed.splitlines()[-1].split()}


@pytest.mark.parametrize(
    "code",
    [
        "import hwmatrix",
        "import hwmatrix; hwmatrix.HardwareDetector().detect()",
        "import hwmatrix; hwmatrix.detect_available_hardware(); hwmatrix.get_torch_device_with_priority(['cuda', 'mps', 'cpu'], 1)",
        "from hwmatrix.cli.main import main; main(['devices'])",
        "from hwmatrix.cli.main import main; main(['devices', '--list-devices', '--format', 'json'])",
    ],
)
def test_no_framework_is_imported(code: str, tmp_path: Path) -> None:
    assert loaded_after(code, tmp_path) == set()
    assert loaded_after(code, tmp_path) == set()  # and none when the answers are kept


def test_importing_the_library_is_light(tmp_path: Path) -> None:
    """Nothing but Python's own modules and the package itself."""
    modules = set(run("import sys; before = set(sys.modules); import hwmatrix; print(*(set(sys.modules) - before))", tmp_path).split())
    assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names | {"hwmatrix"}


def test_what_pytorch_is_built_for_is_read_as_pytorch_says_it(tmp_path: Path) -> None:
    import torch

    code = "from hwmatrix.hardware.torch_build import torch_build as b; import json; f = b(); print(json.dumps([f.version, f.cuda, f.hip]))"
    read = json.loads(run(code, tmp_path))
    assert read == [torch.__version__, torch.version.cuda, torch.version.hip]
    here = torch_build.torch_build()
    assert here is not None
    assert [here.version, here.cuda, here.hip] == read
    assert torch_build.imported() is torch


def test_the_device_that_is_named_can_be_used(tmp_path: Path) -> None:
    import torch

    device = HardwareDetector(tmp_path).get_torch_device_with_priority(["cuda", "rocm", "mps", "cpu"], 1)
    assert torch.ones(2, device=device).sum().item() == 2.0


def test_openvinos_library_tells_what_the_package_tells(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    found = detect(Backend.OPENVINO)
    assert found.features["version"] == openvino.__version__
    assert found.features["devices"] == {name: core.get_property(name, "FULL_DEVICE_NAME").strip() for name in core.available_devices}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the threads that Linux lists")
def test_asking_openvinos_library_leaves_no_thread_and_the_package_usable(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    code = """
import os
from hwmatrix.hardware.detector import detect
from hwmatrix.records import Backend
found = detect(Backend.OPENVINO)
print(found.available, len(os.listdir("/proc/self/task")))
import numpy, openvino
from openvino import opset13
parameter = openvino.opset13.parameter([4], numpy.float32)
model = openvino.Model([opset13.add(parameter, parameter)], [parameter])
print(openvino.Core().compile_model(model, "CPU")(numpy.ones(4, numpy.float32))[0].tolist())
"""
    assert run(code, tmp_path).splitlines() == ["True 1", "[2.0, 2.0, 2.0, 2.0]"]


@pytest.mark.parametrize("kind", sorted(Backend(each.name) for each in descriptors() if each.hardware.light))
def test_what_is_read_from_files_is_what_the_runtime_says(kind: Backend, tmp_path: Path) -> None:
    """In interpreters of their own: registering QNN's provider is for good."""
    code = f"""
import json
from hwmatrix.hardware.detector import detect
from hwmatrix.records import Backend
for light in (True, False):
    found = detect(Backend({kind.value!r}), light=light)
    print(json.dumps([found.available, found.name, found.reason, found.features]))
"""
    light, full = (json.loads(line) for line in run(code, tmp_path).splitlines())
    assert light[:3] == full[:3]
    asked = {"providers", "registered", "compiler_version", "delegates"}
    assert {name: value for name, value in light[3].items() if name not in asked} == {
        name: value for name, value in full[3].items() if name not in asked
    }


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    run("\n".join(blocks), tmp_path)
    assert loaded_after("\n".join(blocks), tmp_path) == set()
