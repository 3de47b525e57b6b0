"""Processes that the host starts: their output is bounded, and the workflows' script takes the caller's matrix.yaml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hwmatrix.host.github.render import render
from hwmatrix.host.process import LINE, Processes
from hwmatrix.matrix.load import load

ROOT = Path(__file__).parents[2]


def test_a_line_without_end_is_cut_outside_containers_too() -> None:
    lines: list[int] = []
    command = (sys.executable, "-c", f"import sys; sys.stdout.write('\\x1b' * ({LINE} * 3)); print()")
    with Processes() as processes:
        done = processes.run(command, environment={}, on_line=lambda line: lines.append(len(line)))
    assert [length for length in lines if length] == [LINE, LINE, LINE]
    assert len(done.output) < 50_000
    assert "\x1b" not in done.output


@pytest.mark.parametrize(
    ("given", "code", "file"),
    [
        ({"HWMATRIX": "", "MATRIX": "matrix.yaml"}, 0, "matrix.yaml"),
        ({"HWMATRIX": "", "MATRIX": "ci/other.yaml"}, 0, "ci/other.yaml"),
        ({"HWMATRIX": "a/b", "MATRIX": "ci/other.yaml"}, 0, ".hwmatrix/matrix.yaml"),
        ({"HWMATRIX": "", "MATRIX": "a\nX=1"}, 2, None),
    ],
)
def test_the_matrix_yaml_of_a_caller_is_the_one_that_runs(tmp_path: Path, given: dict[str, str], code: int, file: str | None) -> None:
    workflow = yaml.safe_load(render(load(ROOT / "matrix.yaml"))["matrix.yml"])
    (script,) = {each["run"] for each in workflow["jobs"]["plan"]["steps"] if each.get("name") == "Install hwmatrix"}
    choosing = [line for line in script.splitlines() if "-m pip" not in line and "-m venv" not in line]
    (tmp_path / "ci").mkdir()
    (tmp_path / ".hwmatrix").mkdir()
    (tmp_path / "ci" / "other.yaml").write_text("mine", encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], "RUNNER_TEMP": "temp", "GITHUB_PATH": "path", "GITHUB_ENV": "env"} | given
    done = subprocess.run(["bash", "-e", "-c", "\n".join(choosing)], cwd=tmp_path, env=environment, check=False, capture_output=True)  # noqa: S607
    assert done.returncode == code
    assert file is None or (tmp_path / "env").read_text(encoding="utf-8") == f"MATRIX_FILE={file}\n"
