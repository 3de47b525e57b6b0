"""Resuming a run of operator tests: which targets run which tests. Nothing is executed."""

from __future__ import annotations

import dataclasses
import io
import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import factory_plans as make
import pytest
from fake_executor import FakeExecutor
from rich.console import Console

from hwmatrix.cli.main import main
from hwmatrix.errors import StoreError
from hwmatrix.host.console import PlainView
from hwmatrix.host.executors import Ended, Job
from hwmatrix.host.operator_jobs import OperatorRun, run_operators
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.host.run_order import RunOrder
from hwmatrix.records import OperatorResult, Status
from hwmatrix.store.merge import merge
from hwmatrix.store.shard import ShardWriter

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = ("test_abs", "test_add", "test_and", "test_acos")
PLAN = make.plan(models=(), targets=("onnxruntime", "openvino"))


@dataclasses.dataclass
class Executor(FakeExecutor):
    """Writes shards like runners of operator tests. ``asked`` records the requested tests."""

    asked: list[tuple[str, list[str]]] = dataclasses.field(default_factory=list)
    canaries: dict[str, bool | None] = dataclasses.field(default_factory=dict)

    def run(self, job: Job, on_line: Callable[[str], None]) -> Ended:
        if job.work != "operators":
            return Ended(code=0, output="", oom_killed=False)
        assert "--tests=^test_a" in job.arguments
        finished: list[str] = []
        if "--resume" in job.arguments:
            finished = json.loads((job.plan_dir / f"finished-{job.target}.json").read_text(encoding="utf-8"))
        left = [name for name in TESTS if name not in finished]
        self.asked.append((job.target, left))
        canary = self.canaries.get(job.target, True)
        with ShardWriter(job.out, PLAN, make.identity(job.target, uuid.uuid4().hex[:12])) as shard:
            shard.set_canaries(ok=canary, detail="a device")
            for number, name in enumerate(left if canary else ()):
                if number == self.dies_after.get(job.target):
                    return Ended(code=137, output="the last words", oom_killed=False)
                shard.add_operators([result(job.target, name)])
            shard.seal()
        on_line("a library's own words")
        return Ended(code=0, output="", oom_killed=False)


def result(target: str, name: str) -> OperatorResult:
    return OperatorResult(target=target, test=name, operator="Abs", domain="", opset=13, expanded=False, status=Status.PASS, on_target=1.0)


@dataclasses.dataclass
class Scene:
    """A run's folder, and its output."""

    folder: RunFolder
    tmp: Path
    said: io.StringIO = dataclasses.field(default_factory=io.StringIO)

    def run(self, executor: FakeExecutor, *, resume: bool = False) -> None:
        order = RunOrder(folder=self.folder, plan=PLAN, executor=executor, reference="cpu", cache=self.tmp, workers=1)
        view = PlainView(Console(file=self.said, width=200), verbose=False)
        run_operators(OperatorRun(order=order, pattern=self.folder.pattern(), resume=resume), view)

    def tested(self) -> list[tuple[str, str]]:
        database = self.tmp / "matrix.duckdb"
        assert merge([self.folder.path], database, fresh=True).rejected == ()
        with duckdb.connect(str(database), read_only=True) as connection:
            return connection.execute("SELECT target, test FROM operator_results ORDER BY ALL").fetchall()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    folder = RunFolder.create(tmp_path / "out", PLAN)
    folder.write_pattern("^test_a")
    return Scene(folder, tmp_path)


def test_only_missing_tests_are_run(scene: Scene) -> None:
    scene.run(Executor(dies_after={"openvino": 2}))
    assert len(scene.tested()) == 6
    executor = Executor()
    scene.run(executor, resume=True)
    assert executor.asked == [("openvino", ["test_and", "test_acos"])]
    assert scene.tested() == sorted((target, name) for target in ("onnxruntime", "openvino") for name in TESTS)


def test_if_no_test_is_missing_nothing_is_prepared(scene: Scene) -> None:
    scene.run(Executor())
    executor = Executor()
    scene.run(executor, resume=True)
    assert (executor.asked, executor.prepared) == ([], [])
    assert "nothing is missing" in scene.said.getvalue()


@pytest.mark.parametrize("canary", [None, False])
def test_a_target_that_was_unavailable_or_failed_its_canary_is_run_again(scene: Scene, *, canary: bool | None) -> None:
    scene.run(Executor(canaries={"onnxruntime": canary}))
    executor = Executor()
    scene.run(executor, resume=True)
    assert executor.asked == [("onnxruntime", list(TESTS))]
    assert len(scene.tested()) == 2 * len(TESTS)


def test_a_run_without_a_pattern_is_reported(scene: Scene) -> None:
    (scene.folder.path / "tests.json").unlink()
    with pytest.raises(StoreError, match=r"tests\.json"):
        scene.folder.pattern()


@pytest.mark.parametrize("words", [["--targets", "onnxruntime"], ["--tests", "abs"], ["--isolation", "none"]])
def test_selecting_options_are_refused_together_with_resume(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--resume", *words]) == 2
    assert "--resume: the last run is continued as it was planned" in capsys.readouterr().err
