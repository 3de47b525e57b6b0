"""Measures whole sweeps of suite `all`, with and without timing, and writes the section `sweep` of docs/benchmarks.md.

Run it with ``nox -s bench_sweep`` on an idle machine; the load average is recorded with the numbers. Every sweep starts with an empty cache
and runs like a user's run. ``--types 40`` runs 40 types, sampled evenly, and writes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import os
import platform
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "bench")]

from sections import put  # noqa: E402 - it lies beside, in no package

from hwmatrix.app.environment import read_environment  # noqa: E402 - as above
from hwmatrix.app.execution import PlannedRun, facts_of, order_of, workshop_of  # noqa: E402 - as above
from hwmatrix.app.selecting import select  # noqa: E402 - as above
from hwmatrix.hardware.cpu import cpuinfo  # noqa: E402 - as above
from hwmatrix.host.execution import run  # noqa: E402 - as above
from hwmatrix.host.executors import choose  # noqa: E402 - as above
from hwmatrix.host.run_folder import RunFolder  # noqa: E402 - as above
from hwmatrix.matrix.load import load  # noqa: E402 - as above
from hwmatrix.matrix.plan import make_plan  # noqa: E402 - as above

if TYPE_CHECKING:
    from types import TracebackType

    from hwmatrix.matrix.load import LoadedMatrix
    from hwmatrix.records import Plan

BUNDLES: Final = "bundles"
_MINUTE: Final = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """The result of one sweep: its wall time and that of its jobs by name, in seconds; verdicts; the parents' memory."""

    timing: bool
    whole: bool
    targets: tuple[str, ...]
    models: int
    wall_s: float
    jobs_s: dict[str, float]
    built: int
    statuses: Counter[str]
    at_once: int
    parents_mb: list[tuple[float, float]]
    load: tuple[float, float]

    @property
    def goal_s(self) -> float | None:
        """The project's goal for a whole sweep, in seconds; None for a part of one."""
        if not self.whole:
            return None
        if self.targets == ("cpu",):
            return 10 * _MINUTE if self.timing else 5 * _MINUTE
        return 60 * _MINUTE if self.targets == ("cpu", "openvino", "onnxruntime") and not self.timing else None


class Recorder:
    """A view that prints one line per job, and records the runner's events."""

    def __init__(self) -> None:
        self.jobs_s: defaultdict[str, float] = defaultdict(float)
        self.statuses: Counter[str] = Counter()
        self.built = 0
        self.at_once = 1
        self.parents_mb: list[tuple[float, float]] = []
        self._begun: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def say(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def detail(self, text: str) -> None:
        """Discard the output of builds."""

    def begin(self, target: str, count: int, noun: str = "cells") -> None:  # noqa: ARG002 - as the protocol has it
        self._begun[target] = time.monotonic()

    def event(self, target: str, event: dict[str, Any]) -> None:  # noqa: ARG002 - as the protocol has it
        if event["event"] == "cell" and event["role"] == "model":
            self.statuses[event["status"]] += 1
        elif event["event"] == "bundle":
            self.built += event["ok"]
        elif event["event"] == "parent":
            self.at_once = event["at_once"]
            self.parents_mb.append((event["begin_mb"], event["end_mb"]))

    def end(self, target: str) -> None:
        took = time.monotonic() - self._begun[target]
        self.jobs_s[target] += took
        self.say(f"{target}: {took:.1f} s")


def main() -> int:
    """Sweep without and with timing (or as requested) and print the section. Write it if the sweeps were whole."""
    arguments = _arguments()
    loaded = load(ROOT / "matrix.yaml")
    sweeps = [_sweep(loaded, arguments, timing=timing) for timing in ((False, True) if arguments.timing is None else (arguments.timing,))]
    section = _section(sweeps, arguments.isolation)
    sys.stdout.write(section)
    if arguments.types is None:
        put(arguments.output, "sweep", section)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", type=int, help="run this many models of the suite, sampled evenly, and write nothing")
    parser.add_argument("--targets", nargs="+", default=["cpu"])
    parser.add_argument("--timing", action=argparse.BooleanOptionalAction, default=None, help="one sweep instead of two")
    parser.add_argument("--isolation", default="auto", choices=["auto", "container", "venv", "none"])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks.md")
    return parser.parse_args()


def _sweep(loaded: LoadedMatrix, arguments: argparse.Namespace, *, timing: bool) -> Sweep:
    recorder = Recorder()
    environment = read_environment()
    with tempfile.TemporaryDirectory(prefix="hwmatrix-sweep-") as folder:
        workshop = workshop_of(loaded, environment, None, recorder)
        executor = choose(arguments.isolation, workshop)
        selection = select(loaded, models=(), targets=arguments.targets, suite="all", timing=timing, cache=workshop.cache_dir)
        plan = make_plan(loaded, selection, facts_of(loaded, executor, environment, workshop.commit))
        plan = plan if arguments.types is None else _some(plan, arguments.types)
        order = order_of(loaded, PlannedRun(folder=RunFolder.create(Path(folder), plan), plan=plan, executor=executor), workshop)
        failed = executor.prepare(list(dict.fromkeys((order.reference, *arguments.targets))))  # not a part of the sweep
        for error in failed.values():
            raise error
        before, begin = os.getloadavg()[0], time.monotonic()
        run(dataclasses.replace(order, cache=Path(folder) / "cache" / "bundles"), recorder).raise_first()
        wall_s = time.monotonic() - begin
    return Sweep(
        timing=timing,
        whole=arguments.types is None,
        targets=tuple(arguments.targets),
        models=len(plan.models),
        wall_s=wall_s,
        jobs_s=dict(recorder.jobs_s),
        built=recorder.built,
        statuses=recorder.statuses,
        at_once=recorder.at_once,
        parents_mb=recorder.parents_mb,
        load=(before, os.getloadavg()[0]),
    )


def _some(plan: Plan, count: int) -> Plan:
    step = max(1, len(plan.models) // count)
    models = plan.models[::step][:count]
    chosen = {(model.name, model.size) for model in models}
    return dataclasses.replace(plan, models=models, cells=tuple(cell for cell in plan.cells if (cell.model, cell.size) in chosen))


def _section(sweeps: list[Sweep], isolation: str) -> str:
    first = sweeps[0]
    lines = [
        f"## A sweep of {first.models} models on {', '.join(first.targets)}",
        "",
        f"Written by `nox -s bench_sweep`: suite `all`, an empty cache, isolation `{isolation}`, images already built.",
        "",
        "| What | Without timing | With timing | Goal |" if len(sweeps) > 1 else "| What | Measured | Goal |",
        "| --- | --- | --- | --- |" if len(sweeps) > 1 else "| --- | --- | --- |",
    ]
    rows: list[tuple[str, list[str], str]] = [
        ("Start to end", [_minutes(sweep.wall_s) for sweep in sweeps], " / ".join(filter(None, map(_goal, sweeps)))),
        ("Bundles and exports", [_minutes(sweep.jobs_s[BUNDLES]) for sweep in sweeps], ""),
        *((f"Cells on {target}", [_minutes(sweep.jobs_s.get(target)) for sweep in sweeps], "") for target in first.targets),
        ("Cells per minute, start to end", [f"{sum(sweep.statuses.values()) / sweep.wall_s * _MINUTE:.0f}" for sweep in sweeps], ""),
        ("Parallel cells", [str(sweep.at_once) for sweep in sweeps], ""),
        ("Models that could be built", [f"{sweep.built - _canaries(sweep)} of {sweep.models}" for sweep in sweeps], ""),
        ("Verdicts", [", ".join(f"{count} {status}" for status, count in sweep.statuses.most_common()) for sweep in sweeps], ""),
        ("Largest growth of a parent's memory over its cells", [_growth(sweep) for sweep in sweeps], "flat"),
    ]
    lines += [f"| {what} | {' | '.join(values)} | {goal} |" for what, values, goal in rows]
    loads = "; ".join(f"load {sweep.load[0]:.1f} before and {sweep.load[1]:.1f} after" for sweep in sweeps)
    cores = len(os.sched_getaffinity(0))
    lines += ["", f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {cpuinfo().get('model name', platform.machine())}, {cores} cores; {loads}."]
    return "\n".join(lines) + "\n"


def _canaries(sweep: Sweep) -> int:
    """The number of canaries: each bundle job counts two, and each wave has one bundle job, and one parent per target."""
    return 2 * (len(sweep.parents_mb) // len(sweep.targets))


def _goal(sweep: Sweep) -> str:
    if sweep.goal_s is None:
        return ""
    return f"under {sweep.goal_s / _MINUTE:.0f} min: {'yes' if sweep.wall_s < sweep.goal_s else 'no'}"


def _minutes(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds / _MINUTE:.1f} min" if seconds >= _MINUTE else f"{seconds:.0f} s"


def _growth(sweep: Sweep) -> str:
    if not sweep.parents_mb:
        return ""
    begin, end = max(sweep.parents_mb, key=lambda pair: pair[1] - pair[0])
    return f"{end - begin:+.1f} MiB ({begin:.0f} to {end:.0f})"


if __name__ == "__main__":
    sys.exit(main())
