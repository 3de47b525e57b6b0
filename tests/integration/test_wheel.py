"""The built wheel as a user gets it: installed without a checkout, and used in empty folders."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from fault_runs import PROJECT
from matrix_command import document, statuses
from packaging.requirements import Requirement

from hwmatrix.errors import EngineError
from hwmatrix.host.engine import connect

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_S: Final = 240
QUICK: Final = ("--models", "bert", "--targets", "cpu", "--no-timing")
SERVED: Final = "no matrix.yaml here: using the one that comes with hwmatrix"
LISTING: Final = "import hwmatrix, json, os; print(json.dumps(os.listdir(os.path.dirname(hwmatrix.__file__))))"
OWN_TARGET: Final = "  mine: {backend: onnxruntime, image: mine, base: python}\n"


QUESTIONS: Final = (
    ("--version",),
    ("devices",),
    ("detect",),
    ("classify", "--model", "bert"),
    ("fit", "bert"),
    ("evidence",),
    ("types",),
    ("schema",),
    ("generate", "--model", "bert"),
    ("init", "--models", "bert", "--targets", "cpu"),
    ("errors",),
)
"""What can be asked without a run."""


def required() -> set[str]:
    """The distributions that a plain installation brings: what the project requires without extras, and so on."""
    lines = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = set[str]()
    while lines:
        found = Requirement(lines.pop())
        if found.name not in names and (found.marker is None or found.marker.evaluate({"extra": ""})):
            names.add(found.name)
            lines += metadata.requires(found.name) or ()
    return names


class Installed:
    """An environment with the wheel, and its command.

    All other packages come from the tests' environment; if it is ``plain``, only those that the package requires without extras.
    """

    def __init__(self, folder: Path, cache: Path, *, plain: bool = False) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.python = folder / "bin" / "python"
        below = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
        site = Path(sysconfig.get_path("purelib", scheme="venv", vars={"base": str(folder)}))
        # Folders listed in a .pth file are not searched for further .pth files, so an editable hwmatrix has no effect here.
        if plain:
            for file in {file.parts[0]: file for each in required() for file in metadata.files(each) or ()}.values():
                top = Path(str(file.locate())).parents[len(file.parts) - 2] if len(file.parts) > 1 else Path(str(file.locate()))
                if file.parts[0] not in {"..", "__pycache__"}:
                    (site / file.parts[0]).symlink_to(top)
        else:
            (site / "tests.pth").write_text("".join(f"{path}\n" for path in below), encoding="utf-8")
        built = folder.parent / "built"
        build = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(built))
        subprocess.run(build, cwd=PROJECT, check=True)
        (wheel,) = built.glob("*.whl")
        pip = (sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check")
        subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
        self.cache = cache

    def script(self, text: str) -> str:
        """Run some Python, which must succeed, and return what it prints."""
        done = subprocess.run(
            [str(self.python), "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def run(self, *words: str, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
        """Run a command, which must succeed, and return its output."""
        inherited = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
        command = [str(self.python.with_name("hwmatrix")), *words]
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**inherited, "HWMATRIX_CACHE": str(self.cache), **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed") / "environment", shared_cache)


def test_a_plain_installation_answers_what_needs_no_run(tmp_path: Path) -> None:
    """Without any extra: the help of every command, and each question that published results answer."""
    plain = Installed(tmp_path / "environment", tmp_path / "cache", plain=True)
    project = tmp_path / "project"
    project.mkdir()
    commands = json.loads(plain.script("import json; from hwmatrix.cli.main import _COMMANDS; print(json.dumps(list(_COMMANDS)))"))
    plain.script(f"from hwmatrix.cli.main import main\nfor name in {commands!r}: assert main([name, '--help']) == 0, name")
    for words in QUESTIONS:
        plain.run(*words, cwd=project)


@pytest.mark.torch
def test_in_an_empty_folder_the_default_matrix_runs(installed: Installed, tmp_path: Path) -> None:
    said = installed.run("matrix", *QUICK, "--isolation", "none", cwd=tmp_path)
    assert said.count(SERVED) == 1
    assert statuses(tmp_path / "reports/latest") == {("bert", "cpu"): "pass"}
    assert [path.name for path in tmp_path.iterdir()] == ["reports"]
    found = document(tmp_path / "reports/latest")
    assert found["run"]["commit"] is None
    assert SERVED in installed.run("gate", cwd=tmp_path)


@pytest.mark.long
@pytest.mark.torch
def test_the_files_that_init_writes_run(installed: Installed, tmp_path: Path) -> None:
    installed.run("init", "--models", "prophetnet", "--targets", "cpu", "--workflow", cwd=tmp_path)
    said = installed.run("matrix", "--isolation", "none", "--no-timing", cwd=tmp_path)
    assert SERVED not in said
    assert statuses(tmp_path / "reports/latest") == {("prophetnet", "cpu"): "pass"}
    assert {path.name for path in tmp_path.iterdir()} == {".github", "matrix.yaml", "noxfile.py", "reports"}


@pytest.mark.long
def test_a_target_with_its_own_image_folder_in_a_virtual_environment(installed: Installed, tmp_path: Path) -> None:
    """Its requirements are beside matrix.yaml; the constraints, the base and the harness come from the wheel."""
    installed.run("init", "--models", "bert", "--targets", "cpu", cwd=tmp_path)
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(matrix.read_text(encoding="utf-8").replace("targets:\n", f"targets:\n{OWN_TARGET}"), encoding="utf-8")
    mine = tmp_path / "images" / "mine"
    mine.mkdir(parents=True)
    (mine / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\n", encoding="utf-8")
    (mine / "requirements.txt").write_text("onnxruntime\n", encoding="utf-8")
    installed.run("detect", "--images", "--targets", "mine", "--isolation", "venv", cwd=tmp_path)
    (shard,) = tmp_path.rglob("shards/*.duckdb")
    assert "mine" in shard.name
    (layer,) = (installed.cache / "venvs").glob("mine-harness-*/lib/python*/site-packages/hwmatrix")
    assert (layer / "runner" / "__main__.py").is_file()
    assert not (layer / "shipped").exists()


@pytest.mark.containers
def test_in_an_empty_folder_images_are_built_and_run(installed: Installed, tmp_path: Path) -> None:
    try:
        engine = connect(dict(os.environ))
    except EngineError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"this test must run in CI: {error}")
        pytest.skip(str(error))
    installed.run("matrix", *QUICK, "--isolation", "container", cwd=tmp_path)
    output = tmp_path / "reports/latest"
    assert statuses(output) == {("bert", "cpu"): "pass"}
    (cell,) = document(output)["cells"]
    assert cell["evidence"]["isolation"] == "container"
    with contextlib.closing(engine.client()) as client:
        image = client.images.get(cell["evidence"]["image_digest"])
        program = (
            "import hwmatrix, json, pathlib; print(json.dumps(sorted(p.name for p in pathlib.Path(hwmatrix.__file__).parent.iterdir())))"
        )
        told = client.containers.run(image.id, ["-c", program], entrypoint="python", remove=True, network_disabled=True)
    assert image.labels["org.opencontainers.image.revision"] == ""  # the commit is unknown, and no value is invented
    assert {"runner", "targets", "host"} <= set(json.loads(told))
    assert "shipped" not in json.loads(told)
