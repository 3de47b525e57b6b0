"""Models that really fail as they are planned and work with something changed, through bundles, cells and the merge."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from fault_runs import Case, Order, make_plan, rows, run, write_order

from hwmatrix.host.adapting import lay_down, pending, round_of
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.records import AdaptRule, Backend, Dtype
from hwmatrix.report.rows import read
from hwmatrix.store.merge import merge

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.records import Plan
    from hwmatrix.report.rows import CellRow

pytestmark = pytest.mark.torch


def planned(backend: Backend, *cases: tuple[Case, dict[str, Any]]) -> Plan:
    """A plan of cells with these settings, without timing, that adapts what fails."""
    plan = make_plan([case for case, _ in cases], backend=backend)
    cells = [
        dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, **settings))
        for cell, (_, settings) in zip(plan.cells, cases, strict=True)
    ]
    models = [dataclasses.replace(model, batch=cell.settings.batch) for model, cell in zip(plan.models, cells, strict=True)]
    return dataclasses.replace(plan, models=tuple(models), cells=tuple(cells), timing=False, adapt=AdaptRule())


def work_off(plan: Plan, folder: Path, cache: Path) -> list[tuple[CellRow, list[tuple[dict[str, Any], str]]]]:
    """Run the plan and every round after it as the host does; give each cell, with its attempts and their statuses."""
    order = write_order(folder, plan, cache=cache / "bundles")
    _once(plan, order)
    whole = RunFolder(path=folder)
    while cells := pending(plan, whole):
        part = round_of(plan, cells)
        _once(part, Order(plan=lay_down(whole, part).path / "plan.json", cache=order.cache, shards=order.shards))
    merge([folder], folder / "matrix.duckdb")
    read_back = read(folder / "matrix.duckdb")
    attempts = [(attempt.cell_key, attempt.adaptation, attempt.status.value) for attempt in read_back.attempts]
    return [(cell, [(changed, status) for key, changed, status in attempts if key == cell.cell_key]) for cell in read_back.cells]


def _once(plan: Plan, order: Order) -> None:
    run("bundles", order, armed=False)
    run("run", order, "--target", plan.targets[0].name, "--host", "test", armed=True)


@pytest.mark.long
def test_a_batch_that_is_too_large_and_a_precision_that_fails(tmp_path: Path, shared_cache: Path) -> None:
    hungry = Case(name="hungry", fault="hungry", memory_mb=1536)  # 8 samples take 2048 MiB, 4 take 1024
    plan = planned(Backend.CPU, (hungry, {"batch": 8}), (Case(name="no-half", fault="no_half"), {"dtype": Dtype.FLOAT16}))
    (cell, attempts), (half, others) = work_off(plan, tmp_path / "run", shared_cache)
    assert (cell.status, cell.level, cell.batch, cell.adaptation) == ("oom", "Low", 8, {"batch": 4})
    assert attempts == [({"batch": 4}, "pass")]
    assert (half.status, half.level, half.dtype, half.adaptation) == ("error", "Low", "float16", {"dtype": "bfloat16"})
    assert others == [({"dtype": "bfloat16"}, "pass")]
    asked = "SELECT model, batch, role, adapted_from FROM cells WHERE role IN ('model', 'adapted') AND model = 'hungry' ORDER BY batch"
    found = rows(tmp_path / "run" / "matrix.duckdb", asked)
    assert [(row["model"], row["batch"], row["role"], row["adapted_from"]) for row in found] == [
        ("hungry", 4, "adapted", "hungry"),
        ("hungry", 8, "model", None),
    ]
    shown = "SELECT shape[1] AS samples FROM outputs JOIN cells USING (cell_id)"
    named = "role = 'adapted' AND model = 'hungry' AND name = 'last_hidden_state'"
    shapes = rows(tmp_path / "run" / "matrix.duckdb", f"{shown} WHERE {named}")
    assert shapes == [{"samples": 4}]  # it was really computed, and compared, with so many


@pytest.mark.long
def test_a_target_without_the_precision_is_believed_and_works_in_its_own(tmp_path: Path, shared_cache: Path) -> None:
    pytest.importorskip("onnxruntime")
    ((cell, attempts),) = work_off(
        planned(Backend.ONNXRUNTIME, (Case(name="good"), {"dtype": Dtype.BFLOAT16})), tmp_path / "run", shared_cache
    )
    assert (cell.status, cell.error_type, cell.level) == ("unsupported", "unsupported_dtype", "Low")
    assert attempts == [({"dtype": "float32"}, "pass")]


@pytest.mark.long
def test_a_target_takes_the_one_export_that_it_is_told_to(tmp_path: Path, shared_cache: Path) -> None:
    """A model that gives wrong numbers does so in every export: each is tried, and the cell stays what it was."""
    pytest.importorskip("openvino")
    ((cell, attempts),) = work_off(planned(Backend.OPENVINO, (Case(name="wrong", fault="wrong"), {})), tmp_path / "run", shared_cache)
    assert (cell.status, cell.level, cell.adaptation) == ("mismatch", "none", None)
    assert attempts == [({"export": "trace"}, "mismatch")]
    found = rows(tmp_path / "run" / "matrix.duckdb", "SELECT method FROM cells WHERE role IN ('model', 'adapted') ORDER BY role DESC")
    assert [row["method"].split()[0] for row in found] == ["transformers", "openvino.convert_model"]
