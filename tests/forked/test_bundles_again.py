"""Bundles and exports on a machine that is too busy: what ran out of time is tried again alone, and only then told as what it is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest

from hwmatrix.errors import CellFailure, FactoryError
from hwmatrix.models import onnx_export, provenance
from hwmatrix.models.bundle import Bundle
from hwmatrix.models.onnx_export import OnnxExport, OnnxFailure, no_graph, read_all
from hwmatrix.records import Isolation, Limits, Size
from hwmatrix.runner import bundles
from hwmatrix.runner import crew as crews
from hwmatrix.runner.bundles import BundleOrder, build_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hwmatrix.records import ModelPlan
    from hwmatrix.records.bundle_index import BundleEntry

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked where children are")
LIMITS = Limits(timeout_s=2.0, memory_mb=512)
FIRST, SECOND = onnx_export.EXPORTERS


class Scene:
    """What stands in for building and exporting: each notes when it begins, and then does as it is told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.building: Callable[[str, int], None] = lambda _name, _attempt: None
        self.exporting: Callable[[str, int], None] = lambda _exporter, _attempt: None

    def note(self, what: str) -> int:
        """How many times this has begun, with this time."""
        with (self.path / "notes").open("a", encoding="ascii") as notes:
            notes.write(f"{what}\n")
        return self.begun().count(what)

    def begun(self) -> list[str]:
        file = self.path / "notes"
        return file.read_text(encoding="ascii").split() if file.exists() else []

    def build(self, *models: str, at_once: int, targets: tuple[str, ...] = ("cpu",)) -> dict[str, BundleEntry]:
        plan = make.plan(models=models, targets=targets)
        quick = tuple(dataclasses.replace(model, limits=LIMITS) for model in plan.models)
        plan = dataclasses.replace(plan, isolation=Isolation.NONE, models=quick)
        entries = build_all(BundleOrder(plan=plan, cache=self.path, out=self.path, at_once=at_once))
        written = json.loads((self.path / "bundles.json").read_text(encoding="utf-8"))["bundles"]
        assert [entry["error_type"] for entry in written] == [entry.error_type for entry in entries]
        return {entry.model: entry for entry in entries}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(tmp_path)

    def find_or_build(model: ModelPlan, cache: Path) -> Bundle:
        made.building(model.name, made.note(model.name))
        return bundle_at(cache / key_of(model.name))

    def find_or_take(model: ModelPlan, cache: Path, build: Callable[[Path], None]) -> Bundle:
        build(cache)
        return bundle_at(cache / key_of(model.name))

    def exporter(name: str) -> Any:
        def export(bundle: Bundle, file: Path) -> dict[str, Any]:
            if (model := model_of(bundle.key)) is not None:
                made.exporting(name, made.note(f"{model}-{name}"))
            file.write_bytes(b"graph")
            return {"inputs": [], "outputs": [], "fixed": [], "opset": 20}

        return export

    monkeypatch.setattr(bundles, "find_or_build", find_or_build)
    monkeypatch.setattr(bundles, "find_or_take", find_or_take)
    monkeypatch.setattr(onnx_export, "EXPORTERS", {name: exporter(name) for name in (FIRST, SECOND)})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (12.0, 6.0, 3.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    return made


def bundle_at(path: Path) -> Bundle:
    return Bundle(path=path, key=path.name, digest=key_of(path.name), manifest={"identity": {"made_by": provenance.made_by()}})


def key_of(name: str) -> str:
    """A key as bundles have it: the parent takes no other."""
    return hashlib.sha256(name.encode()).hexdigest()


def model_of(key: str) -> str | None:
    """The model whose bundle has this key; None: a canary's."""
    return next((name for name in ("m0", "m1") if key_of(name) == key), None)


def exported(scene: Scene, model: str) -> tuple[OnnxExport | OnnxFailure, ...]:
    return read_all(bundle_at(scene.path / key_of(model)), scene.path)


def late_once(_name: str, attempt: int) -> None:
    if attempt == 1:
        time.sleep(60)


def always_late(_name: str, _attempt: int) -> None:
    time.sleep(60)


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_export_that_is_late_is_called_again_when_the_rest_is_done(scene: Scene, at_once: int) -> None:
    scene.exporting = lambda exporter, attempt: late_once(exporter, attempt) if exporter == FIRST else None
    entries = scene.build("m0", "m1", at_once=at_once, targets=("onnxruntime",))
    assert all(entry.key is not None for entry in entries.values())
    assert [scene.begun().count(f"{name}-{FIRST}") for name in ("m0", "m1")] == [2, 2]
    again = len(scene.begun()) - 1 - scene.begun()[::-1].index("m0")  # where the second attempt of m0 begins
    assert set(scene.begun()[again:]) <= {"m0", "m1", f"m0-{FIRST}", f"m1-{FIRST}"}
    for name in ("m0", "m1"):
        assert [type(found) for found in exported(scene, name)] == [OnnxExport, OnnxExport]


def test_an_export_that_is_late_again_is_a_time_out_with_the_load_and_no_verdict_of_later_runs(scene: Scene) -> None:
    scene.exporting = always_late
    scene.build("m0", at_once=1, targets=("onnxruntime",))
    assert scene.begun().count(f"m0-{FIRST}") == scene.begun().count(f"m0-{SECOND}") == 2
    told = exported(scene, "m0")
    failure = no_graph([found for found in told if isinstance(found, OnnxFailure)])
    assert isinstance(failure, CellFailure)
    assert (failure.status, failure.error_type) == ("timeout", "export_timeout")
    assert "3.0 per core" in str(failure)
    assert "no exporter made an ONNX graph" not in str(failure)
    scene.exporting = lambda _exporter, _attempt: None  # a later run, on an idle machine
    scene.build("m0", at_once=1, targets=("onnxruntime",))
    assert isinstance(exported(scene, "m0")[0], OnnxExport)


def test_a_bundle_whose_worker_falls_silent_is_built_again_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "_GRACE_S", 0.5)

    def stop_the_worker(name: str, attempt: int) -> None:
        if (name, attempt) == ("m0", 1):
            os.kill(os.getppid(), signal.SIGSTOP)
            time.sleep(60)

    scene.building = stop_the_worker
    entries = scene.build("m0", "m1", at_once=2)
    assert {name: entry.error_type for name, entry in entries.items() if entry.key is None} == {}
    assert scene.begun().count("m0") == 2
    assert scene.begun()[-1] == "m0"
    assert [scene.begun().count(name) for name in ("m1", "canary-good", "canary-wrong")] == [1, 1, 1]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_bundle_that_is_late_again_says_so_and_how_busy_the_machine_was(
    scene: Scene, capsys: pytest.CaptureFixture[str], at_once: int
) -> None:
    scene.building = lambda name, attempt: always_late(name, attempt) if name == "m0" else None
    entry = scene.build("m0", "m1", at_once=at_once)["m0"]
    assert (entry.size, entry.key, entry.error_type) == (Size.TINY, None, "bundle_unfinished")
    assert "3.0 per core" in (entry.message or "")
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events if event.get("model") == "m0" and event["event"] != "bundle_started"] == [
        "bundle_again",
        "bundle",
    ]


def test_a_bundle_that_crashes_is_not_tried_again(scene: Scene) -> None:
    def crash(name: str, _attempt: int) -> None:
        if name == "m0":
            os.kill(os.getpid(), signal.SIGKILL)

    scene.building = crash
    entry = scene.build("m0", "m1", at_once=2)["m0"]
    assert entry.error_type == "factory_failed"
    assert scene.begun().count("m0") == 1


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")], ids=repr)
def test_an_export_without_enough_memory_is_called_again_alone_and_then_no_failure_of_the_model(scene: Scene, error: Exception) -> None:
    def fail(_exporter: str, _attempt: int) -> None:
        raise error

    scene.exporting = fail
    scene.build("m0", at_once=1, targets=("onnxruntime",))
    assert scene.begun().count(f"m0-{FIRST}") == 2
    failure = no_graph([found for found in exported(scene, "m0") if isinstance(found, OnnxFailure)])
    assert (failure.status, failure.error_type) == ("oom", "export_out_of_memory")
    assert "3.0 per core" in str(failure)
    scene.exporting = lambda _exporter, _attempt: None  # a later run, with more memory
    scene.build("m0", at_once=1, targets=("onnxruntime",))
    assert isinstance(exported(scene, "m0")[0], OnnxExport)


def test_a_bundle_without_enough_memory_is_built_again_alone(scene: Scene) -> None:
    def fail(name: str, attempt: int) -> None:
        if (name, attempt) == ("m0", 1):
            raise FactoryError("the reference failed", error_type="reference_failed") from RuntimeError("std::bad_alloc")
        if name == "m1":
            raise MemoryError

    scene.building = fail
    entries = scene.build("m0", "m1", at_once=1)
    assert entries["m0"].key is not None
    assert entries["m1"].error_type == "bundle_unfinished", entries["m1"]
    assert [scene.begun().count(name) for name in ("m0", "m1")] == [2, 2]
