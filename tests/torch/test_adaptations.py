"""Models that really fail as they are planned and work with something changed, through bundles, cells and the merge."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from fault_runs import Case, Order, make_plan, rows, run, write_order

from hwmatrix.host.adapting import lay_down, pending, round_of
from hwmatrix.host.runs import RunFolder
from hwmatrix.records import AdaptRule, Backend, Dtype
from hwmatrix.report.rows import read
from hwmatrix.store.merge import merge

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.records import Plan
    from hwmatrix.report.rows import CellRow

pytestmark = pytest.mark.torch


def planned(case: Case, backend: Backend, **settings: Any) -> Plan:
    """A plan of one cell, without timing, that adapts what fails."""
    plan = make_plan([case], backend=backend)
    cell = dataclasses.replace(plan.cells[0], settings=dataclasses.replace(plan.cells[0].settings, **settings))
    model = dataclasses.replace(plan.models[0], batch=cell.settings.batch)
    return dataclasses.replace(plan, models=(model,), cells=(cell,), timing=False, adapt=AdaptRule())


def work_off(plan: Plan, folder: Path) -> tuple[CellRow, list[tuple[dict[str, Any], str]]]:
    """Run the plan and every round after it as the host does; give the cell, and each attempt with its status."""
    order = write_order(folder, plan)
    _once(plan, order)
    whole = RunFolder(path=folder)
    while cells := pending(plan, whole):
        part = round_of(plan, cells)
        _once(part, Order(plan=lay_down(whole, part).path / "plan.json", cache=order.cache, shards=order.shards))
    merge([folder], folder / "matrix.duckdb")
    read_back = read(folder / "matrix.duckdb")
    (cell,) = read_back.cells
    return cell, [(attempt.adaptation, attempt.status.value) for attempt in read_back.attempts]


def _once(plan: Plan, order: Order) -> None:
    run("bundles", order, armed=False)
    run("run", order, "--target", plan.targets[0].name, "--host", "test", armed=True)


def test_a_model_that_runs_out_of_memory_with_8_samples_works_with_4(tmp_path: Path) -> None:
    case = Case(name="hungry", fault="hungry", memory_mb=1536)  # 8 samples take 2048 MiB, 4 take 1024
    cell, attempts = work_off(planned(case, Backend.CPU, batch=8), tmp_path / "run")
    assert (cell.status, cell.level, cell.batch, cell.adaptation) == ("oom", "Low", 8, {"batch": 4})
    assert attempts == [({"batch": 4}, "pass")]
    asked = "SELECT model, batch, role, adapted_from FROM cells WHERE role IN ('model', 'adapted') ORDER BY batch"
    asked = "SELECT model, batch, role, adapted_from FROM cells WHERE role IN ('model', 'adapted') ORDER BY batch"
    found = rows(tmp_path / "run" / "matrix.duckdb", asked)
    assert [(row["model"], row["batch"], row["role"], row["adapted_from"]) for row in found] == [
        ("hungry", 4, "adapted", "hungry"),
        ("hungry", 8, "model", None),
    ]
    shapes = rows(
        tmp_path / "run" / "matrix.duckdb",
        "SELECT shape[1] AS samples FROM outputs JOIN cells USING (cell_id) WHERE role = 'adapted' AND name = 'last_hidden_state'",
    )
    assert shapes == [{"samples": 4}]  # it was really computed, and compared, with so many


def test_a_precision_that_fails_is_replaced_by_the_next_that_the_target_has(tmp_path: Path) -> None:
    cell, attempts = work_off(planned(Case(name="no-half", fault="no_half"), Backend.CPU, dtype=Dtype.FLOAT16), tmp_path / "run")
    assert (cell.status, cell.level, cell.dtype, cell.adaptation) == ("error", "Low", "float16", {"dtype": "bfloat16"})
    assert attempts == [({"dtype": "bfloat16"}, "pass")]


def test_a_target_without_the_precision_is_believed_and_works_in_its_own(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    cell, attempts = work_off(planned(Case(name="good"), Backend.ONNXRUNTIME, dtype=Dtype.FLOAT16), tmp_path / "run")
    assert (cell.status, cell.error_type, cell.level) == ("unsupported", "unsupported_dtype", "Low")
    assert attempts == [({"dtype": "float32"}, "pass")]


def test_a_target_takes_the_one_export_that_it_is_told_to(tmp_path: Path) -> None:
    """A model that gives wrong numbers does so in every export: each is tried, and the cell stays what it was."""
    pytest.importorskip("openvino")
    cell, attempts = work_off(planned(Case(name="wrong", fault="wrong"), Backend.OPENVINO), tmp_path / "run")
    assert (cell.status, cell.level, cell.adaptation) == ("mismatch", "none", None)
    assert attempts == [({"export": "trace"}, "mismatch")]
    found = rows(tmp_path / "run" / "matrix.duckdb", "SELECT method FROM cells WHERE role IN ('model', 'adapted') ORDER BY role DESC")
    assert [row["method"].split()[0] for row in found] == ["transformers", "openvino.convert_model"]
