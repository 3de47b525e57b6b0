"""A run's steps with a fake executor that writes real shards: what is stored and printed, and which error decides the exit code."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest
from fake_executor import FakeExecutor
from rich.console import Console

from hwmatrix.errors import ConfigError, EngineError, ImageBuildError, NoTargetAvailableError, StoreError
from hwmatrix.host.console import PlainView
from hwmatrix.host.execution import run
from hwmatrix.host.executors import Ended
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.host.run_order import RunOrder, RunOutcome
from hwmatrix.host.sharing import core_sets
from hwmatrix.host.stale import StaleRule
from hwmatrix.host.target_jobs import TargetWork, run_on_targets
from hwmatrix.store.merge import merge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hwmatrix.records import ModelKey, Plan

PLAN = make.plan()


@dataclasses.dataclass
class Scene:
    """A run's folder, and everything needed to execute the run."""

    tmp: Path
    printed: io.StringIO = dataclasses.field(default_factory=io.StringIO)

    def begin(self, plan: Plan = PLAN) -> RunFolder:
        return RunFolder.create(self.tmp / "out", plan)

    def run(
        self, folder: RunFolder, executor: FakeExecutor, workers: int = 1, handed_over: frozenset[ModelKey] = frozenset()
    ) -> RunOutcome:
        order = RunOrder(
            folder=folder,
            plan=folder.plan(),
            executor=executor,
            reference="cpu",
            cache=self.tmp / "cache",
            workers=workers,
            handed_over=handed_over,
        )
        view = PlainView(Console(file=self.printed, width=200), verbose=False)
        return run(order, view)

    def statuses(self, folder: RunFolder) -> dict[str, tuple[str, str | None]]:
        database = self.tmp / "m.duckdb"
        report = merge([folder.path], database, fresh=True)
        assert report.rejected == ()
        with duckdb.connect(str(database), read_only=True) as connection:
            rows = connection.execute("SELECT cell_key, status, error_type FROM results ORDER BY position").fetchall()
        return {key: (status, error_type) for key, status, error_type in rows}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp=tmp_path)


def test_every_cell_is_run_once(scene: Scene) -> None:
    folder, executor = scene.begin(), FakeExecutor()
    outcome = scene.run(folder, executor)
    assert outcome.failed == {}
    outcome.raise_first()
    assert sorted(executor.ran) == sorted(cell.key for cell in PLAN.cells)
    assert set(scene.statuses(folder).values()) == {("pass", None)}
    assert executor.prepared == [("cpu", "openvino")]
    assert [(job.target, job.work) for job in executor.jobs] == [("cpu", "bundles"), ("cpu", "run"), ("openvino", "run")]
    assert "[2/2]" in scene.printed.getvalue()
    assert "a library's own words" not in scene.printed.getvalue()


def test_a_job_contains_everything_that_the_runner_needs(scene: Scene) -> None:
    folder, executor = scene.begin(), FakeExecutor()
    scene.run(folder, executor)
    job = executor.jobs[1]
    assert (job.plan_dir, job.out, job.cache) == (folder.path, folder.shards, scene.tmp / "cache")
    arguments = dict(zip(job.arguments[::2], job.arguments[1::2], strict=True))
    assert arguments.keys() == {"--target", "--cells", "--host", "--at-once", "--image", "--image-digest"}
    assert arguments["--image"] == "hwmatrix/cpu:0.1.0"
    assert job.memory_mb == 512


def test_local_checkpoints_are_readable_where_bundles_are_built(scene: Scene) -> None:
    model = make.model_plan("mine", weights="/models/mine")
    plan = dataclasses.replace(PLAN, models=(make.model_plan(), model), cells=(make.cell_plan(), make.cell_plan("mine")))
    executor = FakeExecutor()
    scene.run(scene.begin(plan), executor)
    assert executor.jobs[0].also_read == (Path("/models/mine"),)
    assert executor.jobs[1].also_read == ()


def test_an_image_that_cannot_be_built_fails_only_its_target(scene: Scene) -> None:
    folder, executor = scene.begin(), FakeExecutor(broken_images=frozenset({"openvino"}))
    outcome = scene.run(folder, executor)
    assert scene.statuses(folder) == {
        "bert/tiny/cpu": ("pass", None),
        "bert/tiny/openvino": ("infra_error", "image_build_failed"),
        "gpt2/tiny/cpu": ("pass", None),
        "gpt2/tiny/openvino": ("infra_error", "image_build_failed"),
    }
    with pytest.raises(ImageBuildError) as caught:
        outcome.raise_first()
    assert caught.value.exit_code == 4
    assert "no such package" in scene.printed.getvalue()


def test_without_the_reference_image_nothing_can_run(scene: Scene) -> None:
    folder, executor = scene.begin(), FakeExecutor(broken_images=frozenset({"cpu"}))
    with pytest.raises(ImageBuildError):
        scene.run(folder, executor)
    assert executor.jobs == []


def test_the_reference_image_is_built_even_if_it_is_no_target(scene: Scene) -> None:
    executor = FakeExecutor()
    scene.run(scene.begin(make.plan(targets=("openvino",))), executor)
    assert executor.prepared == [("cpu", "openvino")]
    assert [job.target for job in executor.jobs] == ["cpu", "openvino"]


def test_with_all_bundles_from_elsewhere_no_reference_image_is_needed(scene: Scene) -> None:
    executor = FakeExecutor(broken_images=frozenset({"cpu"}))
    folder = scene.begin(make.plan(targets=("openvino",)))
    outcome = scene.run(folder, executor, handed_over=frozenset({make.model_plan("bert").key, make.model_plan("gpt2").key}))
    assert outcome.failed == {}
    assert executor.prepared == [("openvino",)]
    assert [(job.target, job.work) for job in executor.jobs] == [("openvino", "run")]
    assert set(scene.statuses(folder).values()) == {("pass", None)}


def test_a_bundle_that_was_not_made_elsewhere_is_made_here(scene: Scene) -> None:
    executor = FakeExecutor()
    folder = scene.begin(make.plan(targets=("openvino",)))
    scene.run(folder, executor, handed_over=frozenset({make.model_plan("bert").key}))
    assert executor.prepared == [("cpu", "openvino")]
    assert [(job.target, job.work) for job in executor.jobs] == [("cpu", "bundles"), ("openvino", "run")]
    assert json.loads((folder.path / "models-bundles.json").read_bytes()) == [["gpt2", "tiny", 1, 16]]


@pytest.mark.parametrize("oom_killed", [False, True])
def test_a_container_that_dies_keeps_its_finished_cells(scene: Scene, *, oom_killed: bool) -> None:
    folder, executor = scene.begin(), FakeExecutor(dies_after={"cpu": 1}, oom_killed=oom_killed)
    outcome = scene.run(folder, executor)
    assert scene.statuses(folder) == {
        "bert/tiny/cpu": ("pass", None),
        "bert/tiny/openvino": ("pass", None),
        "gpt2/tiny/cpu": ("infra_error", "infrastructure"),
        "gpt2/tiny/openvino": ("pass", None),
    }
    with pytest.raises(EngineError, match="the last words") as caught:
        outcome.raise_first()
    assert ("for memory" in str(caught.value)) == oom_killed
    assert list(folder.shards.glob("*.partial")) == []


def test_a_failed_executor_is_reported_with_its_error(scene: Scene) -> None:
    folder, executor = scene.begin(), FakeExecutor(raises={"openvino": EngineError("the engine went away")})
    outcome = scene.run(folder, executor)
    assert list(outcome.failed) == ["openvino"]
    assert scene.statuses(folder)["bert/tiny/openvino"] == ("infra_error", "infrastructure")
    assert scene.statuses(folder)["bert/tiny/cpu"] == ("pass", None)


def test_an_engine_that_cannot_pass_gpus_has_specific_advice(scene: Scene) -> None:
    message = 'starting a container failed: could not select device driver "" with capabilities: [[gpu]]'
    folder, executor = scene.begin(make.plan(targets=("cpu", "cuda"))), FakeExecutor(raises={"cuda": EngineError(message)})
    scene.run(folder, executor)
    assert scene.statuses(folder)["bert/tiny/cuda"] == ("infra_error", "container_toolkit_missing")


def test_a_full_disk_in_the_runner_is_a_store_error_here(scene: Scene) -> None:
    executor = FakeExecutor(ends={"openvino": Ended(code=7, output="No space left on device", oom_killed=False)})
    outcome = scene.run(scene.begin(), executor)
    with pytest.raises(StoreError, match="No space left on device"):
        outcome.raise_first()


def test_without_bundles_nothing_can_run(scene: Scene) -> None:
    executor = FakeExecutor(ends={"bundles": Ended(code=1, output="Traceback", oom_killed=False)})
    with pytest.raises(EngineError, match=r"the bundles could not be made; \S+bundles\.log has the whole output"):
        scene.run(scene.begin(), executor)
    assert executor.ran == []


def test_a_resumed_run_runs_only_what_is_missing(scene: Scene) -> None:
    folder = scene.begin()
    scene.run(folder, FakeExecutor(dies_after={"cpu": 1}, broken_images=frozenset({"openvino"})))
    executor = FakeExecutor()
    scene.run(RunFolder.latest(scene.tmp / "out"), executor)
    assert sorted(executor.ran) == ["bert/tiny/openvino", "gpt2/tiny/cpu", "gpt2/tiny/openvino"]
    assert set(scene.statuses(folder).values()) == {("pass", None)}
    again = FakeExecutor()
    assert scene.run(folder, again).failed == {}
    assert (again.jobs, again.prepared) == ([], [])
    assert "nothing is missing" in scene.printed.getvalue()


def test_finished_cells_of_a_killed_host_are_saved_and_not_rerun(scene: Scene) -> None:
    folder, executor = scene.begin(), FakeExecutor(raises={"openvino": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        scene.run(folder, executor)
    partial = FakeExecutor(dies_after={"openvino": 1})
    partial._run_cells(dataclasses.replace(executor.jobs[-1], target="openvino"), lambda _line: None)
    folder.salvage()
    after = FakeExecutor()
    scene.run(folder, after)
    assert after.ran == ["gpt2/tiny/openvino"]


def test_unbuildable_models_start_no_job(scene: Scene) -> None:
    models = (make.model_plan(), make.model_plan("big", unbuildable="too large"))
    plan = dataclasses.replace(PLAN, models=models, cells=(make.cell_plan(), make.cell_plan("big")))
    folder, executor = scene.begin(plan), FakeExecutor()
    scene.run(folder, executor)
    assert executor.ran == ["bert/tiny/cpu"]
    assert scene.statuses(folder)["big/tiny/cpu"] == ("factory_error", "unbuildable")


def unavailable(**reasons: str) -> Plan:
    return dataclasses.replace(PLAN, targets=tuple(make.target_plan(name, unavailable=reasons.get(name)) for name in ("cpu", "openvino")))


def test_without_available_targets_the_run_fails(scene: Scene) -> None:
    executor = FakeExecutor()
    with pytest.raises(NoTargetAvailableError, match="cpu: no driver\nopenvino: no device") as caught:
        scene.run(scene.begin(unavailable(cpu="no driver", openvino="no device")), executor)
    assert caught.value.exit_code == 6
    assert (executor.jobs, executor.prepared) == ([], [])


def test_an_unavailable_target_starts_no_job_and_is_not_a_failure(scene: Scene) -> None:
    folder, executor = scene.begin(unavailable(openvino="no device")), FakeExecutor()
    assert scene.run(folder, executor).failed == {}
    assert scene.statuses(folder)["bert/tiny/openvino"] == ("unavailable", "target_unavailable")
    assert {job.target for job in executor.jobs} == {"cpu"}


@pytest.mark.parametrize("name", ["bundles", "cpu"])
def test_an_interrupt_stops_everything(scene: Scene, name: str) -> None:
    executor = FakeExecutor(raises={name: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        scene.run(scene.begin(), executor)
    assert executor.stops >= 1


def test_an_interrupted_cell_is_not_run_and_not_an_infra_error(scene: Scene) -> None:
    folder = scene.begin()
    executor = FakeExecutor(hangs=frozenset({"openvino"}), raises={"cpu": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        scene.run(folder, executor, workers=2)
    assert executor.stops >= 1
    folder.salvage()
    assert set(scene.statuses(folder).values()) == {("not_run", None)}


def test_parallel_targets_run_on_separate_cores(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    executor = FakeExecutor()
    scene.run(scene.begin(), executor, workers=2)
    assert sorted(job.cpuset or "" for job in executor.jobs if job.work == "run") == ["0,1", "2,3"]


@pytest.mark.parametrize(
    ("cores", "workers", "expected"),
    [
        ({0, 1, 2, 3, 4, 5, 6, 7}, 1, [None]),
        ({0, 1, 2, 3}, 1, ["0,1,2,3"]),
        ({0, 1, 2, 3}, 2, ["0,1", "2,3"]),
        ({4, 6, 7}, 2, ["4", "6"]),
        ({0, 1}, 3, ["0", "1", "0"]),
    ],
)
def test_core_sets(monkeypatch: pytest.MonkeyPatch, cores: set[int], workers: int, expected: list[str | None]) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cores)
    assert core_sets(workers) == expected


@pytest.fixture
def folder(scene: Scene) -> Iterator[RunFolder]:
    yield scene.begin()
    assert not list(scene.tmp.rglob(".*.tmp"))


def test_the_latest_run_is_continued(scene: Scene) -> None:
    with pytest.raises(ConfigError, match="holds no run to continue"):
        RunFolder.latest(scene.tmp / "out")
    scene.begin(dataclasses.replace(PLAN, run_id="20260101T000000Z-ffffff"))
    latest = scene.begin(dataclasses.replace(PLAN, run_id="20260101T000001Z-000000"))
    assert RunFolder.latest(scene.tmp / "out") == latest


def test_a_folder_that_cannot_be_written(scene: Scene) -> None:
    (scene.tmp / "out").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        scene.begin()


@pytest.mark.parametrize(("content", "message"), [(None, "cannot be read"), ("{", "not JSON"), ('{"schema": "x"}', "plan version 'x'")])
def test_a_broken_plan(folder: RunFolder, content: str | None, message: str) -> None:
    path = folder.path / "plan.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(StoreError, match=message):
        folder.plan()


def test_the_runner_gets_the_names_of_its_cells(folder: RunFolder) -> None:
    named: Any = json.loads(folder.write_cells("cpu", ["a", "b"]).read_text())
    assert named == ["a", "b"]


SURVEY = TargetWork(work="survey", noun="survey", arguments=("--more",), memory_mb=99)


def survey(scene: Scene, executor: FakeExecutor, *, unavailable: str | None = None, first: Callable[[], None] | None = None) -> RunOutcome:
    plan = dataclasses.replace(PLAN, cells=(), targets=(PLAN.targets[0], dataclasses.replace(PLAN.targets[1], unavailable=unavailable)))
    folder = scene.begin(plan)
    order = RunOrder(folder=folder, plan=plan, executor=executor, reference="openvino", cache=scene.tmp / "cache", workers=1)
    return run_on_targets(order, SURVEY, PlainView(Console(file=scene.printed, width=200), verbose=False), first=first)


def test_work_without_cells_goes_to_every_available_target(scene: Scene) -> None:
    executor = FakeExecutor(ends={"cpu": Ended(code=0, output="", oom_killed=False)})
    assert survey(scene, executor, unavailable="no such thing").failed == {}
    assert executor.prepared == [("cpu",)]
    assert [(job.target, job.work, job.memory_mb) for job in executor.jobs] == [("cpu", "survey", 99)]
    assert executor.jobs[0].arguments[:3] == ("--target", "cpu", "--more")
    assert "openvino: unavailable: no such thing" in scene.printed.getvalue()


def test_a_target_that_fails_does_not_affect_the_others(scene: Scene) -> None:
    ends = {"cpu": Ended(code=9, output="the last words", oom_killed=False), "openvino": Ended(code=0, output="", oom_killed=False)}
    outcome = survey(scene, FakeExecutor(ends=ends))
    assert list(outcome.failed) == ["cpu"]
    with pytest.raises(EngineError, match="the last words"):
        outcome.raise_first()
    assert "openvino: done" in scene.printed.getvalue()


def test_the_first_step_needs_the_reference_image(scene: Scene) -> None:
    done: list[str] = []
    with pytest.raises(ImageBuildError):
        survey(scene, FakeExecutor(broken_images=frozenset({"openvino"})), unavailable="gone", first=lambda: done.append("first"))
    assert done == []
    ends = {"cpu": Ended(code=0, output="", oom_killed=False)}
    assert (
        survey(
            dataclasses.replace(scene, tmp=scene.tmp / "b"), FakeExecutor(ends=ends), unavailable="gone", first=lambda: done.append("first")
        ).failed
        == {}
    )
    assert done == ["first"]


def test_a_survey_without_targets_fails(scene: Scene) -> None:
    plan = dataclasses.replace(PLAN, cells=(), targets=(dataclasses.replace(PLAN.targets[0], unavailable="gone"),))
    order = RunOrder(folder=scene.begin(plan), plan=plan, executor=FakeExecutor(), reference="cpu", cache=scene.tmp / "cache", workers=1)
    with pytest.raises(NoTargetAvailableError):
        run_on_targets(order, SURVEY, PlainView(Console(file=scene.printed, width=200), verbose=False))


def rerun(
    scene: Scene, folder: RunFolder, *, digest: str = "0" * 64, bundle: str = "cd" * 32, max_age: dt.timedelta | None = None
) -> list[str]:
    """The cells that a run with ``--stale`` executes, given these images and bundles."""
    entries = [
        {"model": m.name, "size": "tiny", "batch": m.batch, "sequence_length": m.sequence_length, "digest": bundle} for m in PLAN.models
    ]
    index = {"schema": "hwmatrix/bundle-index/2", "bundles": entries}
    (folder.bundles / "bundles.json").write_text(json.dumps(index), encoding="utf-8")
    executor = FakeExecutor()
    executor.identity = lambda target: (f"hwmatrix/{target}:0.1.0", f"sha256:{digest}")  # type: ignore[method-assign]
    order = RunOrder(
        folder=folder, plan=folder.plan(), executor=executor, reference="cpu", cache=scene.tmp, workers=1, stale=StaleRule(max_age=max_age)
    )
    assert run(order, PlainView(Console(file=scene.printed, width=200), verbose=False)).failed == {}
    return executor.ran


@pytest.fixture
def finished(scene: Scene) -> RunFolder:
    folder = scene.begin()
    scene.run(folder, FakeExecutor())
    return folder


def test_cells_without_changes_are_not_rerun(scene: Scene, finished: RunFolder) -> None:
    assert rerun(scene, finished, digest=(make.identity().image_digest or "").removeprefix("sha256:")) == []
    assert "nothing is stale" in scene.printed.getvalue()


@pytest.mark.parametrize(
    ("moved", "reason"),
    [
        ({"digest": "f" * 64}, "4 another image"),
        ({"bundle": "ef" * 32}, "4 another model"),
        ({"max_age": dt.timedelta(days=0)}, "4 older than 0 days"),
    ],
)
def test_stale_cells_are_rerun_and_the_newest_verdict_counts(scene: Scene, finished: RunFolder, moved: dict[str, Any], reason: str) -> None:
    same = {"digest": (make.identity().image_digest or "").removeprefix("sha256:")}
    assert sorted(rerun(scene, finished, **same | moved)) == sorted(cell.key for cell in PLAN.cells)
    assert reason in scene.printed.getvalue()
    assert set(scene.statuses(finished).values()) == {("pass", None)}


def test_stale_verdicts_are_kept_if_the_new_image_cannot_be_built(scene: Scene, finished: RunFolder) -> None:
    index = {"schema": "hwmatrix/bundle-index/2", "bundles": []}
    (finished.bundles / "bundles.json").write_text(json.dumps(index), encoding="utf-8")
    executor = FakeExecutor(broken_images=frozenset({"openvino"}))
    order = RunOrder(folder=finished, plan=PLAN, executor=executor, reference="cpu", cache=scene.tmp, workers=1, stale=StaleRule())
    assert list(run(order, PlainView(Console(file=scene.printed, width=200), verbose=False)).failed) == ["openvino"]
    assert set(scene.statuses(finished).values()) == {("pass", None)}
