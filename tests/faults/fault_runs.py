"""Plans of models that misbehave, and the real runner on them in processes of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import psutil

import hwmatrix
from hwmatrix.basics.clock import utc_now
from hwmatrix.matrix.load import load
from hwmatrix.matrix.spec import TargetSpec
from hwmatrix.records import (
    CellPlan,
    Dtype,
    Execution,
    Family,
    Isolation,
    Limits,
    MeasureRule,
    ModelPlan,
    Plan,
    Settings,
    Size,
    TargetPlan,
    Tolerance,
    plan_from_json,
    to_json,
)
from hwmatrix.records.backends import descriptor_of
from hwmatrix.runner.bundles import BundleOrder, all_cached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.matrix.spec import MatrixSpec

# As strings: hwmatrix_faults itself imports torch, which is not for whoever only plans.
ARCHITECTURE: Final = "hwmatrix-fault"
MODEL_CLASS: Final = "HwmatrixFaultModel"
ARMED: Final = {"HWMATRIX_FAULTS": "armed"}
MARK: Final = "HWMATRIX_FAULT_RUN"
"""A variable of the environment by which every process that a run has started can be told."""
PROJECT: Final = Path(__file__).resolve().parents[2]
FAULTS: Final = Path(__file__).resolve().parent
RULE: Final = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.0, min_samples=6, max_s=0.2)

MEASURE: Final = "measure: {{warmup_s: 0.0, warmup_iterations: 1, min_s: {s}, min_samples: 1, max_s: {s}, half_width: 0.5}}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One cell of a test: a model's name, what goes wrong with it and where, and when it is ended."""

    name: str
    fault: str = "none"
    place: str = "forward"
    timeout_s: float = 60.0
    memory_mb: int = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """A plan's folder with what the runner reads and writes."""

    plan: Path
    cache: Path
    shards: Path


def untrained(*but: str) -> str:
    """matrix.yaml with random weights, for tests of anything but training: most models take seconds, mamba 40. ``but``: these are."""
    blocks = re.split(r"(?m)^(?=  \S+:$)", (PROJECT / "matrix.yaml").read_text(encoding="utf-8"))
    assert sum("weights: trained" in block for block in blocks) >= 10
    kept = tuple(f"  {name}:\n" for name in but)
    return "".join(block if block.startswith(kept) else block.replace("weights: trained", "weights: recipe") for block in blocks)


def untrained_spec(*but: str) -> MatrixSpec:
    """The same, loaded."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "matrix.yaml"
        file.write_text(untrained(*but), encoding="utf-8")
        return load(file).spec


def briefly_timed(text: str, *, seconds: float = 1.0) -> str:
    """The text of a matrix.yaml, with cells that are timed for so long, on a busy machine too: tests that interrupt a run need cells of a
    known length, and tests of anything but measuring short ones.
    """
    timed = re.sub(r"^measure: .*$", MEASURE.format(s=seconds), text, count=1, flags=re.MULTILINE)
    assert timed != text
    return timed


def make_plan(cases: Sequence[Case], *, backend: str, isolation: Isolation = Isolation.NONE) -> Plan:
    """A plan of one target (options as in matrix.yaml) and one tiny model a case."""
    spec = load(PROJECT / "matrix.yaml").spec
    listed = (item for item in spec.targets.items() if item[1].backend == backend)
    name, target = next(listed, (backend, TargetSpec(backend=backend, image=descriptor_of(backend).image)))
    settings = Settings(dtype=Dtype.FLOAT32, batch=1, sequence_length=16, threads=1)
    return Plan(
        run_id="faults",
        created_at=utc_now(),
        command="a test",
        hwmatrix_version=hwmatrix.__version__,
        matrix_sha256="0" * 64,
        commit=None,
        isolation=isolation,
        measure=RULE,
        tolerances={dtype: Tolerance(relative_error=each.relative_error, reason=each.reason) for dtype, each in spec.tolerances.items()},
        targets=(TargetPlan(name=name, backend=backend, execution=Execution.HARDWARE, image=name, options=dict(target.options)),),
        models=tuple(_model(case) for case in cases),
        cells=tuple(
            CellPlan(
                key=case.name,
                model=case.name,
                size=Size.TINY,
                target=name,
                settings=settings,
                limits=_limits(case),
            )
            for case in cases
        ),
    )


def _limits(case: Case) -> Limits:
    return Limits(timeout_s=case.timeout_s, memory_mb=case.memory_mb)


def _model(case: Case) -> ModelPlan:
    return ModelPlan(
        name=case.name,
        size=Size.TINY,
        family=Family.EMBEDDING,
        architecture=ARCHITECTURE,
        model_class=MODEL_CLASS,
        config={"fault": case.fault, "place": case.place},
        limits=_limits(case),
    )


def write_order(folder: Path, plan: Plan, *, cache: Path | None = None) -> Order:
    """Lay a plan down as the host does. Bundles go to a cache of its own, or to one that others use, too."""
    for name in ("bundles", "shards"):
        (folder / name).mkdir(parents=True)
    cache = cache or folder / "cache"
    cache.mkdir(exist_ok=True)
    (folder / "plan.json").write_text(to_json(plan), encoding="utf-8")
    return Order(plan=folder / "plan.json", cache=cache, shards=folder / "shards")


def run(work: str, order: Order, *arguments: str, armed: bool, timeout_s: float = 300.0) -> list[dict[str, Any]]:
    """Run the runner here, in a process of its own; give its events. It must end with 0."""
    out = order.plan.parent / "bundles" if work == "bundles" else order.shards
    plan = plan_from_json(order.plan.read_bytes(), where=str(order.plan))
    cached = work == "bundles" and all_cached(BundleOrder(plan=plan, cache=order.cache, out=out))
    module = "hwmatrix.runner" if cached else "hwmatrix_faults"  # nothing is built: then no models are needed, whose import takes longest
    command = [sys.executable, "-m", module, work, "--plan", str(order.plan), "--cache", str(order.cache), "--out", str(out)]
    done = subprocess.run(
        [*command, *arguments],
        env=environment(armed=armed) | {MARK: str(order.plan)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"event"')]


def still_running(order: Order) -> list[str]:
    """The processes of a run that are alive."""
    return [line for process in psutil.process_iter() if (line := _told(process, str(order.plan))) is not None]


def _told(process: psutil.Process, mark: str) -> str | None:
    try:
        return " ".join(process.cmdline()) if process.environ().get(MARK) == mark else None
    except psutil.Error:  # it has just ended, or is somebody else's
        return None


def environment(*, armed: bool) -> dict[str, str]:
    """The environment of a child that finds hwmatrix and the faults."""
    paths = [str(PROJECT / "harness"), str(FAULTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", **(ARMED if armed else {})}


def rows(shard: Path, query: str, *parameters: str) -> list[dict[str, Any]]:
    """A query's rows as dictionaries."""
    with duckdb.connect(str(shard), read_only=True) as connection:
        found = connection.execute(query, list(parameters))
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
