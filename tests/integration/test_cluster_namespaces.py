"""A cluster in network namespaces: each box has its own interfaces, its own cache, and a cable to the machine of the scheduler."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

import pytest
from fault_runs import PROJECT, untrained
from matrix_command import Command, cluster_command, executions, left_behind, statuses

from hwmatrix.basics.cache_folder import CACHE_VARIABLE
from hwmatrix.cli import main
from hwmatrix.host import containers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hwmatrix.host.engine import Engine

pytestmark = pytest.mark.containers
MODELS = ("bert", "vit", "roberta", "gpt2")
BOXES = ("box-1", "box-2")
PORT = "8786"
IP = shutil.which("ip") or ""
NOTICED_S = "12s"
"""After how long Dask gives up a connection that is silent: 30 seconds by default, at least 11."""
IMPATIENT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": NOTICED_S}


class Lab:
    """A machine with the scheduler, and boxes: each is a network namespace. A cable connects each box to the scheduler's machine."""

    def __init__(self) -> None:
        self._hub = f"hwmatrix-{os.getpid()}"
        self._boxes = {name: f"{self._hub}-{number}" for number, name in enumerate(BOXES, 1)}

    def within(self, box: str | None = None) -> list[str]:
        """What runs a command on the machine of the scheduler, or on a box."""
        return [IP, "netns", "exec", self._hub if box is None else self._boxes[box]]

    def address(self, box: str) -> str:
        """The address of the scheduler, as a box reaches it."""
        return f"tls://10.201.{BOXES.index(box) + 1}.1:{PORT}"

    def __enter__(self) -> Self:
        """Make the namespaces. The scheduler's machine forwards what the boxes send each other."""
        for name in (self._hub, *self._boxes.values()):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        subprocess.run([*self.within(), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], check=True)
        for number, name in enumerate(self._boxes.values(), 1):
            here, there, net = f"to{number}", "cable", f"10.201.{number}"
            ip("link", "add", here, "netns", self._hub, "type", "veth", "peer", "name", there, "netns", name)
            for namespace, link, last in ((self._hub, here, 1), (name, there, 2)):
                ip("-n", namespace, "address", "add", f"{net}.{last}/30", "dev", link)
                ip("-n", namespace, "link", "set", link, "up")
            ip("-n", name, "route", "add", "default", "via", f"{net}.1")
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self._boxes.values(), self._hub):
            subprocess.run([IP, "netns", "delete", name], check=False, capture_output=True)

    def unplug(self, box: str) -> None:
        """Pull a box's cable: no packet arrives, and no connection is closed."""
        ip("-n", self._hub, "link", "set", f"to{BOXES.index(box) + 1}", "down")


def ip(*arguments: str) -> None:
    done = subprocess.run([IP, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


def member(within: list[str], *arguments: str, cache: Path) -> contextlib.AbstractContextManager[object]:
    """A command of ``hwmatrix cluster`` on a machine of the lab, until the block ends."""
    return cluster_command(*arguments, environment={CACHE_VARIABLE: str(cache), **IMPATIENT}, within=within)


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    """A scheduler and its boxes, ready for work."""
    if os.geteuid() != 0 or not IP:
        pytest.skip("only root can make network namespaces, with iproute2")
    keys = tmp_path / "keys"
    assert main.main(["cluster", "keys", str(keys)]) == 0
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab())
        stack.enter_context(member(lab.within(), "scheduler", "--port", PORT, "--keys", str(keys), cache=tmp_path / "scheduler"))
        for core, box in enumerate(BOXES):
            worker = ("worker", lab.address(box), "--name", box, "--cores", str(core % (os.cpu_count() or 1)), "--memory-mb", "6000")
            wait_for_scheduler(lab, box, keys)
            stack.enter_context(member(lab.within(box), *worker, "--keys", str(keys), cache=tmp_path / box))
        wait_for_members(lab, keys)
        capsys.readouterr()
        yield lab


def members(within: list[str], address: str, keys: Path) -> str:
    command = [*within, sys.executable, "-m", "hwmatrix", "cluster", "members", address, "--keys", str(keys)]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "harness")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


def wait_for_members(lab: Lab, keys: Path) -> None:
    """Wait until the scheduler has every box."""
    until = time.monotonic() + 90
    while any(f"{box} (tls://" not in (told := members(lab.within(), f"tls://127.0.0.1:{PORT}", keys)) for box in BOXES):
        assert time.monotonic() < until, told


def wait_for_scheduler(lab: Lab, box: str, keys: Path) -> None:
    """Wait until a box reaches the scheduler: a worker that does not ends at once."""
    until = time.monotonic() + 90
    while "no scheduler answers" in (told := members(lab.within(box), lab.address(box), keys)):
        assert time.monotonic() < until, told


def run(lab: Lab, tmp_path: Path) -> Command:
    (tmp_path / "matrix.yaml").write_text(untrained(), encoding="utf-8")
    chosen = ("--models", *MODELS, "--targets", "cpu", "--no-timing", "--no-generation", "--isolation", "container")
    where = ("--matrix", str(tmp_path / "matrix.yaml"), "--output-dir", str(tmp_path / "out"), "--keys", str(tmp_path / "keys"))
    cluster = ("--engine", "cluster", "--scheduler", f"tls://127.0.0.1:{PORT}")
    return Command(*cluster, *chosen, *where, environment={CACHE_VARIABLE: str(tmp_path / "client"), **IMPATIENT}, within=lab.within())


def check_complete(output: Path) -> None:
    assert statuses(output) == {(model, "cpu"): "pass" for model in MODELS}
    assert set(executions(output).values()) == {1}
    assert left_behind(output) == []


@pytest.mark.long
def test_boxes_share_the_work_over_the_network(lab: Lab, tmp_path: Path, engine: Engine) -> None:
    with run(lab, tmp_path) as command:
        assert command.end() == 0, command.output
    check_complete(tmp_path / "out")
    assert all(f"{box}: cpu " in command.output for box in BOXES), command.output
    assert containers.remove_leftovers(engine) == ()
    assert [path for box in BOXES for path in (tmp_path / box / "cluster").glob("*/worker-*/part-*")] == []


@pytest.mark.long
def test_the_cells_of_a_box_that_is_unplugged_run_elsewhere(lab: Lab, tmp_path: Path) -> None:
    with run(lab, tmp_path) as command:
        command.wait_for("box-2: cpu ")
        lab.unplug("box-2")
        assert command.end() == 0, command.output
    assert "box-2 died" in command.output
    check_complete(tmp_path / "out")
