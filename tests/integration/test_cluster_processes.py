"""A cluster of real processes: who is refused, and what a killed worker costs."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from distributed import Client
from fault_runs import untrained
from matrix_command import Command, cluster_command, executions, left_behind, statuses

from hwmatrix.basics.cache_folder import CACHE_VARIABLE
from hwmatrix.cli import main
from hwmatrix.errors import EngineError
from hwmatrix.host import containers
from hwmatrix.host.engine import connect

if TYPE_CHECKING:
    from pathlib import Path

MODELS = ("bert", "vit", "roberta")
TARGETS = ("cpu",)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_only_who_has_the_keys_is_a_member(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ours", "others"):
        assert main.main(["cluster", "keys", str(tmp_path / name)]) == 0
    address = f"127.0.0.1:{free_port()}"
    members = ["cluster", "members", address, "--keys"]
    with cluster_command(
        "scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        address.rpartition(":")[2],
        "--keys",
        str(tmp_path / "ours"),
        environment={CACHE_VARIABLE: str(tmp_path)},
    ):
        until = time.monotonic() + 60
        while main.main([*members, str(tmp_path / "ours")]) == 5 and "has no worker" not in capsys.readouterr().err:
            assert time.monotonic() < until
        assert main.main([*members, str(tmp_path / "others")]) == 5
        assert "its keys are not those of this cluster" in capsys.readouterr().err
        assert main.main(["cluster", "worker", address, "--keys", str(tmp_path / "others")]) == 5
        assert "its keys are not those of this cluster" in capsys.readouterr().err
        with pytest.raises(OSError, match=r"Timed out|in handshake|closed"):
            Client(f"tcp://{address}", timeout=2, set_as_default=False)
        worker = ("worker", address, "--keys", str(tmp_path / "ours"), "--name", "box2", "--cores", "0", "--memory-mb", "3000")
        with cluster_command(*worker, environment={CACHE_VARIABLE: str(tmp_path)}):
            until = time.monotonic() + 60
            while main.main([*members, str(tmp_path / "ours")]) == 5:
                assert time.monotonic() < until
            told = capsys.readouterr().out
            assert "  box2 (tls://127.0.0.1:" in told
            assert "1 cores, 3 GiB, " in told
            assert "\n  cpu, openvino, onnxruntime, " in told


@pytest.mark.long
@pytest.mark.containers
def test_a_killed_worker_costs_only_its_unfinished_part(tmp_path: Path, shared_cache: Path) -> None:
    try:
        engine = connect(dict(os.environ))
    except EngineError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"this test must run in CI: {error}")
        pytest.skip(str(error))
    (tmp_path / "matrix.yaml").write_text(untrained(), encoding="utf-8")
    chosen = ("--models", *MODELS, "--targets", *TARGETS, "--no-timing", "--no-generation", "--isolation", "container")
    where = ("--matrix", str(tmp_path / "matrix.yaml"), "--output-dir", str(tmp_path / "out"))
    with Command("--engine", "cluster", "--local", "2", *chosen, *where, environment={CACHE_VARIABLE: str(shared_cache)}) as command:
        command.wait_for("pass ")
        workers = [child for child in psutil.Process(command.process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
        assert len(workers) == 2
        workers[0].kill()
        assert command.end() == 0, command.output
    assert " died\n" in command.output
    assert statuses(tmp_path / "out") == {(model, target): "pass" for model in MODELS for target in TARGETS}
    assert set(executions(tmp_path / "out").values()) == {1}
    assert left_behind(tmp_path / "out") == []
    assert containers.remove_leftovers(engine) == ()
    assert not list(shared_cache.glob("cluster/*/worker-*/"))
