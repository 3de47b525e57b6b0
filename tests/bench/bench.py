"""Measures the harness itself, and writes docs/benchmarks.md. Every number is a ratio or a difference within this run.

Run it with ``nox -s bench`` on an idle machine; the load average is recorded with the numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sections import kept

import hwmatrix
from hwmatrix.basics.clock import utc_now
from hwmatrix.basics.files import write_atomically
from hwmatrix.errors import EngineError
from hwmatrix.hardware.cpu import cpuinfo
from hwmatrix.host import containers, images
from hwmatrix.host.engine import connect
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import RunFacts, Selection, make_plan
from hwmatrix.models.bundle import find_or_build
from hwmatrix.records import CellPlan, Isolation, Limits, MeasureRule, Plan, Stage, Status, to_json
from hwmatrix.runner.cell import execute
from hwmatrix.runner.forked import run_forked
from hwmatrix.runner.job import CellJob
from hwmatrix.runner.parent import preload
from hwmatrix.runner.results import result_of
from hwmatrix.store.merge import merge
from hwmatrix.store.shard import ShardIdentity, ShardWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.records import CellResult

ROOT = Path(__file__).parents[2]
FIXED = MeasureRule(warmup_s=0.0, warmup_iterations=10, min_s=0.0, min_samples=100, max_s=60.0, half_width=1.0)
"""Exactly ten warm-ups and a hundred iterations."""
COLD = """
import sys, time, torch
from transformers import BertForMaskedLM
from safetensors.torch import load_file
torch.set_num_threads(1)
model = BertForMaskedLM.from_pretrained(sys.argv[1], use_safetensors=True).eval()
inputs = load_file(sys.argv[2])
with torch.inference_mode():
    for _ in range(10):
        model(**inputs, use_cache=False)
    for _ in range(100):
        start = time.perf_counter_ns()
        model(**inputs, use_cache=False)
        time.perf_counter_ns() - start
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A row of the table: the name, the value, its goal, whether that is met, and how the value was measured."""

    name: str
    value: str
    goal: str
    met: bool
    how: str


def main() -> int:
    """Measure everything and write the page. Return 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks.md")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="hwmatrix-bench-") as folder:
        work = Path(folder)
        plan = _plan()
        preload(plan.targets[0].backend, list(plan.models))
        findings = [*_cells(plan, work), _container(), *_merging(plan, work)]
    page = _page(findings, load_before)
    write_atomically(arguments.output, page + kept(arguments.output))
    sys.stdout.write(page)
    return 0 if all(finding.met for finding in findings) else 1


def _plan() -> Plan:
    facts = RunFacts(
        run_id="bench",
        created_at=utc_now(),
        command="bench",
        hwmatrix_version=hwmatrix.__version__,
        commit=None,
        isolation=Isolation.NONE,
    )
    return make_plan(load(ROOT / "matrix.yaml"), Selection(suite="smoke", targets=("cpu",), generation=False), facts)


def _run(plan: Plan, cell: CellPlan, rule: MeasureRule, bundle: Path) -> CellResult:
    model, target = plan.model_of(cell), plan.target(cell.target)
    job = CellJob(cell=cell, model=model, target=target, bundle=bundle, rule=rule, tolerances=plan.tolerances)
    end = run_forked(lambda send: execute(job, send), limits=cell.limits)
    result = result_of(end, cell=cell, model=model, target=target, started_at=utc_now())
    if result.status is not Status.PASS:
        raise SystemExit(f"{cell.key}: {result.status}: {result.error}")
    return result


def _cells(plan: Plan, work: Path) -> list[Finding]:
    cells = {cell.model: cell for cell in plan.cells}
    bundles = {name: _find_in_child(plan, cell, work) for name, cell in cells.items()}
    overheads = [_overhead(_run(plan, cell, plan.measure, bundles[name])) for name, cell in cells.items() for _ in range(5)]
    bert, bundle = cells["bert"], bundles["bert"]
    fixed, cold, loops, cell_medians, contended = [], [], [], [], 0
    for _ in range(5):
        fixed.append(_run(plan, bert, FIXED, bundle).wall_ms)
        cold.append(_cold(bundle))
    for _ in range(5):  # one after the other, so that both see the same machine
        loops.append(_loop(bundle))
        result = _run(plan, bert, plan.measure, bundle)
        wall, cpu = statistics.median(result.samples_wall_ns), statistics.median(result.samples_cpu_ns)
        cell_medians.append(wall / 1e6)
        contended += wall > 1.05 * cpu
    overhead, ratio = statistics.median(overheads), statistics.median(cold) / statistics.median(fixed)
    off = statistics.median(cell / loop for cell, loop in zip(cell_medians, loops, strict=True)) - 1
    return [
        Finding(
            name="Harness cost of an isolated cpu cell",
            value=f"{overhead:.1f} ms (median of {len(overheads)})",
            goal="under 40 ms",
            met=overhead < 40,
            how="wall time of the cell minus load, prepare, first inference, warm-up and timing; six tiny models, five times each",
        ),
        Finding(
            name="Isolated cell against a cold process",
            value=f"{ratio:.1f} times less ({statistics.median(fixed):.0f} ms against {statistics.median(cold):.0f} ms)",
            goal="at least 15 times",
            met=ratio >= 15,
            how="tiny bert, 10 warm-ups and 100 iterations, one thread; medians of five each, measured alternately",
        ),
        Finding(
            name="A cell's p50 against an independent tight loop",
            value=f"{off:+.1%} (median of 5 pairs; {contended} of 5 cells flagged contended)",
            goal="within 3 %, or flagged",
            met=abs(off) <= 0.03 or contended > 0,
            how=(
                "tiny bert; the loop's value is the median of 2,000 calls of `model(**inputs)` after 500 warm-ups; "
                "the two are measured one after the other"
            ),
        ),
    ]


def _find_in_child(plan: Plan, cell: CellPlan, cache: Path) -> Path:
    """Build a bundle in a child: the parent must not compute."""

    def work(send: Callable[[dict[str, Any]], None]) -> None:
        send({"path": str(find_or_build(plan.model_of(cell), cache).path)})

    return Path(run_forked(work, limits=cell.limits).messages[0]["path"])


def _overhead(result: CellResult) -> float:
    inference = (result.first_ms or 0) + result.stages[Stage.MEASURE]
    return result.wall_ms - (result.load_ms or 0) - (result.prepare_ms or 0) - inference


def _cold(bundle: Path) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-c", COLD, str(bundle / "model"), str(bundle / "inputs.safetensors")]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    return (time.perf_counter() - start) * 1000


def _loop(bundle: Path) -> float:
    """The median of 2,000 passes after 500 warm-ups, in milliseconds, measured in a child like a cell."""

    def work(send: Callable[[dict[str, Any]], None]) -> None:
        import torch
        from safetensors.torch import load_file
        from transformers import BertForMaskedLM

        torch.set_num_threads(1)
        model = BertForMaskedLM.from_pretrained(bundle / "model").eval()
        inputs = load_file(bundle / "inputs.safetensors")
        passes = []
        with torch.inference_mode():
            for _ in range(2500):
                start = time.perf_counter_ns()
                model(**inputs)
                passes.append(time.perf_counter_ns() - start)
        send({"p50": statistics.median(passes[500:]) / 1e6})

    return float(run_forked(work, limits=Limits(timeout_s=60, memory_mb=4096)).messages[0]["p50"])


def _container() -> Finding:
    """The time to start, run an empty program in and remove a container, minus that of the same program outside."""
    name, goal, how = (
        "What a container adds to a target",
        "under 0.5 s",
        "a container that runs an empty program, minus the same program outside",
    )
    tag = images.image_tag("cpu")
    try:
        engine = connect(dict(os.environ), need_builder=False)
        limits = containers.Limits(memory_mb=512)
        inside, outside = [], []
        for _ in range(7):
            start = time.perf_counter()
            with containers.running(engine, image=tag, entrypoint=("python",), argv=("-c", "pass"), limits=limits) as container:
                container.wait()
            inside.append(time.perf_counter() - start)
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            outside.append(time.perf_counter() - start)
    except EngineError as error:
        return Finding(name=name, value=f"not measured: {error.message}", goal=goal, met=False, how=how)
    added = statistics.median(inside) - statistics.median(outside)
    return Finding(name=name, value=f"{added:.2f} s (median of 7)", goal=goal, met=added < 0.5, how=how)


def _merging(plan: Plan, work: Path) -> list[Finding]:
    run, database = work / "run", work / "merged.duckdb"
    (run / "shards").mkdir(parents=True)
    write_atomically(run / "plan.json", to_json(plan))
    result = _run(plan, plan.cells[0], FIXED, _find_in_child(plan, plan.cells[0], work))
    generator = np.random.default_rng(0)
    for index in range(100):
        walls = generator.integers(300_000, 400_000, 10_000).tolist()
        _shard(run, plan, dataclasses.replace(result, samples_wall_ns=tuple(walls), samples_cpu_ns=tuple(walls)), index)
    start = time.perf_counter()
    first = merge([run], database)
    once = time.perf_counter() - start
    start = time.perf_counter()
    again = merge([run], database)
    twice = time.perf_counter() - start
    if len(first.merged) != 100 or len(again.known) != 100:
        raise SystemExit(f"the merge is wrong: {first} {again}")
    rate = first.rows / once / 1e6
    how = "100 shards with 10,000 samples each (random numbers, because only their count matters)"
    return [
        Finding(name="Merge", value=f"{rate:.2f} M rows/s ({once:.2f} s)", goal="at least 1.5 M rows/s", met=rate >= 1.5, how=how),
        Finding(name="Merging again", value=f"{once / twice:.0f} times faster", goal="at least 3 times", met=once / twice >= 3, how=how),
    ]


def _shard(run: Path, plan: Plan, result: CellResult, index: int) -> None:
    identity = ShardIdentity(
        shard_id=f"bench{index:03}",
        target="cpu",
        image=None,
        image_digest=None,
        host="bench",
        interpreter=platform.python_version(),
        versions={},
        packages={},
        warm_up_ms=None,
    )
    with ShardWriter(run / "shards", plan, identity) as shard:
        shard.add_cell(result, command="bench")
        shard.set_canaries(ok=True, detail=None)
        shard.seal()


def _page(findings: list[Finding], load_before: float) -> str:
    versions = {name: __import__(name).__version__ for name in ("torch", "transformers", "duckdb")}
    rows = "\n".join(f"| {f.name} | {f.value} | {f.goal} | {'yes' if f.met else '**no**'} |" for f in findings)
    methods = "\n".join(f"- **{f.name}**: {f.how}." for f in findings)
    machine = cpuinfo().get("model name", platform.machine())
    return f"""# Benchmarks of the harness

Written by `nox -s bench`. Every number is a ratio or a difference within one run; compare it with its goal, not with other machines.

| What | Measured | Goal | Met |
| --- | --- | --- | --- |
{rows}

{dt.datetime.now(dt.UTC):%Y-%m-%d}, {machine}, {os.cpu_count()} cores, load {load_before:.1f} before and {os.getloadavg()[0]:.1f} after;
Python {platform.python_version()}, {json.dumps(versions)[1:-1].replace('"', "")}.

## How

{methods}
"""


if __name__ == "__main__":
    sys.exit(main())
