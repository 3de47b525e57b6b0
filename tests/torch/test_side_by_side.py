"""Several cells, and several bundles, at once in one runner: models that misbehave cost their neighbors nothing."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from fault_runs import Case, Order, environment, make_plan, rows, run, still_running, write_order

from hwmatrix.models.bundle import bundle_key
from hwmatrix.models.onnx_export import EXPORTERS, MANIFEST, ONNX_DIR
from hwmatrix.records import Backend
from hwmatrix.runner.bundles import BundleOrder, all_cached

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="where children are interpreters, they run one after the other"),
]
AT_ONCE = ("--at-once", "2")
CASES = (
    Case(name="good"),
    Case(name="crashes", fault="segfault"),
    Case(name="loops", fault="loop", timeout_s=10),
    Case(name="allocates", fault="allocate", memory_mb=1024),
    Case(name="kills its worker", fault="kill_parent"),
    Case(name="leaves a process", fault="stray"),
    Case(name="gives wrong numbers", fault="wrong"),
    Case(name="good too"),
    Case(name="good again"),
)


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Order:
    """All cases as bundles, made two at a time while no fault is armed, of a plan that does not time."""
    plan = dataclasses.replace(make_plan(CASES, backend=Backend.CPU), timing=False)
    laid = write_order(tmp_path_factory.mktemp("side") / "run", plan, cache=shared_cache / "bundles")
    told = [event for event in run("bundles", laid, *AT_ONCE, armed=False) if event["event"] == "bundle"]
    assert [event["message"] for event in told if not event["ok"]] == []
    assert sorted(event["model"] for event in told) == sorted([*(case.name for case in CASES), "canary-good", "canary-wrong"])
    return laid


@pytest.fixture(scope="module")
def events(order: Order) -> list[dict[str, Any]]:
    """One run of the real runner over all cases, two at a time, faults armed."""
    return run("run", order, "--target", "cpu", "--host", "test", *AT_ONCE, armed=True)


@pytest.fixture
def shard(events: list[dict[str, Any]], order: Order) -> Path:
    (path,) = order.shards.glob("*.duckdb")
    assert events[-1] == {"event": "sealed", "shard": path.name}
    return path


def test_every_cell_has_its_own_end(shard: Path) -> None:
    query = "SELECT cell_key, status, stage, error_type, signal FROM cells WHERE role = 'model'"
    assert {row.pop("cell_key"): tuple(row.values()) for row in rows(shard, query)} == {
        "good": ("pass", "compare", None, None),
        "crashes": ("crash", "run", "segmentation_fault", signal.SIGSEGV),
        "loops": ("timeout", "run", "timeout", signal.SIGKILL),
        "allocates": ("oom", "run", "memory_pressure", None),
        "kills its worker": ("infra_error", "load", "infrastructure", None),
        "leaves a process": ("pass", "compare", None, None),
        "gives wrong numbers": ("mismatch", "compare", "mismatch", None),
        "good too": ("pass", "compare", None, None),
        "good again": ("pass", "compare", None, None),
    }
    (killed,) = rows(shard, "SELECT message FROM cells WHERE error_type = 'infrastructure'")
    assert killed["message"] == "the worker that ran this cell was ended by signal 9"


def test_canaries_are_run_once_and_nothing_is_timed(shard: Path) -> None:
    assert rows(shard, "SELECT role, status FROM cells WHERE role <> 'model' ORDER BY role") == [
        {"role": "canary_good", "status": "pass"},
        {"role": "canary_wrong", "status": "mismatch"},
    ]
    assert rows(shard, "SELECT canary_ok FROM shards") == [{"canary_ok": True}]
    assert rows(shard, "SELECT count(*) AS n FROM samples") == [{"n": 0}]
    assert rows(shard, "SELECT count(*) AS n FROM stages WHERE stage = 'measure'") == [{"n": 0}]


def test_each_cell_says_what_its_model_was_given(shard: Path) -> None:
    found = rows(shard, "SELECT DISTINCT inputs, text_path FROM cells WHERE status IN ('pass', 'mismatch')")
    assert found == [{"inputs": ["text"], "text_path": False}]


def test_two_ran_at_once_and_nothing_stays_behind(events: list[dict[str, Any]], order: Order) -> None:
    (parent,) = [event for event in events if event["event"] == "parent"]
    assert parent["at_once"] == 2
    assert parent["end_mb"] - parent["begin_mb"] < 50
    running, most = 0, 0
    for event in events:
        running += {"cell_started": 1, "cell": -1}.get(event["event"], 0)
        most = max(most, running)
    assert most == 3  # a worker is given its next cell before the last one is kept
    assert still_running(order) == []


def test_what_is_timed_runs_alone(order: Order, tmp_path: Path) -> None:
    plan = make_plan((Case(name="good"), Case(name="good too")), backend=Backend.CPU)
    laid = write_order(tmp_path / "run", plan)
    (laid.plan.parent / "bundles" / "bundles.json").write_bytes((order.plan.parent / "bundles" / "bundles.json").read_bytes())
    laid = dataclasses.replace(laid, cache=order.cache)
    events = run("run", laid, "--target", "cpu", "--host", "test", *AT_ONCE, armed=False)
    assert [event["at_once"] for event in events if event["event"] == "parent"] == [1]
    (path,) = laid.shards.glob("*.duckdb")
    assert rows(path, "SELECT status, stage FROM cells WHERE role = 'model'") == [{"status": "pass", "stage": "measure"}] * 2


def test_a_model_that_takes_all_memory_or_time_while_it_is_built_is_ended_and_named(tmp_path: Path) -> None:
    cases = (
        Case(name="good"),
        Case(name="loops", fault="loop", place="init", timeout_s=8),
        Case(name="allocates", fault="allocate", place="init", memory_mb=512),
        Case(name="crashes", fault="segfault", place="init"),
        Case(name="kills its worker", fault="kill_parent", place="init"),
        Case(name="good again"),
    )
    laid = write_order(tmp_path / "run", make_plan(cases, backend=Backend.CPU))
    events = run("bundles", laid, *AT_ONCE, armed=True)
    index = json.loads((tmp_path / "run" / "bundles" / "bundles.json").read_bytes())
    entries = {entry["model"]: entry for entry in index["bundles"]}
    assert [name for name, entry in entries.items() if entry["key"] is not None] == ["canary-good", "canary-wrong", "good", "good again"]
    assert (entries["loops"]["message"] or "").startswith("the bundle was not built: timed out after 8 s")
    assert "MemoryError" in entries["allocates"]["message"]
    assert "signal 11" in entries["crashes"]["message"]
    assert "the worker that did it was ended by signal 9" in entries["kills its worker"]["message"]
    assert {event["model"] for event in events if event["event"] == "bundle_again"} == {"loops", "allocates", "kills its worker"}
    assert still_running(laid) == []


def test_some_models_alone_and_the_index_keeps_the_others(order: Order) -> None:
    index = order.plan.parent / "bundles" / "bundles.json"
    before = json.loads(index.read_bytes())["bundles"]
    good = next([each["model"], each["size"], each["batch"], each["sequence_length"]] for each in before if each["model"] == "good")
    (order.plan.parent / "models-some.json").write_text(json.dumps([good]), encoding="utf-8")
    told = [event["model"] for event in run("bundles", order, "--models", "some", armed=False) if event["event"] == "bundle"]
    assert told == ["canary-good", "canary-wrong", "good"]
    assert json.loads(index.read_bytes())["bundles"] == before


def test_bundles_that_are_all_cached_are_found_without_importing_torch(order: Order, tmp_path: Path) -> None:
    words = ["bundles", "--plan", str(order.plan), "--cache", str(order.cache), "--out", str(tmp_path)]
    code = f"import sys\nfrom hwmatrix.runner.__main__ import main\nprint(main({words!r}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(armed=False), capture_output=True, text=True, check=True)
    *events, last = done.stdout.splitlines()
    assert last == "0 False"
    found = [json.loads(event) for event in events]
    assert sum(event["event"] == "bundle" and event["ok"] for event in found) == len(CASES) + 2


def test_a_bundle_that_is_missing_is_noticed(tmp_path: Path) -> None:
    order = BundleOrder(plan=make_plan([Case(name="good")], backend=Backend.CPU), cache=tmp_path, out=tmp_path)
    folders = [order.cache / bundle_key(model) for model in order.chosen]
    for folder in folders:
        folder.mkdir()
    assert all_cached(order)
    for folder in folders:
        folder.rmdir()
        assert not all_cached(order)
        folder.mkdir()


def _export_manifest(failure: dict[str, Any] | None = None) -> str:
    return json.dumps({"files": {}, "key": "", "bundle": "", "failure": failure})


def test_an_export_that_is_missing_is_noticed(tmp_path: Path) -> None:
    order = BundleOrder(plan=make_plan([Case(name="good")], backend=Backend.ONNXRUNTIME), cache=tmp_path, out=tmp_path)
    manifests = []
    for model in order.chosen:
        (order.cache / bundle_key(model)).mkdir()
        manifests.append(order.cache / ONNX_DIR / bundle_key(model) / next(iter(EXPORTERS)) / MANIFEST)
        manifests[-1].parent.mkdir(parents=True)
        manifests[-1].write_text(_export_manifest(), encoding="utf-8")
    assert all_cached(order)
    assert not all_cached(dataclasses.replace(order, every_exporter=True))
    failure = {"error_type": "ValueError", "message": "", "traceback": None}
    manifests[-1].write_text(_export_manifest(failure), encoding="utf-8")
    assert not all_cached(order)  # the next exporter has not been called
