"""Kills a part of a run at a random moment, lets the run end or continues it, and counts what was lost, run twice or left behind.

    python tests/bench/kills.py --engine cluster --times 20 --models bert vit gpt2 --targets cpu onnxruntime

The victims are the run's own process (then `--resume`), and with `--engine cluster` one of its workers. Every case is a new run that uses
the same cache, so bundles are made only once. Each line of the output is a case; the last line is the sum.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import psutil

ROOT = Path(__file__).resolve().parents[2]
SETTLED = "SELECT cell_key FROM cells JOIN shards USING (shard_id) WHERE role = 'model' AND status <> 'infra_error'"
ENDS_WITHIN_S = 2.0
"""When what was started must have ended, after the next command began or the run ended."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("here", "cluster"), default="here")
    parser.add_argument("--isolation", choices=("container", "venv", "none"), default="container")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest-s", type=float, default=40.0, help="The latest moment of a kill, in seconds after the start.")
    parser.add_argument("--models", nargs="+", default=["bert", "vit", "gpt2"])
    parser.add_argument("--targets", nargs="+", default=["cpu", "onnxruntime"])
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)  # noqa: S311 - moments of kills, which a seed repeats
    total: collections.Counter[str] = collections.Counter()
    for number in range(arguments.times):
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            found = case(arguments, chance, Path(folder))
        tell({"case": number + 1, **found})
        total.update({name: value for name, value in found.items() if isinstance(value, int)})
    tell({"cases": arguments.times, **total})
    return 1 if total["lost"] or total["twice"] or total["left"] else 0


def tell(found: dict[str, object]) -> None:
    """Print a line of JSON at once."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def case(arguments: argparse.Namespace, chance: random.Random, output: Path) -> dict[str, object]:
    """One run with one kill. Returns how many of its cells had a verdict at the kill, are lost, ran twice; and what was left behind."""
    engine = ["--engine", "cluster", "--local", "2"] if arguments.engine == "cluster" else []
    common = [sys.executable, "-m", "hwmatrix.cli.main", "matrix", "--matrix", str(ROOT / "matrix.yaml"), "--output-dir", str(output)]
    chosen = ["--models", *arguments.models, "--targets", *arguments.targets, "--isolation", arguments.isolation, "--no-timing"]
    before = {process.pid for process in psutil.process_iter()}
    run = start([*common, *engine, *chosen])
    moment = chance.uniform(0.5, arguments.longest_s)
    victim = chance.choice(["run", "worker"]) if arguments.engine == "cluster" else "run"
    time.sleep(moment)
    finished = settled(output)
    killed = kill(run, victim)
    if killed and victim == "run":
        run.wait()
        resumable = any((output / "runs").glob("*/plan.json"))
        run = start([*common, *engine, "--resume"] if resumable else [*common, *engine, *chosen])
        time.sleep(ENDS_WITHIN_S)
    code = run.wait()
    time.sleep(ENDS_WITHIN_S)
    counts = settled(output)
    planned = {cell["key"] for plan in (output / "runs").glob("*/plan.json") for cell in json.loads(plan.read_text())["cells"]}
    return {
        "victim": victim if killed else "none: there was nothing to kill",
        "after_s": round(moment, 1),
        "code": code,
        "finished": len(finished),
        "planned": len(planned),
        "lost": len(planned - counts.keys()) + len(finished.keys() - counts.keys()),
        "twice": sum(count - 1 for count in counts.values()),
        "left": left_behind(before),
    }


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a run whose output nobody reads."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "harness")}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def kill(run: subprocess.Popen[bytes], victim: str) -> bool:
    """Kill the run's process, or one of its workers. Return whether there was something to kill."""
    if run.poll() is not None:
        return False
    if victim == "run":
        run.kill()
        return True
    workers = [child for child in psutil.Process(run.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    if not workers:
        return False
    os.kill(workers[0].pid, signal.SIGKILL)
    return True


def settled(output: Path) -> collections.Counter[str]:
    """How often each cell has a verdict in the sealed shards of an output folder."""
    found: collections.Counter[str] = collections.Counter()
    for shard in (output / "runs").glob("*/shards/*.duckdb"):
        with duckdb.connect(str(shard), read_only=True) as connection:
            found.update(key for (key,) in connection.execute(SETTLED).fetchall())
    return found


def left_behind(before: set[int]) -> int:
    """How many processes and containers of hwmatrix are left, and how many folders of workers."""
    names = ("hwmatrix", "spawn_main")
    lines = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]) if each.pid not in before]
    processes = [line for line in lines if any(name in line for name in names)]
    docker = shutil.which("docker")
    command = [docker or "", "ps", "--all", "--quiet", "--filter", "label=hwmatrix=1"]
    containers = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split() if docker else []
    return len(processes) + len(containers) + len(list(Path(tempfile.gettempdir()).glob("hwmatrix-cluster-*")))


if __name__ == "__main__":
    sys.exit(main())
