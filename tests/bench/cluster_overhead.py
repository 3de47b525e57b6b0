"""Measures what a cluster adds to each cell: many cells that execute nothing, with real plans, parts, shards and archives.

    PYTHONPATH=tests/unit python tests/bench/cluster_overhead.py --cells 10000 --workers 4

Scheduler, workers and client are threads of one process, and an executor that writes a passed result for each cell takes the place of
containers. The same executor writes the same cells without a cluster first, so that the difference is what the cluster costs.
"""

from __future__ import annotations

import argparse
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
from hwmatrix.host.executors import Job
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.matrix.load import load
from hwmatrix.matrix.shipped import MATRIX_FILE, shipped_root

if TYPE_CHECKING:
    from hwmatrix.records import Plan

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
        bare_s = without_cluster(plan, Path(name) / "bare")
        cluster_s, finished = on_cluster(plan, loaded, Path(name) / "out", arguments.workers)
    found = {
        "cells": len(plan.cells),
        "finished": finished,
        "workers": arguments.workers,
        "without_cluster_ms_per_cell": round(bare_s / len(plan.cells) * 1000, 2),
        "cluster_ms_per_cell": round(cluster_s / len(plan.cells) * 1000, 2),
        "added_ms_per_cell": round((cluster_s - bare_s) / len(plan.cells) * 1000, 2),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if finished == len(plan.cells) else 1


def without_cluster(plan: Plan, output: Path) -> float:
    """The seconds that the executor alone takes, one target after the other."""
    folder = RunFolder.create(output, plan)
    begin = time.perf_counter()
    for target in TARGETS:
        folder.write_cells(target, [cell.key for cell in plan.cells if cell.target == target])
        job = Job(work="run", target=target, plan_dir=folder.path, out=folder.shards, cache=output)
        assert FakeExecutor().run(job, lambda _: None).code == 0
    return time.perf_counter() - begin


def on_cluster(plan: Plan, loaded: Any, output: Path, workers: int) -> tuple[float, int]:
    """The seconds from the start of the run until all shards are there, and how many cells have a verdict."""
    resources = {"hwmatrix-turn": 1, "hwmatrix-memory-mb": 8192, f"hwmatrix-code-{offers.code_digest()}": 1}
    resources |= {f"hwmatrix-target-{target}": 1 for target in TARGETS}
    options = {"processes": False, "host": "127.0.0.1", "protocol": "tcp://", "dashboard_address": "127.0.0.1:0", "resources": resources}
    executor = FakeExecutor()

    def pack(whole: Plan, archive: Path, *_: Any, **__: Any) -> int:
        archive.write_bytes(b"bundles")
        return len(whole.models)

    def unpack(_archive: Path, _folder: RunFolder, whole: Plan, _cache: Path, **__: Any) -> frozenset[Any]:
        return frozenset(model.key for model in whole.models)

    with (
        mock.patch.object(cluster_member, "pack_bundles", pack),
        mock.patch.object(cluster_member, "choose", return_value=executor),
        mock.patch.object(executing.bundle_archive, "unpack", unpack),
        mock.patch.object(cluster, "merge_and_report", return_value=None),
        LocalCluster(n_workers=workers, threads_per_worker=1, **options) as members,
        Client(members, set_as_default=False) as client,
    ):
        view = PlainView(Console(file=io.StringIO(), width=300), verbose=False)
        workshop = workshop_of(loaded, read_environment(), None, view)
        folder = RunFolder.create(output, plan)
        begin = time.perf_counter()
        cluster.run_on(client, loaded, folder, plan, output=output, workshop=workshop, view=view)
        return time.perf_counter() - begin, len(folder.finished())


if __name__ == "__main__":
    sys.exit(main())
