"""Repeats a small matrix for hours, and watches whether anything grows: memory, open files, disk, containers, processes.

    python tests/bench/soak.py --hours 3 --models bert gpt2 vit --targets cpu openvino onnxruntime

Two things live as long as the soak: a worker and a scheduler of a cluster, which run every second matrix, and the container engine. Every
run uses the same cache and the same output folder. A line of JSON tells what was there after each run; the last one compares the last third
of the runs with the first: what grew by more than a tenth is named, and so is every cell whose status was not always the same.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
HWMATRIX = (sys.executable, "-m", "hwmatrix.cli.main")
ENGINES = ("dockerd", "containerd")
GROWN = 1.1
"""The ratio of the last third's median to the first third's above which something has grown."""
SLACK = {"memory_mb": 20.0, "files": 5.0, "temporary": 0.0, "containers": 0.0, "processes": 0.0, "cache_mb": 1.0}
"""How much each may grow without being named: a garbage collector and a database's log are never quite flat."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--isolation", choices=("container", "venv"), default="container")
    parser.add_argument("--models", nargs="+", default=["bert", "gpt2", "vit"])
    parser.add_argument("--targets", nargs="+", default=["cpu", "openvino", "onnxruntime"])
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.hours * 3600
    seen: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        lab = Lab(Path(name))
        try:
            while time.monotonic() < until:
                seen.append(lab.run(arguments, number=len(seen)))
                tell(seen[-1])
        finally:
            lab.end()
    found = compared(seen)
    tell(found)
    return 1 if found["grown"] or found["changed"] or found["failed"] else 0


def tell(found: dict[str, Any]) -> None:
    """Print a line of JSON at once."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


class Lab:
    """A cluster of one worker that lives as long as the soak, and the folders of all runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        self._environment = os.environ | {"PYTHONPATH": str(ROOT / "harness"), "TMPDIR": str(self._temporary)}
        self._environment["HWMATRIX_CACHE"] = str(folder / "cache")
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            self._port = str(listening.getsockname()[1])
        self._keys = ("--keys", str(folder / "keys"))
        self._call("cluster", "keys", str(folder / "keys"))
        self._living = [self._start("cluster", "scheduler", "--host", "127.0.0.1", "--port", self._port, *self._keys)]
        time.sleep(5)
        self._living.append(self._start("cluster", "worker", f"tls://127.0.0.1:{self._port}", "--name", "soak", *self._keys))
        time.sleep(5)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        log = (self._folder / f"{command[1]}.log").open("wb")
        return subprocess.Popen([*HWMATRIX, *command], env=self._environment, stdout=log, stderr=log, start_new_session=True)

    def _call(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*HWMATRIX, *command], env=self._environment, capture_output=True, text=True, check=False)

    def run(self, arguments: argparse.Namespace, *, number: int) -> dict[str, Any]:
        """One run of the matrix, every second one on the cluster, and what is there when it has ended."""
        cluster = ("--engine", "cluster", "--scheduler", f"tls://127.0.0.1:{self._port}", *self._keys) if number % 2 else ()
        output = self._folder / ("cluster" if cluster else "here")
        chosen = ("--models", *arguments.models, "--targets", *arguments.targets, "--isolation", arguments.isolation)
        begin = time.monotonic()
        done = self._call("matrix", "--matrix", str(ROOT / "matrix.yaml"), *cluster, *chosen, "--no-timing", "--output-dir", str(output))
        seconds = time.monotonic() - begin
        report = output / "matrix.json"
        cells = json.loads(report.read_text(encoding="utf-8"))["cells"] if report.exists() else []
        keys = ("model", "target", "settings")
        statuses = {"/".join(str(cell[key]) for key in keys): cell["status"] for cell in cells}
        for old in sorted((output / "runs").glob("*"))[:-1]:
            shutil.rmtree(old)  # each run is new; its folder stays until its owner deletes it
        found = {"run": number + 1, "on": "cluster" if cluster else "here", "code": done.returncode, "seconds": round(seconds, 1)}
        if done.returncode:
            found["said"] = done.stderr[-1500:]
        return found | self._there() | {"statuses": statuses}

    def _there(self) -> dict[str, Any]:
        """What lives and lies about now."""
        time.sleep(2)
        mine = [child for living in self._living for child in family(living.pid)]
        engines = [each for each in psutil.process_iter(["name"]) if each.info["name"] in ENGINES]
        docker = shutil.which("docker")
        listed = subprocess.run([docker or "false", "ps", "--all", "--quiet"], capture_output=True, text=True, check=False).stdout.split()
        return {
            "memory_mb": round(sum(each.memory_info().rss for each in mine) / 2**20, 1),
            "files": sum(each.num_fds() for each in mine),
            "engine_mb": round(sum(each.memory_info().rss for each in engines) / 2**20, 1),
            "engine_files": sum(each.num_fds() for each in engines),
            "processes": len(mine),
            "containers": len(listed),
            "temporary": sum(1 for _ in self._temporary.rglob("*")),
            "cache_mb": round(size_of(self._folder / "cache") / 2**20, 1),
        }

    def end(self) -> None:
        """End the cluster."""
        for living in reversed(self._living):
            living.send_signal(signal.SIGINT)
            try:
                living.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(living.pid, signal.SIGKILL)


def family(pid: int) -> list[psutil.Process]:
    """A process and its descendants."""
    try:
        own = psutil.Process(pid)
        return [own, *own.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def compared(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """What grew from the first third of the runs to the last, what did not always end the same way, and what failed."""
    third = max(1, len(seen) // 3)
    grown = {}
    for name in ("memory_mb", "files", "engine_mb", "engine_files", "processes", "containers", "temporary", "cache_mb"):
        first, last = (statistics.median(each[name] for each in part) for part in (seen[1 : 1 + third], seen[-third:]))
        if last > first * GROWN and last - first > SLACK.get(name, 20.0):
            grown[name] = [first, last]
    by_cell: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for each in seen:
        for cell, status in each["statuses"].items():
            by_cell[cell][status] += 1
    changed = {cell: dict(counted) for cell, counted in by_cell.items() if len(counted) > 1}
    failed = [each["run"] for each in seen if each["code"]]
    return {"runs": len(seen), "cells": len(by_cell), "grown": grown, "changed": changed, "failed": failed}


if __name__ == "__main__":
    sys.exit(main())
