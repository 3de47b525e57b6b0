"""How a run is split into parts: nothing lost, about equally long, and the slowest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import factory_plans as make
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmatrix.host.cluster.parts import PART_S, costs, grouped
from hwmatrix.records import Status
from hwmatrix.store.merge import merge

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.records import CellPlan, Plan

TARGETS = ("cpu", "openvino")


def _todo(plan: Plan) -> dict[str, tuple[CellPlan, ...]]:
    return {target: tuple(cell for cell in plan.cells if cell.target == target) for target in TARGETS}


@given(seconds=st.lists(st.floats(0.01, 300), min_size=1, max_size=40), workers=st.integers(1, 12))
def test_every_cell_is_in_one_part(seconds: list[float], workers: int) -> None:
    plan = make.plan(models=[f"m{number}" for number in range(len(seconds))], targets=TARGETS)
    known = {cell.key: seconds[int(cell.model[1:])] for cell in plan.cells}
    groups = grouped(plan, _todo(plan), known, workers)
    assert sorted(cell.key for group in groups for cells in group.cells.values() for cell in cells) == sorted(known)
    assert sorted(model.name for group in groups for model in group.models) == sorted(model.name for model in plan.models)
    for group in groups:
        assert {model.key for model in group.models} == {cell.model_key for cells in group.cells.values() for cell in cells}
    assert [group.cost_s for group in groups] == sorted((group.cost_s for group in groups), reverse=True)
    longest_first = max(PART_S, sum(seconds) / min(len(seconds), max(1, workers)))  # a greedy split is never worse than twice the best
    assert groups[0].cost_s <= 2 * max(longest_first, *seconds)


def test_parts_are_long_enough_and_there_is_one_for_each_worker() -> None:
    plan = make.plan(models=[f"m{number}" for number in range(40)], targets=TARGETS)
    assert len(grouped(plan, _todo(plan), {}, workers=1)) == 2  # 40 models at 2 s on each target, in parts of a minute
    assert len(grouped(plan, _todo(plan), {}, workers=9)) == 5
    assert len(grouped(plan, _todo(plan), {}, workers=500)) == 40


@pytest.mark.parametrize(("workers", "groups"), [(1, 5), (2, 6), (4, 8), (5, 5), (7, 7)])
def test_each_worker_gets_as_many_parts_as_the_others(workers: int, groups: int) -> None:
    plan = make.plan(models=[f"m{number}" for number in range(150)], targets=["cpu"])
    assert len(grouped(plan, {"cpu": plan.cells}, {}, workers)) == groups  # 150 models at 2 s: five minutes


def test_cells_that_are_not_timed_are_expected_to_be_short() -> None:
    plan = make.plan(models=[f"m{number}" for number in range(150)], targets=["cpu"], timing=False)
    assert len(grouped(plan, {"cpu": plan.cells}, {}, workers=1)) == 2  # half a second each


def test_a_cell_never_measured_counts_as_the_median_of_its_target() -> None:
    plan = make.plan(models=["a", "b", "c", "d"], targets=TARGETS)
    known = {"a/tiny/cpu": 1.0, "b/tiny/cpu": 30.0, "c/tiny/cpu": 50.0}
    groups = grouped(plan, _todo(plan), known, workers=8)
    assert {group.models[0].name: group.cost_s for group in groups} == {"a": 30.0, "b": 30.0, "c": 50.0, "d": 30.0}  # a: on openvino


def test_costs_come_from_the_latest_execution_of_each_cell(tmp_path: Path) -> None:
    plan = make.plan(models=["bert", "gpt2"], targets=["cpu"])
    bert, gpt2 = plan.cells
    folder = make.run_folder(tmp_path, plan)
    early, late = "2026-11-25T10:00:00.000000", "2026-11-25T11:00:00.000000"
    first = [make.result(bert, wall_ms=9000.0, started_at=early), make.result(gpt2, wall_ms=500.0, started_at=early)]
    make.write_shard(folder / "shards", plan, shard_id="a" * 12, results=first)
    again = make.result(bert, wall_ms=1500.0, started_at=late, **make.failure(Status.ERROR))
    make.write_shard(folder / "shards", plan, shard_id="b" * 12, results=[again])
    merge([folder], tmp_path / "m.duckdb", fresh=True)
    assert costs([tmp_path / "m.duckdb"]) == {bert.key: 1.5, gpt2.key: 0.5}


def test_without_a_readable_database_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "broken.duckdb").write_bytes(b"no database")
    assert costs([tmp_path / "missing.duckdb", tmp_path / "broken.duckdb"]) == {}


@pytest.mark.parametrize("workers", [1, 3])
def test_nothing_to_do_is_no_part(workers: int) -> None:
    plan = make.plan(models=["bert"])
    assert [group.models for group in grouped(plan, {"cpu": ()}, {}, workers)] == []
