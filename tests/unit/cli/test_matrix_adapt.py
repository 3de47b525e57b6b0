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
    """The cells that a run of a model which is out of memory has run, and what matrix.json has of it."""
    executor = FakeExecutor(outcomes={KEY: [make.failure(Status.OOM)]})
    monkeypatch.setattr(execution, "choose", lambda _isolation, _workshop: executor)
    assert main.main(["matrix", *argv]) == 0
    (cell,) = json.loads((project / "reports" / "latest" / "matrix.json").read_text(encoding="utf-8"))["cells"]
    return executor.ran, cell


def test_a_cell_that_fails_is_tried_again_changed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, cell = ran(project, monkeypatch)
    assert keys == [KEY, f"{KEY}+batch=1"]
    assert (cell["status"], cell["level"], cell["adaptation"]["changed"]) == ("oom", "Low", {"batch": 1})


@pytest.mark.parametrize("how", ["--no-adapt", "matrix.yaml"])
def test_nothing_is_tried_where_that_was_not_wanted(project: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "matrix.yaml":
        (project / "matrix.yaml").write_text(f"{MATRIX}adapt: false\n", encoding="utf-8")
    keys, cell = ran(project, monkeypatch, *([how] if how == "--no-adapt" else []))
    assert keys == [KEY]
    assert (cell["level"], cell["adaptation"], cell["attempts"]) == ("none", None, [])


def test_it_is_wanted_all_the_same(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "matrix.yaml").write_text(f"{MATRIX}adapt: false\n", encoding="utf-8")
    assert ran(project, monkeypatch, "--adapt")[1]["level"] == "Low"


def test_a_resumed_run_keeps_what_it_was_planned_to_do(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(project, monkeypatch, "--no-adapt")[1]["level"] == "none"
    assert main.main(["matrix", "--resume", "--adapt"]) == 2
    assert ran(project, monkeypatch, "--resume")[0] == []
