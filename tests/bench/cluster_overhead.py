"""Measures what a cluster adds to each cell: many cells that execute nothing, with real plans, parts, shards and archives.

    PYTHONPATH=tests/unit python tests/bench/cluster_overhead.py --cells 10000 --workers 4

Each worker is a process, scheduler and client are in this one. An executor that writes a passed result for each cell takes the place of
containers. The CPU time of all processes without that of the executor, which a run without a cluster takes too, is what the cluster adds.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import factory_plans as make
import psutil
from distributed import Client, LocalCluster
from fake_executor import FakeExecutor
from rich.console import Console

from hwmatrix.app import cluster, cluster_member
from hwmatrix.app import execution as executing
from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import workshop_of
from hwmatrix.basics.cache_folder import CACHE_VARIABLE
from hwmatrix.host.cluster import offers
from hwmatrix.host.console import PlainView
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.matrix.load import load
from hwmatrix.matrix.shipped import MATRIX_FILE, shipped_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hwmatrix.host.executors import Job
    from hwmatrix.records import Plan


@dataclasses.dataclass
class Cost:
    """What a run took, in seconds: wall time, CPU time of all processes, and what of it the executor took."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    executing_s: float = 0.0


TARGETS = ("cpu", "openvino", "onnxruntime", "qnn")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ[CACHE_VARIABLE] = str(Path(name) / "cache")
        loaded = load(shipped_root() / MATRIX_FILE)
        models = tuple(f"m{number}" for number in range(arguments.cells // len(TARGETS)))
        plan = make.plan(models=models, targets=TARGETS, matrix_sha256=loaded.sha256, timing=False)
        cost, finished = on_cluster(plan, loaded, Path(name) / "out", arguments.workers)
    found = {
        "cells": len(plan.cells),
        "finished": finished,
        "workers": arguments.workers,
        "wall_ms_per_cell": round(cost.wall_s / len(plan.cells) * 1000, 2),
        "cpu_ms_per_cell_of_executing_nothing": round(cost.executing_s / len(plan.cells) * 1000, 2),
        "cpu_ms_per_cell_added": round((cost.cpu_s - cost.executing_s) / len(plan.cells) * 1000, 2),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if finished == len(plan.cells) else 1


def on_cluster(plan: Plan, loaded: Any, output: Path, workers: int) -> tuple[Cost, int]:
    """What it takes from the start of the run until all shards are there, and how many cells have a verdict."""
    resources = {"hwmatrix-turn": 1, "hwmatrix-memory-mb": 8192, f"hwmatrix-code-{offers.code_digest()}": 1}
    resources |= {f"hwmatrix-target-{target}": 1 for target in TARGETS}
    options = {"host": "127.0.0.1", "protocol": "tcp://", "dashboard_address": "127.0.0.1:0", "resources": resources}
    with (
        mock.patch.object(executing.bundle_archive, "unpack", bundles_there),
        mock.patch.object(cluster, "merge_and_report", return_value=None),
        LocalCluster(n_workers=workers, threads_per_worker=1, **options) as members,
        Client(members, set_as_default=False) as client,
    ):
        client.run(without_containers)
        view = PlainView(Console(file=io.StringIO(), width=300), verbose=False)
        workshop = workshop_of(loaded, read_environment(), None, view)
        folder = RunFolder.create(output, plan)
        with measured(psutil.Process().children(recursive=True)) as cost:
            cluster.run_on(client, loaded, folder, plan, output=output, workshop=workshop, view=view)
        cost.executing_s = sum(client.run(executing_s).values())
        return cost, len(folder.finished())


def executing_s() -> float:
    """What the executor took in this process."""
    return float(FakeExecutor.executing_s)  # type: ignore[attr-defined] - see without_containers


def without_containers() -> None:
    """Make a worker's process execute nothing, and add up the time that this takes: each cell passes, and there are no bundles."""
    run = FakeExecutor.run

    def timed(self: FakeExecutor, job: Job, on_line: Any) -> Any:
        begin = time.thread_time()
        try:
            return run(self, job, on_line)
        finally:
            FakeExecutor.executing_s += time.thread_time() - begin  # type: ignore[attr-defined]

    FakeExecutor.executing_s = 0.0  # type: ignore[attr-defined]
    FakeExecutor.run = timed  # type: ignore[method-assign]
    cluster_member.pack_bundles = no_bundles  # type: ignore[assignment]
    cluster_member.choose = lambda *_, **__: FakeExecutor()  # type: ignore[assignment,return-value]
    executing.bundle_archive.unpack = bundles_there  # type: ignore[assignment]


def no_bundles(whole: Plan, archive: Path, *_: Any, **__: Any) -> int:
    """Write an archive in the place of bundles."""
    archive.write_bytes(b"bundles")
    return len(whole.models)


def bundles_there(_archive: Path, _folder: RunFolder, whole: Plan, _cache: Path, **__: Any) -> frozenset[Any]:
    """The models whose bundles are there: all."""
    return frozenset(model.key for model in whole.models)


@contextlib.contextmanager
def measured(others: Sequence[psutil.Process]) -> Iterator[Cost]:
    """Fill a cost with the wall time of the block, and the CPU time of this process and of others in it."""
    processes = [psutil.Process(), *others]
    cost = Cost()
    cpu_s, begin = cpu_of(processes), time.perf_counter()
    yield cost
    cost.wall_s, cost.cpu_s = time.perf_counter() - begin, cpu_of(processes) - cpu_s


def cpu_of(processes: Sequence[psutil.Process]) -> float:
    """The CPU seconds that these processes have used."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


if __name__ == "__main__":
    sys.exit(main())
