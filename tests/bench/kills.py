"""Kills a part of a run at a random moment, lets the run end, continues it, and counts what was lost, run twice or left behind.

    python tests/bench/kills.py --times 70 --isolation venv --models bert gpt2 --targets cpu onnxruntime
    python tests/bench/kills.py --times 20 --engine cluster

A run that nobody kills comes first: it fills the cache, and the moments of the kills lie between the start and the end of the next one.
Each case is a new run. Its victim is the run's own process, all that it started, or one process or container of these; in a cluster, the
run's process or one of its workers. Each line of the output is a case; the last line is the sum. ``lost`` counts cells without a verdict in
the end; ``twice`` finished cells (the run had printed them) that ran again, and those with two verdicts; ``left`` what is still there after
the first two seconds of the next command, and after the end.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime as dt
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import duckdb
import psutil

from hwmatrix.basics.cache_folder import needed_cache_folder

ROOT = Path(__file__).resolve().parents[2]
SETTLED = "SELECT cell_key, cells.started_at FROM cells JOIN shards USING (shard_id) WHERE role = 'model' AND status <> 'infra_error'"
TOLD = re.compile(rb"^  \[\d+/\d+\] (?!infra_error)\S+ +(\S+/\S+)$", re.MULTILINE)
"""A finished cell on the output of a run."""
ENDS_WITHIN_S = 2.0
"""When what was started must have ended: after so many seconds of the next command's own CPU time, since a busy machine may give it
none for a while; and after the end of the last run, in seconds."""
MOST_RUNS = 3
"""How many runs a case has: the killed one, and those that continue it while a cell has no verdict."""
MARK = "HWMATRIX_BENCH_KILLS"
"""The environment variable by which the processes of a case are found, whatever else runs on this machine."""
DOCKER = shutil.which("docker") or ""
VICTIMS = {"here": ("run", "everything", "process", "container"), "cluster": ("run", "everything", "worker")}


@dataclasses.dataclass
class Runs:
    """The runs of a case, in one output folder."""

    command: list[str]
    output: Path
    mark: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    pids: list[int] = dataclasses.field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a run; its output goes to a file of its own."""
        environment = os.environ | {"PYTHONPATH": str(ROOT / "harness"), MARK: self.mark}
        with self.told_by(len(self.pids)).open("wb") as log:
            command = [*self.command, "--output-dir", str(self.output), *arguments]
            run = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.pids.append(run.pid)
        return run

    def told_by(self, number: int) -> Path:
        """The file with the output of a run of this case."""
        return self.output / f"output-{number}.txt"

    def processes(self) -> list[psutil.Process]:
        """The processes of this case that are alive. Those inside a container are not among them."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def containers(self) -> list[str]:
        """The ids of the containers of this case that run."""
        filters = [part for pid in self.pids for part in ("--filter", f"name=-{pid}-")]
        command = [DOCKER, "ps", "--all", "--quiet", "--filter", "label=hwmatrix=1", *filters]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split() if DOCKER else []

    def kill(self, run: subprocess.Popen[bytes], victim: str, chance: random.Random) -> bool:
        """Kill with SIGKILL. Return whether there was something to kill."""
        if run.poll() is not None:
            return False
        others = [process for process in self.processes() if process.pid != run.pid]
        if victim == "container":
            containers = self.containers()
            if containers:
                subprocess.run([DOCKER, "kill", chance.choice(containers)], capture_output=True, check=False)
            return bool(containers)
        if victim == "worker":
            others = [process for process in others if "spawn_main" in " ".join(process.cmdline())]
        killed = {
            "run": [psutil.Process(run.pid)],
            "everything": [psutil.Process(run.pid), *others],
        }.get(victim) or ([chance.choice(others)] if others else [])
        for process in killed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return bool(killed)

    def left(self) -> int:
        """How many processes, containers and folders of workers there are."""
        cache = needed_cache_folder(os.environ)
        return len(self.processes()) + len(self.containers()) + len(list(cache.glob("cluster/*/worker-*/")))

    def planned(self) -> set[str]:
        """The keys of the cells that were planned."""
        return {cell["key"] for plan in (self.output / "runs").glob("*/plan.json") for cell in json.loads(plan.read_text())["cells"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("here", "cluster"), default="here")
    parser.add_argument("--isolation", choices=("container", "venv", "none"), default="container")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="+", default=["bert", "vit", "gpt2"])
    parser.add_argument("--targets", nargs="+", default=["cpu", "onnxruntime"])
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)  # noqa: S311 - moments of kills, which a seed repeats
    command = [sys.executable, "-m", "hwmatrix.cli.main", "matrix", "--matrix", str(ROOT / "matrix.yaml")]
    command += ["--engine", "cluster", "--local", "2"] if arguments.engine == "cluster" else []
    chosen = ["--models", *arguments.models, "--targets", *arguments.targets, "--isolation", arguments.isolation, "--no-timing"]
    whole(command, chosen)
    whole_s = whole(command, chosen)
    total: collections.Counter[str] = collections.Counter()
    for number in range(arguments.times):
        victim, moment = chance.choice(VICTIMS[arguments.engine]), chance.uniform(0.5, whole_s)
        if victim == "container" and arguments.isolation != "container":
            victim = "process"
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            found = case(Runs(command, Path(folder)), chosen, victim, moment, chance)
        tell({"case": number + 1, **found})
        total.update({name: value for name, value in found.items() if isinstance(value, int) and name != "code"})
        total["codes that are not 0"] += found["code"] != 0
    tell({"cases": arguments.times, "a whole run takes s": round(whole_s, 1), **total})
    return 1 if total["lost"] or total["twice"] or total["left"] else 0


def tell(found: dict[str, object]) -> None:
    """Print a line of JSON at once."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def whole(command: list[str], chosen: list[str]) -> float:
    """How long a run takes, in seconds, that nobody kills. The first one fills the cache, the second one measures."""
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        runs, begin = Runs(command, Path(folder)), time.monotonic()
        if runs.start(*chosen).wait() != 0:
            sys.exit(f"a run that nobody kills failed:\n{runs.told_by(0).read_text(errors='replace')}")
        return time.monotonic() - begin


def case(runs: Runs, chosen: list[str], victim: str, moment: float, chance: random.Random) -> dict[str, object]:
    """One run with one kill, then ``--resume`` while a cell has no verdict, at most :data:`MOST_RUNS` runs in all."""
    run = runs.start(*chosen)
    time.sleep(moment)
    killed_at = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    killed = runs.kill(run, victim, chance)
    code, left = run.wait(), 0
    finished = {key.decode() for key in TOLD.findall(runs.told_by(0).read_bytes())}
    before = {key for key in finished if killed}
    while (code != 0 or runs.planned() - settled(runs.output).keys()) and len(runs.pids) < MOST_RUNS:
        run = runs.start(*(["--resume"] if runs.planned() else chosen))
        left += stale(runs, psutil.Process(run.pid))
        code = run.wait()
    time.sleep(ENDS_WITHIN_S)
    verdicts = settled(runs.output)
    planned = runs.planned()
    again = [key for key in before if any(at > killed_at for at in verdicts[key])] if victim in ("run", "everything") else []
    return {
        "victim": victim if killed else "none: there was nothing to kill",
        "after_s": round(moment, 1),
        "code": code,
        "runs": len(runs.pids),
        "finished": len(before),
        "planned": len(planned),
        "lost": len((planned | finished) - verdicts.keys()),
        "twice": len(again) + sum(len(times) - 1 for times in verdicts.values()),
        "left": left + runs.left(),
    }


def stale(runs: Runs, own: psutil.Process) -> int:
    """How many processes of the runs before ``own``, a new run, are still there after its first seconds."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while sum(own.cpu_times()[:2]) < ENDS_WITHIN_S and own.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.05)
        began = own.create_time()
        return sum(process.create_time() < began for process in runs.processes())
    return 0


def settled(output: Path) -> dict[str, list[dt.datetime]]:
    """When each cell with a verdict started, for each of its rows in the sealed shards of an output folder."""
    found: dict[str, list[dt.datetime]] = collections.defaultdict(list)
    for shard in (output / "runs").glob("*/shards/*.duckdb"):
        with duckdb.connect(str(shard), read_only=True) as connection:
            for key, started in connection.execute(SETTLED).fetchall():
                found[key].append(started)
    return found


if __name__ == "__main__":
    sys.exit(main())
