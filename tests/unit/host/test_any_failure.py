"""Whichever call of the executor fails, what finished before and after it is merged and reported, and the error decides the exit code."""

from __future__ import annotations

import dataclasses
import io
from typing import TYPE_CHECKING

import duckdb
import factory_plans as make
import pytest
from fake_executor import FakeExecutor
from rich.console import Console

from hwmatrix.app import execution
from hwmatrix.errors import EngineError, HwmatrixError, StoreError
from hwmatrix.host import waves
from hwmatrix.host.console import PlainView
from hwmatrix.host.run_folder import RunFolder, locked
from hwmatrix.host.run_order import RunOrder
from hwmatrix.records import AdaptRule, Dtype, Plan, Stage, Status, Tolerance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hwmatrix.host.executors import Ended, Job

OOM = make.failure(Status.OOM)
REJECTED = make.failure(Status.UNSUPPORTED, Stage.PREPARE)
SETTINGS = dataclasses.replace(make.SETTINGS, batch=8)


def planned() -> Plan:
    """Three models in two waves on two targets. Cells are retried with another batch and with replaced operators."""
    made = make.plan(models=[f"m{number}" for number in range(3)], targets=("cpu", "onnxruntime"))
    return dataclasses.replace(
        made,
        cells=tuple(dataclasses.replace(cell, settings=SETTINGS) for cell in made.cells),
        models=tuple(dataclasses.replace(model, batch=SETTINGS.batch) for model in made.models),
        tolerances={Dtype.FLOAT32: Tolerance(relative_error=0.1, reason="a test")},
        adapt=AdaptRule(),
    )


class Failing(FakeExecutor):
    """Fails at one call: the first is number 0. ``calls`` counts all."""

    fails_at = -1
    error: BaseException = EngineError("the engine is gone", advice="Start it.")
    calls = 0

    def _count(self) -> None:
        self.calls += 1
        if self.calls - 1 == self.fails_at:
            raise self.error

    def prepare(self, targets: Sequence[str]) -> dict[str, HwmatrixError]:
        self._count()
        return super().prepare(targets)

    def run(self, job: Job, on_line: Callable[[str], None]) -> Ended:
        self._count()
        return super().run(job, on_line)


def executor() -> Failing:
    outcomes = {"m0/tiny/cpu": [OOM], "m1/tiny/onnxruntime": [REJECTED]}
    return Failing(outcomes=outcomes, keys={f"m{number}": f"key-{number}" for number in range(3)})


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Failing], dict[str, str]]:
    """Runs the plan with an executor, and returns the verdicts in the database of the reports, by cell."""
    monkeypatch.setattr(waves, "MODELS", 2)
    view = PlainView(Console(file=io.StringIO(), width=200), verbose=False)
    database = tmp_path / "matrix.duckdb"
    monkeypatch.setattr(execution, "merge_and_report", lambda folder, *_: execution.merge_shards([folder.path], database, view, fresh=True))

    def run(failing: Failing) -> dict[str, str]:
        folder = RunFolder.create(tmp_path / "out", planned())
        order = RunOrder(folder=folder, plan=folder.plan(), executor=failing, reference="cpu", cache=tmp_path / "cache", workers=1)
        try:
            execution.run_and_report(order, tmp_path, view)
        except (HwmatrixError, KeyboardInterrupt) as error:
            assert error is failing.error  # noqa: PT017 - whether it is raised depends on the call
        with duckdb.connect(str(database), read_only=True) as connection:
            return dict(connection.execute("SELECT cell_key, status FROM results").fetchall())

    return run


CALLS = 11


def test_the_run_without_failures_has_all_steps(start: Callable[[Failing], dict[str, str]]) -> None:
    whole = executor()
    verdicts = start(whole)
    assert whole.calls == CALLS
    assert set(verdicts) == {cell.key for cell in planned().cells}
    assert "not_run" not in verdicts.values()
    assert {key.partition("+")[2].partition("=")[0] for key in whole.ran} == {"", "batch", "rewrite"}


@pytest.mark.parametrize(
    ("call", "error"), [*((call, EngineError("it is gone")) for call in range(CALLS)), (5, StoreError("full")), (7, KeyboardInterrupt())]
)
def test_what_finished_is_reported(start: Callable[[Failing], dict[str, str]], call: int, error: BaseException) -> None:
    failing = executor()
    failing.fails_at, failing.error = call, error
    verdicts = start(failing)
    assert set(verdicts) == {cell.key for cell in planned().cells}
    lost = [key for key in failing.ran if verdicts.get(key) in {"not_run", "infra_error"}]
    assert lost == []


def test_an_error_of_the_report_does_not_hide_that_of_the_run(tmp_path: Path) -> None:
    folder, said = RunFolder.create(tmp_path, planned()), io.StringIO()
    view = PlainView(Console(file=said, width=200), verbose=False)

    def finish() -> None:
        raise StoreError("the disk is full")

    with pytest.raises(EngineError), execution.finishing(folder, finish, view):
        raise EngineError("the engine is gone")
    assert "the disk is full" in said.getvalue()
    with pytest.raises(StoreError), execution.finishing(folder, finish, view):
        pass


def test_a_folder_is_locked_once(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, planned())
    with locked(folder), pytest.raises(StoreError, match="is working in it"), locked(folder):
        pass
    with locked(folder):
        pass
