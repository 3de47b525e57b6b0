"""Measures how much more a local cluster of several workers does than one worker on one core: cells a minute, without timing.

    python tests/bench/cluster_throughput.py --types 300 --workers 4

The same types of transformers run on cpu with one worker on one core, then with several workers on all cores, each with an empty cache,
from start to end. The verdicts of both runs are compared cell by cell. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MINUTE = 60.0


def main() -> int:
    """Run both and print the ratio.

    Returns:
        0 if the verdicts are the same, 1 if not.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", type=int, default=300, help="how many types, sampled evenly")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--isolation", default="container", choices=("container", "venv", "none"))
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    types = sampled(asked.types)
    with tempfile.TemporaryDirectory(prefix="hwmatrix-bench-", dir=Path.home()) as folder:
        one_s, one = timed(Path(folder) / "one", types, asked.isolation, workers=1, cores=cores[:1])
        told("1 worker on 1 core", one_s, one)
        several_s, several = timed(Path(folder) / "several", types, asked.isolation, workers=asked.workers, cores=cores)
        told(f"{asked.workers} workers on {len(cores)} cores", several_s, several)
    say(f"throughput: {one_s / several_s:.2f} times")
    different = sorted(cell for cell in one.keys() | several.keys() if one.get(cell) != several.get(cell))
    for cell in different:
        say(f"different: {cell}: {one.get(cell)}, {several.get(cell)}")
    return int(bool(different))


def sampled(count: int) -> list[str]:
    """Types of transformers that can be built, evenly from the list of all."""
    listed = json.loads(hwmatrix("types", "--format", "json").stdout)["types"]
    names = [each["name"] for each in listed if each["status"] == "pass"]
    return names[:: max(1, len(names) // count)][:count]


def timed(folder: Path, types: list[str], isolation: str, *, workers: int, cores: list[int]) -> tuple[float, dict[str, str]]:
    """The seconds from start to end of a run with this number of workers on these cores, and the status of each cell."""
    output = folder / "reports"
    asked = ["--models", *types, "--targets", "cpu", "--no-timing", "--no-generation", "--no-adapt", "--isolation", isolation]
    begin = time.monotonic()
    hwmatrix(
        "matrix", *asked, "--engine", "cluster", "--local", str(workers), "--output-dir", str(output), cache=folder / "cache", cores=cores
    )
    took_s = time.monotonic() - begin
    cells = json.loads((output / "matrix.json").read_text(encoding="utf-8"))["cells"]
    return took_s, {f"{cell['model']} on {cell['target']}": cell["status"] for cell in cells}


def hwmatrix(*arguments: str, cache: Path | None = None, cores: list[int] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of this checkout, with its own cache and on these cores.

    Raises:
        subprocess.CalledProcessError: it fails.
    """
    environment: dict[str, Any] = os.environ | {"PYTHONPATH": str(ROOT / "harness")}
    if cache is not None:
        environment["HWMATRIX_CACHE"] = str(cache)
    pinned = ["taskset", "--cpu-list", ",".join(map(str, cores))] if cores else []
    command = [*pinned, sys.executable, "-m", "hwmatrix", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)


def told(what: str, seconds: float, cells: dict[str, str]) -> None:
    """Print the result of a run."""
    passed = sum(status == "pass" for status in cells.values())
    say(f"{what}: {seconds:.0f} s, {len(cells)} cells, {passed} pass, {len(cells) / seconds * MINUTE:.0f} cells a minute")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
