"""``hwmatrix matrix`` with and without adaptations, through ``main``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest
from fake_executor import FakeExecutor

from hwmatrix.app import execution
from hwmatrix.cli import main
from hwmatrix.records import Status

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("project")
MATRIX = """\
version: 1
sizes: {tiny: {batch: 2}, full: {}}
tolerances: {float32: {relative_error: 1.0e-3, reason: rounding}}
targets:
  cpu: {backend: cpu, image: cpu}
models:
  bert: {family: embedding, architecture: bert, class: BertForMaskedLM}
suites:
  default: {models: all}
"""
KEY = "bert/tiny/cpu/float32/b2-s16-t1"


def ran(project: Path, monkeypatch: pytest.MonkeyPatch, *argv: str) -> tuple[list[str], dict[str, Any]]:
    """The executed cells of a run whose model runs out of memory, and its cell in matrix.json."""
    executor = FakeExecutor(outcomes={KEY: [make.failure(Status.OOM)]})
    monkeypatch.setattr(execution, "choose", lambda _isolation, _workshop: executor)
    assert main.main(["matrix", *argv]) == 0
    (cell,) = json.loads((project / "reports" / "latest" / "matrix.json").read_text(encoding="utf-8"))["cells"]
    return executor.ran, cell


def test_a_failed_cell_is_retried_with_a_change(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, cell = ran(project, monkeypatch)
    assert keys == [KEY, f"{KEY}+batch=1"]
    assert (cell["status"], cell["level"], cell["adaptation"]["changed"]) == ("oom", "Low", {"batch": 1})


@pytest.mark.parametrize("how", ["--no-adapt", "matrix.yaml"])
def test_nothing_is_retried_if_that_is_disabled(project: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "matrix.yaml":
        (project / "matrix.yaml").write_text(f"{MATRIX}adapt: false\n", encoding="utf-8")
    keys, cell = ran(project, monkeypatch, *([how] if how == "--no-adapt" else []))
    assert keys == [KEY]
    assert (cell["level"], cell["adaptation"], cell["attempts"]) == ("none", None, [])


def test_the_option_overrides_matrix_yaml(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "matrix.yaml").write_text(f"{MATRIX}adapt: false\n", encoding="utf-8")
    assert ran(project, monkeypatch, "--adapt")[1]["level"] == "Low"


def test_a_resumed_run_keeps_its_setting(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(project, monkeypatch, "--no-adapt")[1]["level"] == "none"
    assert main.main(["matrix", "--resume", "--adapt"]) == 2
    assert ran(project, monkeypatch, "--resume")[0] == []
