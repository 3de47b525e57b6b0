"""Measures the memory of full-size models: runs the matrices of memory.yaml in containers, one after the other.

``nox -s calibrate`` runs this, then ``requirements.py``. It takes hours and about 30 GB of disk. Finished matrices are not run again, so an
interrupted run continues; remove the work folder to start over.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
WORK: Final = ROOT / ".hwmatrix" / "memory"
DATABASE: Final = "matrix.duckdb"
_CHUNK: Final = 5
"""The number of models per matrix. Bundles stay on disk until the matrix is done, and take several gigabytes each with ONNX exports."""
_SUITE: Final = "memory"


def main() -> int:
    """Run the missing matrices, then merge all into one database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose harness and images are used")
    parser.add_argument("--work", type=Path, default=WORK, help="where runs and their caches lie")
    parser.add_argument("--only", nargs="*", default=(), help="names of runs in memory.yaml")
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    listed = yaml.safe_load((ROOT / "tests" / "bench" / "memory.yaml").read_text(encoding="utf-8"))
    matrix = yaml.safe_load((arguments.root / "matrix.yaml").read_text(encoding="utf-8"))
    for name, content in matrices(listed, matrix):
        if not arguments.only or name.rpartition("-")[0] in arguments.only:
            _run(name, content, arguments.root, work)
    folders = sorted(plan.parent for plan in (work / "out").glob("*/runs/*/plan.json"))
    database = work / DATABASE
    database.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "hwmatrix", "merge", *map(str, folders), "--database", str(database)], check=True)
    return 0


def matrices(listed: dict[str, Any], matrix: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every matrix to run, with its name: each run of memory.yaml, split into parts of a few models."""
    for run in listed["runs"]:
        models = [model for group in run["groups"] for model in listed["groups"][group]]
        for number, part in enumerate(_batched(models), start=1):
            yield f"{run['name']}-{number}", _matrix(run, part, listed, matrix)


def _batched(models: list[str]) -> Iterator[tuple[str, ...]]:
    """``itertools.batched``, which Python 3.11 lacks."""
    return (tuple(models[begin : begin + _CHUNK]) for begin in range(0, len(models), _CHUNK))


def _matrix(run: dict[str, Any], names: tuple[str, ...], listed: dict[str, Any], matrix: dict[str, Any]) -> dict[str, Any]:
    models = {}
    for name in names:
        model = dict(listed["models"].get(name) or matrix["models"][name])
        full = dict(model.get("full") or {})
        length = min(run["sequence_length"], listed["longest"].get(name, run["sequence_length"]))
        models[name] = model | {"full": full | {"batch": run["batch"], "sequence_length": length}}
    return matrix | {
        "sizes": dict.fromkeys(("tiny", "full"), listed["limits"]),
        "measure": listed["measure"],
        "targets": {name: listed["targets"][name] | {"dtypes": dtypes} for name, dtypes in run["targets"].items()},
        "models": models,
        "suites": {_SUITE: {"size": "full", "models": "all"}},
    }


def _run(name: str, content: dict[str, Any], root: Path, work: Path) -> None:
    """Run one matrix unless it is done, then remove its bundles, which are large and can be rebuilt."""
    output = work / "out" / name
    if (output / "matrix.json").is_file():
        return
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    file = root / f".memory-{os.getpid()}.yaml"  # beside matrix.yaml, because the folder of a matrix file is the project's
    cache = work / "cache"
    command = [sys.executable, "-m", "hwmatrix", "matrix", "--matrix", str(file), "--suite", _SUITE, "--output-dir", str(output)]
    try:
        file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        environment = {**os.environ, "HWMATRIX_CACHE": str(cache), "PYTHONPATH": str(root / "harness")}
        subprocess.run([*command, "--workers", "1", "--isolation", "container"], check=True, env=environment, cwd=root)
    finally:
        file.unlink(missing_ok=True)
        shutil.rmtree(cache / "bundles", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
