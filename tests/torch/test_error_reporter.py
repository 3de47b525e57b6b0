"""The reporter on the machine that tests: the real hardware test, the detection's reasons, the example of docs/errors.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hwmatrix.faults.catalogue import UNMATCHED
from hwmatrix.pool.pool import ResourcePool
from hwmatrix.reporter.document import json_schema
from hwmatrix.reporter.reporter import HardwareCompatibilityReporter

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"
EXAMPLE = re.compile(r"<!-- executed by tests/torch/test_error_reporter\.py -->\n\n```python\n(.*?)```", re.DOTALL)

MATRIX = """
version: 1
models:
  bert:
    {family: embedding, architecture: bert, class: BertModel,
     tiny: {config: {vocab_size: 99, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2}}}
targets:
  cpu: {backend: cpu, image: cpu, dtypes: [float32], threads: 1}
  openvino: {backend: openvino, image: openvino, dtypes: [float32], threads: 1, options: {device: CPU}}
  rocm: {backend: rocm, image: rocm, dtypes: [float32], options: {device: 0}}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with a cache of its own; processes find the package where this one does."""
    (tmp_path / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "harness"))
    return tmp_path


def test_this_machine_s_own_reasons_are_recognized() -> None:
    """Whatever is missing on the machine that tests: the catalogue knows the detection's words."""
    made = HardwareCompatibilityReporter(pool=ResourcePool())
    made.collect_hardware_detection_errors()
    assert all(error.error_type not in {UNMATCHED, "target_unavailable"} for error in made.errors), [error.message for error in made.errors]


def test_the_example_of_the_page(project: Path) -> None:
    """Files in the current folder do not disturb its hardware test."""
    for name in ("torch", "numpy", "json", "openvino", "hwmatrix"):
        (project / f"{name}.py").write_text("raise SystemExit('imported from the current folder')", encoding="utf-8")
    (example,) = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    exec(compile(example, PAGE.name, "exec"), names)  # noqa: S102 - our own page
    document = json.loads(names["document"])
    jsonschema.validate(document, json_schema(), cls=jsonschema.Draft202012Validator)
    assert [dict(entry) for entry in document["stack"]] == names["stack"]
    statuses = {entry["hardware"]: entry["status"] for entry in document["stack"]}
    assert statuses.keys() == {"cpu", "openvino", "rocm"}
    assert statuses["cpu"] == "pass"
    assert set(statuses.values()) <= {"pass", "unavailable"}
    assert not [error for error in document["errors"] if error["component"] == "hardware_stack"]
    assert (project / "hardware_report.md").read_text(encoding="utf-8") == names["markdown"]
    assert names["matrix"].startswith("# Models against hardware\n")
    assert document["collected"] == ["components", "hardware_detection", "resource_pool", "model bert-base-uncased", "hardware_stack"]
