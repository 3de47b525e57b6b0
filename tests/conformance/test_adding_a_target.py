"""Backends from other packages: the one that docs/adding-a-target.md adds, following its steps, and the toy in the folder beside this file.

Both are packages that are installed next to hwmatrix; nothing in the project is copied or changed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from fault_runs import briefly_timed, untrained

pytestmark = [pytest.mark.torch, pytest.mark.long]
ROOT = Path(__file__).parents[2]
TOY = Path(__file__).with_name("toy")
PAGE = (ROOT / "docs" / "adding-a-target.md").read_text(encoding="utf-8")
STEP = re.compile(r"<!-- (?P<what>in|file|run)(?: (?P<path>\S+))?(?: after: (?P<after>.+?))? -->\n```\w+\n(?P<text>.*?)```\n", re.DOTALL)
STEPS = [step.groupdict() for step in STEP.finditer(PAGE)]
TOY_ENTRY = "  toy: {backend: toy, image: toy, execution: software}\n"


@dataclasses.dataclass(frozen=True)
class Here:
    """A folder in which the page's steps were executed: where the package is installed, and the commands that are not yet executed."""

    folder: Path
    site: Path
    cache: Path
    commands: list[list[str]]

    def run(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a module with this interpreter and both packages on its path."""
        paths = [str(ROOT / "harness"), str(self.site), str(TOY)]
        caches = dict.fromkeys(("HWMATRIX_CACHE", "HWMATRIX_TESTS_CACHE"), str(self.cache))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **caches}
        command = (sys.executable, "-m", *command)
        return subprocess.run(command, cwd=cwd or self.folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Here:
    """The page's steps executed, except for its last commands, plus the toy's entry in matrix.yaml."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "matrix.yaml").write_text(briefly_timed(untrained(), seconds=0.2), encoding="utf-8")
    for step in STEPS:
        if step["what"] == "file":
            path = folder / step["path"]
            path.parent.mkdir(exist_ok=True)
            path.write_text(step["text"], encoding="utf-8")
        elif step["what"] == "in":
            insert(folder / step["path"], step["after"].strip(), step["text"] + TOY_ENTRY)
    commands = [shlex.split(line) for step in STEPS if step["what"] == "run" for line in step["text"].splitlines()]
    made = Here(folder=folder, site=folder / "site", cache=shared_cache, commands=commands)
    assert made.commands[0] == ["pip", "install", "."]
    # Into a folder, and with the packages installed here, so that this interpreter is not changed.
    done = made.run("pip", "install", ".", "--target", str(made.site), "--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    assert done.returncode == 0, done.stderr
    return made


def insert(path: Path, after: str, text: str) -> None:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    places = [number for number, line in enumerate(lines, start=1) if line.strip() == after]
    assert len(places) == 1, f"{path.name} must have the line {after!r} once, but has it {len(places)} times"
    lines.insert(places[0], text)
    path.write_text("".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def document(here: Here) -> dict[str, Any]:
    """matrix.json of the page's run, with the toy as an additional target."""
    (command,) = (command for command in here.commands if command[0] == "hwmatrix")
    at = command.index("torchscript") + 1
    done = here.run(*command[:at], "toy", *command[at:])
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((here.folder / "reports" / "latest" / "matrix.json").read_text(encoding="utf-8"))
    return found


def cell_of(document: dict[str, Any], target: str) -> dict[str, Any]:
    (cell,) = (cell for cell in document["cells"] if cell["target"] == target and cell["model"] == "bert")
    return dict(cell)


def test_the_backend_of_the_page_has_a_column(document: dict[str, Any]) -> None:
    cell = cell_of(document, "torchscript")
    assert (cell["status"], cell["placement"]["on_target"], cell["execution"]) == ("pass", 1.0, "hardware")
    assert cell["evidence"]["versions"].keys() >= {"hwmatrix", "torch", "transformers"}


def test_the_toy_backend_has_a_column(document: dict[str, Any]) -> None:
    """It is planned by its descriptor; its model is exported, run, merged and reported."""
    cell = cell_of(document, "toy")
    assert (cell["status"], cell["stage"], cell["execution"]) == ("pass", "measure", "software")
    assert cell["placement"]["detail"].endswith("runs by onnx.reference")
    assert cell["evidence"]["versions"]["hwmatrix-toy"] == "1.0"


def test_the_canaries_of_both_end_as_expected(document: dict[str, Any]) -> None:
    believed = {target["name"]: target["canary_ok"] for target in document["targets"]}
    assert believed == {"cpu": True, "torchscript": True, "toy": True}


def test_the_toy_s_hardware_is_detected(here: Here, document: dict[str, Any]) -> None:
    assert document["cells"]
    with duckdb.connect(str(here.folder / "reports" / "latest" / "matrix.duckdb"), read_only=True) as database:
        rows = database.execute("SELECT DISTINCT available, name FROM detections WHERE hardware_type = 'toy'").fetchall()
    assert rows == [(True, "the toy")]


def test_the_backend_of_the_page_conforms(here: Here) -> None:
    """All tests but that of bundles that cannot be built, which tests hwmatrix itself and takes as long as all others together."""
    (command,) = (command for command in here.commands if command[0] == "pytest")
    assert command[-2:] == ["-k", "torchscript"]
    done = here.run(*command[:-1], "torchscript and not factory_error", "-q", "-p", "no:cacheprovider", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
