"""Retrying failed cells with a change: which cells, how often, and the effect on a run, a resumed run and its reports."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest
from fake_executor import FakeExecutor
from rich.console import Console

from hwmatrix.host.console import PlainView
from hwmatrix.host.execution import run
from hwmatrix.host.executors import Ended
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.host.run_order import RunOrder
from hwmatrix.host.stale import StaleRule
from hwmatrix.records import AdaptRule, Dtype, Level, Plan, Severity, Stage, Status, Tolerance
from hwmatrix.report.grid import label
from hwmatrix.report.json_report import matrix_document
from hwmatrix.report.markdown import matrix_md
from hwmatrix.report.rows import read
from hwmatrix.report.why import explain
from hwmatrix.store.merge import merge

if TYPE_CHECKING:
    from hwmatrix.report.contract import CellEntry

SETTINGS = dataclasses.replace(make.SETTINGS, batch=8)
HALF = dataclasses.replace(make.SETTINGS, dtype=Dtype.FLOAT16)
OOM = make.failure(Status.OOM)
BERT = "bert/tiny/cpu"


def planned(settings: Any = SETTINGS, **changes: Any) -> Plan:
    """A plan of bert and gpt2 on the CPU with these settings, with adaptations enabled."""
    made = make.plan(targets=("cpu",))
    tolerances = {dtype: Tolerance(relative_error=0.1, reason="a test") for dtype in (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16)}
    return dataclasses.replace(
        made,
        cells=tuple(dataclasses.replace(cell, settings=settings) for cell in made.cells),
        models=tuple(dataclasses.replace(model, batch=settings.batch) for model in made.models),
        tolerances=tolerances,
        adapt=AdaptRule(),
        **changes,
    )


@dataclasses.dataclass
class Scene:
    """A run's folder and its executor."""

    tmp: Path
    executor: FakeExecutor
    plan: Plan = dataclasses.field(default_factory=planned)

    def __post_init__(self) -> None:
        self.folder = RunFolder.create(self.tmp / "out", self.plan)

    def run(self, stale: StaleRule | None = None) -> str:
        printed = io.StringIO()
        order = RunOrder(
            folder=self.folder, plan=self.plan, executor=self.executor, reference="cpu", cache=self.tmp / "cache", workers=1, stale=stale
        )
        run(order, PlainView(Console(file=printed, width=200), verbose=False))
        return printed.getvalue()

    @property
    def database(self) -> Path:
        database = self.tmp / "m.duckdb"
        assert merge([self.folder.path], database, fresh=True).rejected == ()
        return database

    def cell(self, model: str = "bert") -> CellEntry:
        document = matrix_document(read(self.database))
        return next(cell for cell in document.cells if cell.model == model)


def test_a_batch_is_halved_until_it_fits_and_the_cell_has_level_low(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FakeExecutor(outcomes={BERT: [OOM], f"{BERT}+batch=4": [OOM]}))
    told = scene.run()
    assert scene.executor.ran == [BERT, "gpt2/tiny/cpu", f"{BERT}+batch=4", f"{BERT}+batch=2"]
    assert scene.executor.built == [["bert", "gpt2"], ["bert, batch 4"], ["bert, batch 2"]]
    assert f"{BERT}+batch=2" in told
    cell = scene.cell()
    assert (cell.status, cell.level, cell.settings.batch) == (Status.OOM, Level.LOW, 8)
    assert cell.error is not None
    assert cell.adaptation is not None
    assert (cell.adaptation.changed, cell.adaptation.words) == ({"batch": 2}, "batch 2 instead of 8")
    assert [(attempt.changed, attempt.status) for attempt in cell.attempts] == [({"batch": 4}, Status.OOM), ({"batch": 2}, Status.PASS)]
    assert cell.attempts[1].parity is not None
    assert all(attempt.evidence.command for attempt in cell.attempts)
    other = scene.cell("gpt2")
    assert (other.status, other.adaptation, other.attempts) == (Status.PASS, None, ())


def test_after_a_failed_precision_the_next_in_the_list_is_tried(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FakeExecutor(outcomes={BERT: [make.failure(Status.MISMATCH)]}), planned(HALF))
    scene.run()
    assert scene.executor.ran[2:] == [f"{BERT}+dtype=bfloat16"]
    assert scene.executor.built[1:] == [["bert"]]  # its own bundle: the same weights, inputs and expected outputs
    cell = scene.cell()
    assert (cell.status, cell.level, cell.settings.dtype) == (Status.MISMATCH, Level.LOW, Dtype.FLOAT16)
    assert cell.adaptation is not None
    assert cell.adaptation.words == "bfloat16 instead of float16"


@pytest.mark.parametrize(
    ("bfloat16", "tried"),
    [
        pytest.param({}, [], id="passes"),
        pytest.param(make.failure(Status.MISMATCH), [f"{BERT}+dtype=float32", f"{BERT}/bfloat16+dtype=float32"], id="fails"),
    ],
)
def test_a_change_that_is_a_cell_of_the_run_is_not_tried_again(tmp_path: Path, bfloat16: dict[str, Any], tried: list[str]) -> None:
    made = planned(HALF)
    cell = made.cells[0]
    other = dataclasses.replace(cell, key=f"{BERT}/bfloat16", settings=dataclasses.replace(HALF, dtype=Dtype.BFLOAT16))
    plan = dataclasses.replace(made, cells=(cell, other))
    scene = Scene(tmp_path, FakeExecutor(outcomes={BERT: [make.failure(Status.MISMATCH)], other.key: [bfloat16]}), plan)
    scene.run()
    assert scene.executor.ran == [BERT, other.key, *tried]


def test_another_export_is_tried_before_a_precision_that_is_a_cell_of_the_run(tmp_path: Path) -> None:
    key = "bert/tiny/openvino"
    made = planned(HALF)
    (cell,) = make.plan(models=("bert",), targets=("openvino",)).cells
    half = dataclasses.replace(cell, settings=dataclasses.replace(made.cells[0].settings, dtype=Dtype.FLOAT16))
    whole = dataclasses.replace(half, key=f"{key}/float32", settings=dataclasses.replace(half.settings, dtype=Dtype.FLOAT32))
    plan = dataclasses.replace(made, cells=(half, whole), targets=(*made.targets, make.target_plan("openvino")))
    wrong = make.failure(Status.MISMATCH) | {"preparation": ("transformers_export",)}
    scene = Scene(tmp_path, FakeExecutor(outcomes={key: [wrong], f"{key}+export=trace": [wrong]}), plan)
    scene.run()
    assert scene.executor.ran[:3] == [key, whole.key, f"{key}+export=trace"]
    assert f"{key}+dtype=float32" not in scene.executor.ran


def test_operators_are_replaced_where_a_target_can_and_the_other_export_does_not_help(tmp_path: Path) -> None:
    key = "bert/tiny/executorch"
    plan = dataclasses.replace(make.plan(models=("bert",), targets=("executorch",)), adapt=AdaptRule())
    wrong = make.failure(Status.MISMATCH) | {"preparation": ("transformers_export",)}
    scene = Scene(tmp_path, FakeExecutor(outcomes={key: [wrong], f"{key}+export=torch": [wrong]}), plan)
    scene.run()
    assert scene.executor.ran == [key, f"{key}+export=torch", f"{key}+rewrite=True"]


def test_a_smaller_batch_that_is_a_cell_of_the_run_is_not_tried_again(tmp_path: Path) -> None:
    made = planned()
    four = dataclasses.replace(SETTINGS, batch=4)
    cell, model = made.cells[0], made.models[0]
    other = dataclasses.replace(cell, key=f"{BERT}/b4", settings=four)
    plan = dataclasses.replace(made, cells=(cell, other), models=(model, dataclasses.replace(model, batch=4)))
    scene = Scene(tmp_path, FakeExecutor(outcomes={BERT: [OOM], other.key: [OOM]}), plan)
    scene.run()
    assert scene.executor.ran == [BERT, other.key, f"{BERT}+batch=2", f"{other.key}+batch=2"]


@pytest.mark.parametrize(("new_tokens", "tried"), [(0, ["+export=trace"]), (8, [])])
def test_a_cell_that_generates_has_no_other_export(tmp_path: Path, new_tokens: int, tried: list[str]) -> None:
    key = "bert/tiny/openvino"
    made = planned()
    settings = dataclasses.replace(made.cells[0].settings, new_tokens=new_tokens)
    cells = tuple(dataclasses.replace(cell, settings=settings) for cell in make.plan(models=("bert",), targets=("openvino",)).cells)
    plan = dataclasses.replace(made, cells=cells, targets=(*made.targets, make.target_plan("openvino")))
    wrong = make.failure(Status.MISMATCH) | {"preparation": ("transformers_export",)}
    scene = Scene(tmp_path, FakeExecutor(outcomes={key: [wrong]}), plan)
    scene.run()
    assert scene.executor.ran == [key, *(f"{key}{change}" for change in tried)]


@pytest.mark.parametrize(("new_tokens", "retried"), [(0, True), (8, False)])
def test_nothing_is_tried_where_the_target_cannot_generate(tmp_path: Path, new_tokens: int, *, retried: bool) -> None:
    key = "bert/tiny/qnn"
    made = planned()
    settings = dataclasses.replace(made.cells[0].settings, dtype=Dtype.FLOAT16, new_tokens=new_tokens)
    cells = tuple(dataclasses.replace(cell, settings=settings) for cell in make.plan(models=("bert",), targets=("qnn",)).cells)
    adapt = AdaptRule(precision={Dtype.FLOAT16: (Dtype.A16W8,)}, export=False, rewrite=False)
    tolerances = made.tolerances | {Dtype.A16W8: made.tolerances[Dtype.FLOAT32]}
    targets = (*made.targets, make.target_plan("qnn"))
    plan = dataclasses.replace(made, cells=cells, targets=targets, adapt=adapt, tolerances=tolerances)
    scene = Scene(tmp_path, FakeExecutor(outcomes={key: [make.failure(Status.UNSUPPORTED)]}), plan)
    scene.run()
    assert scene.executor.ran == [key, *([f"{key}+dtype=a16w8"] if retried else [])]


def test_if_no_change_helps_the_cell_keeps_its_failure_and_all_attempts(tmp_path: Path) -> None:
    outcomes = {BERT: [OOM], **{f"{BERT}+{change}": [OOM] for change in ("batch=4", "batch=2", "batch=1")}}
    outcomes |= {f"{BERT}+dtype={name}": [make.failure(Status.ERROR)] for name in ("bfloat16", "float16")}
    scene = Scene(tmp_path, FakeExecutor(outcomes=outcomes))
    scene.run()
    cell = scene.cell()
    assert (cell.status, cell.level, cell.adaptation) == (Status.OOM, Level.NONE, None)
    assert [attempt.status for attempt in cell.attempts] == [Status.OOM] * 3 + [Status.ERROR] * 2


def test_nothing_is_tried_if_the_plan_disables_it(tmp_path: Path) -> None:
    plan = dataclasses.replace(planned(), adapt=None)
    scene = Scene(tmp_path, FakeExecutor(outcomes={BERT: [OOM]}), plan)
    scene.run()
    assert scene.executor.ran == [cell.key for cell in plan.cells]
    assert (scene.cell().level, scene.cell().attempts) == (Level.NONE, ())


def test_resume_runs_only_attempts_that_are_missing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FakeExecutor(outcomes={BERT: [OOM]}))
    scene.plan = dataclasses.replace(scene.plan, adapt=None)  # as if the run had been interrupted before
    scene.run()
    scene.plan, scene.executor = planned(), FakeExecutor()
    scene.run()
    assert scene.executor.ran == [f"{BERT}+batch=4"]
    assert scene.cell().level is Level.LOW
    scene.executor = FakeExecutor()
    assert "nothing is missing" in scene.run()
    assert scene.executor.ran == []


def test_an_attempt_whose_container_died_is_an_infra_error_and_repeated_on_resume(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FakeExecutor(outcomes={BERT: [OOM]}))
    scene.plan = dataclasses.replace(scene.plan, adapt=None)  # as if the run had been interrupted before
    scene.run()
    scene.plan, scene.executor = planned(), FakeExecutor(dies_after={"cpu": 0})
    scene.run()
    cell = scene.cell()
    assert (cell.status, cell.level) == (Status.OOM, Level.NONE)
    assert [attempt.status for attempt in cell.attempts] == [Status.INFRA_ERROR]
    scene.executor = FakeExecutor()
    scene.run()
    assert scene.cell().level is Level.LOW


def test_a_new_verdict_is_not_combined_with_earlier_attempts(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FakeExecutor(outcomes={BERT: [OOM]}))
    scene.run()
    assert scene.cell().level is Level.LOW
    keys = {model.name: "cd" * 32 for model in scene.plan.models}
    scene.executor = FakeExecutor(outcomes={BERT: [make.failure(Status.TIMEOUT)]}, keys=keys)
    scene.run(StaleRule(max_age=dt.timedelta(0)))
    cell = scene.cell()
    assert (cell.status, cell.level, cell.attempts) == (Status.TIMEOUT, Level.NONE, ())


def test_a_target_whose_runner_died_gets_no_attempts_in_the_same_run(tmp_path: Path) -> None:
    executor = FakeExecutor(outcomes={BERT: [OOM]}, ends={"cpu": Ended(code=1, output="no", oom_killed=False)})
    scene = Scene(tmp_path, executor)
    scene.run()
    assert [job.work for job in executor.jobs] == ["bundles", "run"]


def test_reports_show_the_failure_and_the_change_that_works(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FakeExecutor(outcomes={BERT: [OOM]}))
    scene.run()
    rows = read(scene.database)
    assert label(rows.cells[0]) == "🟠 Low · out of memory; works with batch 4 instead of 8"
    written = matrix_md(rows)
    assert label(rows.cells[0]) in written
    assert "batch 4 instead of 8 | pass" in " ".join(written.split())
    (answer,) = explain(scene.database, "bert", "cpu")
    assert answer.error is not None
    assert [attempt.status for attempt in answer.attempts] == [Status.PASS]


def test_a_round_has_a_plan_of_the_same_run_with_the_same_weights(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FakeExecutor(outcomes={BERT: [OOM]}))
    scene.run()
    last = scene.executor.jobs[-1]
    written = json.loads((last.plan_dir / "plan.json").read_text(encoding="utf-8"))
    assert written["run_id"] == scene.plan.run_id
    assert last.out == scene.folder.shards
    (model,) = written["models"]
    original = scene.plan.models[0]
    assert (model["batch"], model["seed"], model["config"], model["weights"]) == (4, original.seed, original.config, original.weights)
    assert written["cells"][0]["limits"] == dataclasses.asdict(scene.plan.cells[0].limits)


def test_a_reference_that_ran_out_of_memory_gets_a_smaller_batch(tmp_path: Path) -> None:
    words = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 33554432 bytes"
    error = dataclasses.replace(OOM["error"], type="factory_failed", severity=Severity.ERROR, message=words)
    scene = Scene(tmp_path, FakeExecutor(outcomes={BERT: [make.failure(Status.FACTORY_ERROR, Stage.BUILD, error=error)]}))
    scene.run()
    cell = scene.cell()
    assert (cell.status, cell.level) == (Status.FACTORY_ERROR, Level.LOW)
    assert cell.adaptation is not None
