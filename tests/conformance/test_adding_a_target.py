"""Follows docs/adding-a-target.md to the letter, in a copy of the project."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
STEP = re.compile(r"<!-- (?P<what>in|file) (?P<path>\S+)(?: after: (?P<after>.+?))? -->\n```\w+\n(?P<text>.*?)```\n", re.DOTALL)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("harness", "images", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("matrix.yaml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def follow(page: str, project: Path) -> list[str]:
    """Do what the page says; give the files that were touched."""
    touched = []
    for step in STEP.finditer(page):
        path = project / step["path"]
        if step["what"] == "file":
            assert not path.exists()
            path.write_text(step["text"], encoding="utf-8")
        else:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            places = [number for number, line in enumerate(lines, start=1) if line.strip() == step["after"].strip()]
            assert len(places) == 1, f"{step['path']} must have the line {step['after']!r} once, and has it {len(places)} times"
            lines.insert(places[0], step["text"])
            path.write_text("".join(lines), encoding="utf-8")
        touched.append(step["path"])
    return touched


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(project / "harness"), "HWMATRIX_CACHE": str(project / "cache")}
    return subprocess.run([sys.executable, *command], cwd=project, env=environment, capture_output=True, text=True, check=False)


def test_the_page_adds_a_target(copy: Path) -> None:
    page = (ROOT / "docs" / "adding-a-target.md").read_text(encoding="utf-8")
    assert len(follow(page, copy)) == 6
    done = run(copy, "-m", "hwmatrix", "matrix", "--models", "bert", "--targets", "cpu", "torchscript", "--isolation", "none")
    assert done.returncode == 0, done.stderr
    document = json.loads((copy / "reports" / "latest" / "matrix.json").read_text(encoding="utf-8"))
    cells = {cell["target"]: cell for cell in document["cells"]}
    assert cells["torchscript"]["status"] == "pass"
    assert cells["torchscript"]["placement"]["on_target"] == 1.0
    assert {target["name"]: target["canary_ok"] for target in document["targets"]} == {"cpu": True, "torchscript": True}


def test_the_new_target_conforms(copy: Path) -> None:
    follow((ROOT / "docs" / "adding-a-target.md").read_text(encoding="utf-8"), copy)
    done = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/conformance/test_target.py", "-k", "torchscript")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
