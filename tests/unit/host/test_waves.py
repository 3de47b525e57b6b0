"""A run in waves: their content, when bundles are built and removed, the output, and retries with another export."""

from __future__ import annotations

import dataclasses
import io
import os
import sys
from pathlib import Path
from typing import Any

import duckdb
import factory_plans as make
import psutil
import pytest
from fake_executor import FakeExecutor
from rich.console import Console

from hwmatrix.errors import EngineError, StoreError
from hwmatrix.host import execution as running
from hwmatrix.host import waves as waving
from hwmatrix.host.console import PlainView
from hwmatrix.host.execution import run
from hwmatrix.host.executors import Ended
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.host.run_order import RunOrder, RunOutcome
from hwmatrix.host.sharing import at_once, container_mb
from hwmatrix.host.waves import Pace, waves
from hwmatrix.models.onnx_export import EXPORTERS, ONNX_DIR
from hwmatrix.records import ErrorRecord, ModelPlan, Plan, Severity, Stage, Status
from hwmatrix.store.merge import merge

TARGETS = ("cpu", "onnxruntime")
PLAN = make.plan(models=[f"m{number}" for number in range(10)], targets=TARGETS)
REFUSED = make.failure(Status.UNSUPPORTED, Stage.PREPARE)


@pytest.fixture(autouse=True)
def _three_models_a_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waving, "MODELS", 3)


@dataclasses.dataclass
class Scene:
    """A run's folder, and its output."""

    tmp: Path
    said: io.StringIO = dataclasses.field(default_factory=io.StringIO)

    def run(
        self, executor: FakeExecutor, plan: Plan = PLAN, folder: RunFolder | None = None, **changes: Any
    ) -> tuple[RunFolder, RunOutcome]:
        folder = folder or RunFolder.create(self.tmp / "out", plan)
        order = RunOrder(folder=folder, plan=plan, executor=executor, reference="cpu", cache=self.cache, workers=1)
        view = PlainView(Console(file=self.said, width=200), verbose=False)
        return folder, run(dataclasses.replace(order, **changes), view)

    @property
    def cache(self) -> Path:
        return self.tmp / "cache" / "bundles"

    def lines(self, beginning: str) -> list[str]:
        return [line for line in self.said.getvalue().splitlines() if line.startswith(beginning)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp=tmp_path)


def todo(plan: Plan) -> dict[str, list[Any]]:
    return {target.name: [cell for cell in plan.cells if cell.target == target.name] for target in plan.targets}


def statuses(folder: RunFolder, tmp: Path) -> dict[str, str]:
    assert merge([folder.path], tmp / "m.duckdb", fresh=True).rejected == ()
    with duckdb.connect(str(tmp / "m.duckdb"), read_only=True) as connection:
        return dict(connection.execute("SELECT cell_key, status FROM results").fetchall())


def test_waves_are_even_in_the_plan_s_order_and_have_all_cells_once() -> None:
    found = waves(PLAN, todo(PLAN))
    assert [[model.name for model in wave.models] for wave in found] == [["m0", "m1", "m2"], ["m3", "m4", "m5"], ["m6", "m7", "m8", "m9"]]
    assert [(wave.number, wave.of) for wave in found] == [(1, 3), (2, 3), (3, 3)]
    assert [len(wave.later) for wave in found] == [7, 4, 0]
    cells = [cell for wave in found for listed in wave.cells.values() for cell in listed]
    assert sorted(cell.key for cell in cells) == sorted(cell.key for cell in PLAN.cells)
    assert all({cell.model for cell in listed} == {model.name for model in wave.models} for wave in found for listed in wave.cells.values())


@pytest.mark.parametrize(("models", "expected"), [(1, 1), (4, 1), (5, 2), (10, 3), (13, 4)])
def test_the_number_of_waves(models: int, expected: int) -> None:
    plan = make.plan(models=[f"m{number}" for number in range(models)])
    assert len(waves(plan, todo(plan))) == expected


def test_a_finished_model_is_in_no_wave() -> None:
    left = {"cpu": [cell for cell in PLAN.cells if cell.model in {"m0", "m9"} and cell.target == "cpu"]}
    (wave,) = waves(PLAN, left)
    assert [model.name for model in wave.models] == ["m0", "m9"]
    assert list(wave.cells) == ["cpu"]


def test_a_wave_s_bundles_are_built_after_the_previous_wave_s_cells(scene: Scene) -> None:
    executor = FakeExecutor()
    folder, outcome = scene.run(executor)
    assert outcome.failed == {}
    assert executor.built == [["m0", "m1", "m2"], ["m3", "m4", "m5"], ["m6", "m7", "m8", "m9"]]
    assert [job.work for job in executor.jobs] == ["bundles", "run", "run"] * 3
    assert len(list(folder.shards.glob("*.duckdb"))) == 6
    assert set(statuses(folder, scene.tmp).values()) == {"pass"}
    assert len(executor.ran) == len(set(executor.ran)) == len(PLAN.cells)


def test_progress_counts_over_the_whole_run(scene: Scene) -> None:
    scene.run(FakeExecutor())
    assert [line.split(":")[0] for line in scene.lines("wave")] == ["wave 1 of 3", "wave 2 of 3", "wave 3 of 3"]
    assert scene.lines("wave 1")[0].endswith("3 models; 0 of 20 cells are done")
    assert "6 of 20 cells are done, less than a minute left" in scene.lines("wave 2")[0]
    assert scene.lines("cpu:") == [
        "cpu: 10 cells",
        "cpu: 3 of 10 done",
        "cpu: continuing after 3 of 10",
        "cpu: 6 of 10 done",
        "cpu: continuing after 6 of 10",
        "cpu: done",
    ]
    assert [line.split("]")[0] for line in scene.lines("  [")][-1] == "  [10/10"
    assert scene.lines("bundles:")[:3] == ["bundles: 16 to build or find", "bundles: 5 of 16 done", "bundles: continuing after 5 of 16"]
    assert scene.lines("bundles:")[-1] == "bundles: done"


def test_a_small_run_does_not_mention_waves(scene: Scene) -> None:
    scene.run(FakeExecutor(), make.plan(models=("bert", "gpt2")))
    assert scene.lines("wave") == []


def test_an_interrupted_run_continues_in_its_waves(scene: Scene) -> None:
    folder, _ = scene.run(FakeExecutor(ends={}, raises={}), dataclasses.replace(PLAN, cells=PLAN.cells[:7]))
    assert len(folder.finished()) == 7
    executor = FakeExecutor()
    folder.replace_plan(PLAN)
    scene.run(executor, folder=folder)
    assert sorted(executor.ran) == sorted(cell.key for cell in PLAN.cells[7:])
    assert [name for built in executor.built for name in built] == [f"m{number}" for number in range(3, 10)]


LATE = [
    make.failure(kind[0], kind[1], error=ErrorRecord(type=kind[2], severity=Severity.ERROR, message="the machine was busy"))
    for kind in (
        (Status.TIMEOUT, Stage.PREPARE, "export_timeout"),
        (Status.FACTORY_ERROR, Stage.BUILD, "bundle_unfinished"),
        (Status.INFRA_ERROR, Stage.LOAD, "infrastructure"),
    )
]


def test_failures_that_a_busy_machine_may_have_caused_are_rerun_on_resume(scene: Scene) -> None:
    keys = ["m0/tiny/onnxruntime", "m4/tiny/cpu", "m9/tiny/onnxruntime"]
    folder, _ = scene.run(FakeExecutor(outcomes={key: [late] for key, late in zip(keys, LATE, strict=True)}))
    assert {key: statuses(folder, scene.tmp)[key] for key in keys} == dict(
        zip(keys, ("timeout", "factory_error", "infra_error"), strict=True)
    )
    executor = FakeExecutor()
    scene.run(executor, folder=folder)
    assert sorted(executor.ran) == keys
    assert set(statuses(folder, scene.tmp).values()) == {"pass"}
    again = FakeExecutor()
    scene.run(again, folder=folder)
    assert again.jobs == []


def test_a_verdict_of_a_busy_machine_is_kept_until_there_is_a_newer_one(scene: Scene) -> None:
    plan = make.plan(models=("m0", "m1"), targets=("cpu",))
    folder, _ = scene.run(FakeExecutor(outcomes={"m0/tiny/cpu": [LATE[0]]}), plan)
    scene.run(FakeExecutor(dies_after={"cpu": 0}), folder=folder, plan=plan)
    assert statuses(folder, scene.tmp) == {"m0/tiny/cpu": "timeout", "m1/tiny/cpu": "pass"}


def test_a_target_that_dies_in_one_wave_is_retried_in_the_next(scene: Scene) -> None:
    class DiesOnce(FakeExecutor):
        def run(self, job: Any, on_line: Any) -> Ended:
            self.dies_after = {"cpu": 1} if len(self.jobs) < 3 else {}
            return super().run(job, on_line)

    folder, outcome = scene.run(DiesOnce())
    assert [type(error) for error in outcome.failed.values()] == [EngineError]
    found = statuses(folder, scene.tmp)
    assert sorted(key for key, status in found.items() if status == "infra_error") == ["m1/tiny/cpu", "m2/tiny/cpu"]
    assert len([status for status in found.values() if status == "pass"]) == 18


def test_a_target_that_cannot_write_is_not_retried(scene: Scene) -> None:
    executor = FakeExecutor(ends={"cpu": Ended(code=StoreError.exit_code, output="no space left", oom_killed=False)})
    folder, outcome = scene.run(executor)
    assert isinstance(outcome.failed["cpu"], StoreError)
    assert [job.target for job in executor.jobs if job.work == "run"] == ["cpu", "onnxruntime", "onnxruntime", "onnxruntime"]
    assert {key for key, status in statuses(folder, scene.tmp).items() if status == "not_run"} == {f"m{n}/tiny/cpu" for n in range(10)}


def test_the_cache_is_pruned_after_each_wave_but_not_after_a_small_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, list[str]]] = []

    def keep(limit_gb: float, _bundles: Path, later: tuple[ModelPlan, ...]) -> str:
        asked.append((limit_gb, [model.name for model in later]))
        return "removed something"

    monkeypatch.setattr(running, "keep_under", keep)
    scene.run(FakeExecutor(), cache_limit_gb=7.5)
    assert [(limit, len(later)) for limit, later in asked] == [(7.5, 7), (7.5, 4), (7.5, 0)]
    assert len(scene.lines("removed something")) == 3
    scene.run(FakeExecutor(), make.plan(models=("bert", "gpt2"), run_id="small"))
    assert len(asked) == 3


def test_the_remaining_time_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(waving.time, "monotonic", lambda: now[0])
    pace = Pace(100)
    assert pace.tell() == "0 of 100 cells are done"
    pace.done(20)
    now[0] += 150.0
    assert pace.tell() == "20 of 100 cells are done, about 10 minutes left"
    pace.done(75)
    assert pace.tell() == "95 of 100 cells are done, less than a minute left"
    pace.done(5)
    assert pace.tell() == "100 of 100 cells are done"


def keep_export(scene: Scene, key: str, *exporters: str) -> None:
    for exporter in exporters:
        executor = scene.cache / ONNX_DIR / key / exporter
        executor.mkdir(parents=True)
        (executor / "manifest.json").write_text("{}", encoding="utf-8")


def test_a_graph_that_a_target_rejects_is_exported_again_and_rerun(scene: Scene) -> None:
    """Only m1 is exported again, which onnxruntime rejected: not m0, which has all exports, nor m2, which failed later."""
    plan = make.plan(models=("m0", "m1", "m2"), targets=TARGETS)
    executor = FakeExecutor(
        keys={name: f"key-{name}" for name in ("m0", "m1", "m2")},
        outcomes={
            "m0/tiny/onnxruntime": [REFUSED],
            "m1/tiny/onnxruntime": [REFUSED],
            "m2/tiny/onnxruntime": [make.failure(Status.ERROR, Stage.RUN)],
            "m2/tiny/cpu": [REFUSED],
        },
    )
    first, *_ = EXPORTERS
    keep_export(scene, "key-m0", *EXPORTERS)
    keep_export(scene, "key-m1", first)
    keep_export(scene, "key-m2", first)
    folder, outcome = scene.run(executor, plan)
    assert outcome.failed == {}
    assert executor.built == [["m0", "m1", "m2"], ["m1"]]
    assert ["--every-exporter" in job.arguments for job in executor.jobs if job.work == "bundles"] == [False, True]
    assert executor.ran.count("m1/tiny/onnxruntime") == 2
    assert len(executor.ran) == len(plan.cells) + 1
    found = statuses(folder, scene.tmp)
    assert found["m1/tiny/onnxruntime"] == "pass"
    assert (found["m0/tiny/onnxruntime"], found["m2/tiny/onnxruntime"]) == ("unsupported", "error")


def test_a_cell_that_is_rejected_twice_is_not_tried_a_third_time(scene: Scene) -> None:
    plan = make.plan(models=("m0",), targets=TARGETS)
    executor = FakeExecutor(keys={"m0": "key"}, outcomes={"m0/tiny/onnxruntime": [REFUSED, REFUSED, REFUSED]})
    folder, _ = scene.run(executor, plan)
    assert executor.ran.count("m0/tiny/onnxruntime") == 2
    assert statuses(folder, scene.tmp)["m0/tiny/onnxruntime"] == "unsupported"


def test_an_unsupported_precision_needs_no_other_export(scene: Scene) -> None:
    plan = make.plan(models=("m0",), targets=TARGETS)
    error = dataclasses.replace(REFUSED["error"], type="unsupported_dtype")
    executor = FakeExecutor(keys={"m0": "key"}, outcomes={"m0/tiny/onnxruntime": [REFUSED | {"error": error}]})
    scene.run(executor, plan)
    assert executor.built == [["m0"]]


def test_a_cell_that_generates_has_no_other_export(scene: Scene) -> None:
    plan = make.plan(models=("m0",), targets=TARGETS)
    generating = dataclasses.replace(make.SETTINGS, new_tokens=8)
    plan = dataclasses.replace(plan, cells=tuple(dataclasses.replace(cell, settings=generating) for cell in plan.cells))
    executor = FakeExecutor(keys={"m0": "key"}, outcomes={"m0/tiny/onnxruntime": [REFUSED]})
    scene.run(executor, plan)
    assert executor.built == [["m0"]]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there are no workers")
@pytest.mark.parametrize(
    ("asked", "expected"),
    [({}, 4), ({"threads": 2}, 2), ({"cores": 2}, 2), ({"memory_mb": 16384}, 1), ({"jobs": 2}, 2), ({"threads": 8}, 1)],
)
def test_the_parallel_cells_on_a_machine_with_4_cores_and_24_gib(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"total": 24 * 2**30}))
    assert at_once(**({"threads": 1, "memory_mb": 4096, "cores": None, "jobs": 1} | asked)) == expected


def test_the_memory_of_a_container_grows_with_its_parallel_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"total": 24 * 2**30}))
    assert container_mb(4096, 1) == 4096 + 2048
    assert container_mb(4096, 4) == 4 * (4096 + 1024) + 1024
    assert container_mb(16384, 1) == 16384 + 4096 + 1024, "graphs of large models are copied in /tmp"
    assert container_mb(16384, 4) == 24 * 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there are no workers")
@pytest.mark.parametrize("timing", [False, True])
def test_timed_cells_run_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch, *, timing: bool) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"total": 24 * 2**30}))
    executor = FakeExecutor()
    scene.run(executor, make.plan(models=("m0",), timing=timing))
    told = {job.work: (job.at_once, job.arguments[job.arguments.index("--at-once") + 1]) for job in executor.jobs}
    assert told == {"bundles": (3, "3"), "run": (1, "1") if timing else (3, "3")}
