"""``hwmatrix cluster`` and ``hwmatrix matrix --engine cluster``: what is refused before anything is started, and what is printed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.app import cluster
from hwmatrix.cli import main
from hwmatrix.errors import EngineError
from hwmatrix.host.cluster import connection, offers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("project")
MATRIX = """\
version: 1
sizes: {tiny: {batch: 1}, full: {}}
tolerances: {float32: {relative_error: 1.0e-3, reason: rounding}}
targets:
  cpu: {backend: cpu, image: cpu}
models:
  bert: {family: embedding, architecture: bert, class: BertForMaskedLM}
suites:
  default: {models: all}
"""


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--engine cluster", "it needs a scheduler's address, or a number of workers to start here"),
        ("--engine cluster --scheduler box1 --local 2", "add either --scheduler ADDRESS or --local N"),
        ("--scheduler box1", "--scheduler: it needs --engine cluster"),
        ("--local 2", "--local: it needs --engine cluster"),
        ("--engine cluster --local 2 --workers 2", "--workers: a cluster cannot do this (start more workers of the cluster instead)"),
        ("--engine cluster --local 2 --stale", "--stale: a cluster cannot do this"),
        ("--engine cluster --scheduler tcp://box1:8786", "members of a cluster do not speak tcp://"),
        ("--engine cluster --scheduler box1 --keys nowhere", "nowhere: it has no authority.pem, member.pem, member.key"),
    ],
)
def test_options_that_do_not_suit(options: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["matrix", *options.split()]) == 2
    assert why in " ".join(capsys.readouterr().err.split())


def test_without_dask_the_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main.main(["cluster", "keys", "here"]) == 2
    assert "pip install 'hwmatrix[host,cluster]'" in capsys.readouterr().err


def test_keys_are_made_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["cluster", "keys", "mine", "--days", "5"]) == 0
    assert "copy this folder to every machine" in capsys.readouterr().out
    assert sorted(path.name for path in (project / "mine").iterdir()) == ["authority.pem", "member.key", "member.pem"]
    assert main.main(["cluster", "keys", "mine"]) == 2


def test_cores_must_be_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["cluster", "worker", "box1", "--cores", "0-3"]) == 2
    assert "--cores: '0-3' is not a list of cores (write --cores 0,1)" in capsys.readouterr().err


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> cluster.Members:
    """A cluster of one worker, and another that gets no work."""

    @contextlib.contextmanager
    def connected(address: str, keys: Path) -> Iterator[Any]:
        yield (address, keys)

    monkeypatch.setattr(offers, "detect", _absent)
    monkeypatch.setattr(offers, "_no_engine", lambda _: None)
    offer = dataclasses.replace(offers.offer({}), host="box2", cores=8, memory_mb=64 * 1024, devices={"cpu": "", "cuda": "H100"})
    found = cluster.Members(
        offers={"tls://10.0.0.6:4000": offer, "tls://10.0.0.8:4000": offer},
        refused={"tls://10.0.0.7:4000": "box3 has another hwmatrix"},
        names={"tls://10.0.0.6:4000": "lab-2", "tls://10.0.0.8:4000": "tls://10.0.0.8:4000"},
    )
    monkeypatch.setattr(connection, "connected", connected)
    monkeypatch.setattr(cluster, "members_of", lambda _: found)
    return found


def _absent(kind: str) -> Any:
    from hwmatrix.hardware.detector import _absent as absent

    return absent(kind, "not here", "2026-11-25")


@pytest.mark.usefixtures("members")
def test_the_members_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["cluster", "members", "box1"]) == 0
    out = capsys.readouterr().out
    assert "box2  lab-2 (tls://10.0.0.6:4000)  8 cores, 64 GiB, containers\n  cpu, cuda (H100)\n" in out
    assert "box2  tls://10.0.0.8:4000  8 cores, 64 GiB, containers\n" in out
    assert "gets no work: tls://10.0.0.7:4000: box3 has another hwmatrix" in out


@pytest.mark.usefixtures("members")
def test_the_members_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["cluster", "members", "box1", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["members"]["tls://10.0.0.6:4000"]["devices"] == {"cpu": "", "cuda": "H100"}
    assert found["members"]["tls://10.0.0.6:4000"]["name"] == "lab-2"
    assert list(found["refused"]) == ["tls://10.0.0.7:4000"]


def test_no_scheduler_is_an_engine_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @contextlib.contextmanager
    def connected(address: str, keys: Path) -> Iterator[Any]:
        raise EngineError(f"{address}: no scheduler answers there ({keys.name})", advice="Start one there: hwmatrix cluster scheduler.")
        yield

    monkeypatch.setattr(connection, "connected", connected)
    assert main.main(["cluster", "members", "box1"]) == 5
    assert "no scheduler answers there" in capsys.readouterr().err
