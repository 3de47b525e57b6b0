"""tests/gpu/native.sh without a GPU: in another environment, without network, and from a read-only checkout."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from fault_runs import PROJECT, briefly_timed, untrained
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

pytestmark = pytest.mark.torch

SCRIPT: Final = Path("tests", "gpu", "native.sh")
PARTS: Final = ("harness", "images", "tests/gpu")
"""What the script needs of a checkout, besides matrix.yaml."""
APART: Final = ("unshare", "--map-root-user", "--net", "--mount")
"""Runs a command in separate namespaces: with no network but its own loopback, and private mounts."""
OF_TORCH: Final = ("torch", "torchgen", "functorch", "numpy", "sympy", "mpmath", "networkx", "filelock", "fsspec", "jinja2", "markupsafe")
"""The packages of a machine with PyTorch and nothing else."""


def native(
    *arguments: str | Path, python: str = sys.executable, apart: Path | None = None, extra: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run the script, and return its exit code and output. ``apart``: from this checkout, read-only, and without network."""
    command: Sequence[str] = ["bash", str((apart or PROJECT) / SCRIPT), *map(str, arguments)]
    if apart:
        checkout = shlex.quote(str(apart))
        mounts = f"mount --bind {checkout} {checkout} && mount -o remount,bind,ro {checkout}"
        command = [*APART, "sh", "-c", f"{mounts} && exec {shlex.join(command)}"]
    environment = {**os.environ, "PYTHON": python, **(extra or {})}
    done = subprocess.run(
        command, env=environment, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=540, check=False
    )
    return done.returncode, done.stdout


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """An empty folder of wheels, because the tests' interpreter has all packages."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose models are not trained, and timed for one second: the time that they take is not what is tested."""
    folder = tmp_path / "checkout"
    for part in PARTS:
        shutil.copytree(PROJECT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "matrix.yaml").write_text(briefly_timed(untrained()), encoding="utf-8")
    return folder


def on_gpu() -> int:
    """The expected exit code of a run in which everything possible has run."""
    import torch

    return 0 if torch.cuda.is_available() else 6


@pytest.mark.long
def test_a_suite_runs_without_network_from_a_read_only_checkout(tmp_path: Path, wheels: Path, checkout: Path) -> None:
    probe = subprocess.run([*APART, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"this machine lets nobody make namespaces: {probe.stderr.strip()}")
    code, said = native(wheels, tmp_path / "out", "480", "smoke", apart=checkout)
    assert code == on_gpu(), said
    cells = json.loads((tmp_path / "out" / "smoke" / "matrix.json").read_text(encoding="utf-8"))["cells"]
    assert {cell["status"] for cell in cells if cell["target"] == "cpu"} == {"pass"}, said
    assert {cell["evidence"]["isolation"] for cell in cells if cell["target"] == "cpu"} == {"none"}
    with tarfile.open(tmp_path / "out" / "native.tar.gz") as packed:
        names = packed.getnames()
    assert {"smoke/matrix.duckdb", "smoke/matrix.md", "smoke/summary.md"} <= set(names)
    assert not [name for name in names if "/runs" in name]
    told = (tmp_path / "out" / "not-run.txt").read_text(encoding="utf-8")
    assert "smoke: 9 pass on cpu" in told
    if code:
        assert "smoke: not run on cuda, unavailable: bert float32, bert float16, bert bfloat16, gpt2 float32" in told
        assert ", gpt2 float32 generating 8, gpt2 float16" in told


def test_suites_without_enough_time_are_listed(tmp_path: Path, wheels: Path) -> None:
    code, said = native(wheels, tmp_path / "out", "21")
    assert code == 6, said
    told = (tmp_path / "out" / "not-run.txt").read_text(encoding="utf-8")
    for suite in ("default", "performance"):
        assert f"{suite}: no results: it failed, or there was no time left for it" in told


@pytest.mark.long
def test_a_suite_takes_options_and_its_second_run_a_folder_of_its_own(tmp_path: Path, wheels: Path, checkout: Path) -> None:
    once = "smoke --targets cpu --no-timing --models"
    code, said = native(wheels, tmp_path / "out", "480", f"{once} bert", f"{once} vit", apart=checkout)
    assert code == 6, said  # a GPU was not asked
    for suite, model in (("smoke", "bert"), ("smoke-2", "vit")):
        cells = json.loads((tmp_path / "out" / suite / "matrix.json").read_text(encoding="utf-8"))["cells"]
        assert [(cell["model"], cell["status"]) for cell in cells] == [(model, "pass")], said


@pytest.mark.long
def test_a_suite_that_fails_loses_nothing_of_the_others(tmp_path: Path, wheels: Path, checkout: Path) -> None:
    code, said = native(
        wheels, tmp_path / "out", "480", "smoke --targets cpu --models bert --no-timing", "nothing --targets cpu", apart=checkout
    )
    assert code == 2, said
    assert "suite nothing ended with code 2" in said
    assert "smoke: 1 pass on cpu" in (tmp_path / "out" / "not-run.txt").read_text(encoding="utf-8")
    with tarfile.open(tmp_path / "out" / "native.tar.gz") as packed:
        assert "smoke/matrix.duckdb" in packed.getnames()


def test_missing_packages_are_named_before_anything_runs(tmp_path: Path, wheels: Path) -> None:
    """In an environment whose PyTorch matches no image's constraints, and which has no other packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    packages = tmp_path / "packages"
    packages.mkdir()
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    beside = Path(torch.origin).parents[1]
    for found in (path for path in beside.iterdir() if path.name.partition(".")[0].partition("-")[0].lower() in OF_TORCH):
        (packages / found.name).symlink_to(found)
    for single in ("typing_extensions.py", "six.py"):
        if (beside / single).exists():
            (packages / single).symlink_to(beside / single)
    (tmp_path / "bare" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "machine.pth").write_text(f"{packages}\n")
    code, said = native(wheels, tmp_path / "out", python=str(tmp_path / "bare" / "bin" / "python"), extra={"PYTHONPATH": ""})
    assert code == 2, said
    assert "no wheel of it" in said
    missing = said.splitlines()[-1].rpartition(": ")[2].split()
    assert {"duckdb", "transformers", "tokenizers"} <= set(missing)
    assert "jinja2" not in missing
    assert not (tmp_path / "out" / "default").exists()


def test_the_wheels_are_all_that_hwmatrix_needs_without_an_engine() -> None:
    of_machine = {"numpy", "torch"}
    optional = {"hf-xet"}  # downloads from the hub, of which there are none
    listed = {line for line in (PROJECT / "tests" / "gpu" / "wheels.txt").read_text(encoding="utf-8").splitlines() if line[:1] != "#"}
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [Requirement(line).name for line in project["dependencies"]]
    needed: set[str] = set()
    waiting = [*asked, "huggingface-hub", "jinja2", "nvidia-ml-py", "transformers"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in needed | of_machine | optional:
            continue
        needed.add(name)
        found = map(Requirement, importlib.metadata.requires(name) or [])
        waiting += [each.name for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]
    assert needed <= listed


def test_pytorch_is_never_replaced(tmp_path: Path, wheels: Path) -> None:
    (wheels / "torch-2.11.0-py3-none-any.whl").touch()
    code, said = native(wheels, tmp_path / "out")
    assert code == 2
    assert "remove it" in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "usage"),
        (["WHEELS"], "usage"),
        (["nowhere", "OUT"], "no such folder"),
        (["WHEELS", "OUT", "soon"], "whole number"),
        (["WHEELS", "OUT", "20"], "above 20"),
    ],
)
def test_wrong_arguments_say_how_to_fix_them(tmp_path: Path, wheels: Path, arguments: list[str], told: str) -> None:
    places = {"WHEELS": str(wheels), "OUT": str(tmp_path / "out")}
    code, said = native(*(places.get(word, word) for word in arguments))
    assert code == 2
    assert told in said
