"""A run that is spread over several folders: merging them loses nothing, in any grouping and order."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmatrix.cli import main
from hwmatrix.errors import StoreError
from hwmatrix.records import Backend, Dtype, Limits, Plan, Settings, Status, Tolerance, to_json
from hwmatrix.records.backends import OnnxUse
from hwmatrix.store import merge as merging
from hwmatrix.store.history import add
from hwmatrix.store.merge import merge
from hwmatrix.store.planned import united
from hwmatrix.store.reading import reading
from hwmatrix.store.sidecar import sidecar_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BERT = r"model bert \(tiny, batch 1, length 16\)"
WHOLE = make.plan(models=("bert", "gpt2", "vit"), targets=("cpu", "onnxruntime", "openvino"))


def part(plan: Plan, targets: Sequence[str]) -> Plan:
    """One machine's part of a plan: its targets and their cells."""
    kept = tuple(target for target in plan.targets if target.name in targets)
    return dataclasses.replace(plan, targets=kept, cells=tuple(cell for cell in plan.cells if cell.target in targets))


def folder_of(parent: Path, plan: Plan, *targets: str, shard_ids: Sequence[str] = ()) -> Path:
    """The folder of a machine that executed some targets of a plan, with a shard for each."""
    mine = part(plan, targets)
    folder = make.run_folder(parent, mine)
    for target, shard_id in itertools.zip_longest(targets, shard_ids):
        make.write_shard(folder / "shards", mine, target, shard_id or f"{target:0>12}")
    return folder


def seen(database: Path) -> dict[str, tuple[str, str]]:
    """Status and execution of each cell in the view ``matrix``, by the cell's key."""
    with reading(database) as connection:
        found = connection.execute("SELECT cell_key, status, cell_id FROM matrix ORDER BY position").fetchall()
    assert len(found) == len({key for key, *_ in found})
    return {key: (status, cell_id) for key, status, cell_id in found}


def test_two_machines_that_each_ran_a_target_of_one_plan(tmp_path: Path) -> None:
    folders = [folder_of(tmp_path / name, WHOLE, name) for name in ("cpu", "openvino")]
    for order in itertools.permutations(folders):
        database = tmp_path / order[0].parent.name / "m.duckdb"
        report = merge(order, database)
        assert (len(report.merged), report.rejected) == (2, ())
        assert {key: status for key, (status, _) in seen(database).items()} == {
            cell.key: "pass" for cell in WHOLE.cells if cell.target != "onnxruntime"
        }
        with reading(database) as connection:
            asked = connection.execute("SELECT hardware, count(*) FROM hardware_results GROUP BY hardware ORDER BY hardware")
            assert asked.fetchall() == [("cpu", 3), ("openvino", 3)]


def test_merging_folders_one_after_the_other_equals_merging_both_at_once(tmp_path: Path) -> None:
    first, second = (folder_of(tmp_path / name, WHOLE, name) for name in ("cpu", "openvino"))
    merge([first, second], tmp_path / "at_once.duckdb")
    for folder in (second, first, second):
        merge([folder], tmp_path / "apart.duckdb")
    assert seen(tmp_path / "apart.duckdb") == seen(tmp_path / "at_once.duckdb")


def test_cells_that_an_earlier_version_lost_are_reported_and_can_be_restored(tmp_path: Path) -> None:
    first, second = (folder_of(tmp_path / name, WHOLE, name) for name in ("cpu", "openvino"))
    database = tmp_path / "m.duckdb"
    merge([first, second], database)
    with duckdb.connect(str(database)) as connection:  # it stored the plan of one folder and the shards of both
        plan = (second / "plan.json").read_text()
        connection.execute("UPDATE runs SET plan = ?", [plan])
        connection.execute("DELETE FROM planned WHERE target = 'cpu'")
    before = database.read_bytes()
    with pytest.raises(StoreError, match=r"no report would show .*bert/tiny/cpu of shard 000000000cpu") as caught:
        merge([second], database)
    assert "all folders of the run" in caught.value.advice
    assert database.read_bytes() == before
    merge([first], database)
    assert len(seen(database)) == 6


def test_a_merge_that_would_hide_a_cell_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, database = folder_of(tmp_path / "a", WHOLE, "cpu"), tmp_path / "m.duckdb"
    put = merging.put

    def forgetful(connection: duckdb.DuckDBPyConnection, plan: Plan, _text: str | None) -> None:
        put(connection, dataclasses.replace(plan, cells=plan.cells[1:]))

    monkeypatch.setattr(merging, "put", forgetful)
    monkeypatch.setattr(merging, "_unplanned", lambda *_: {})  # it would refuse the shard first
    with pytest.raises(StoreError, match="bert/tiny/cpu of shard 000000000cpu"):
        merge([folder], database)
    assert not database.exists()


def test_a_shard_in_the_folder_of_another_machine_is_refused_by_name(tmp_path: Path) -> None:
    first, second = (folder_of(tmp_path / name, WHOLE, name) for name in ("cpu", "openvino"))
    for path in (second / "shards").iterdir():
        path.rename(first / "shards" / path.name)
    (rejection,) = merge([first], tmp_path / "m.duckdb").rejected
    assert rejection.file.startswith("openvino-")
    assert "no plan of its run contains its cells bert/tiny/openvino, gpt2/tiny/openvino" in rejection.reason
    assert merge([first, second], tmp_path / "m.duckdb").rejected == ()  # accepted together with the plan of these cells
    assert len(seen(tmp_path / "m.duckdb")) == 6


def test_cells_of_another_run_in_a_shard_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, WHOLE, "cpu")
    (shard,) = (folder / "shards").glob("*.duckdb")
    make.rewrite(shard, "UPDATE cells SET run_id = 'another'")
    (rejection,) = merge([folder], tmp_path / "m.duckdb").rejected
    assert "cells has a row with the run_id another" in rejection.reason


def test_cells_withdrawn_by_a_new_plan_are_reported_and_hide_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, WHOLE, "cpu")
    now = part(dataclasses.replace(WHOLE, cells=WHOLE.cells[3:], withdrawn=("bert/tiny/cpu",)), ["cpu"])
    (folder / "plan.json").write_text(to_json(now))
    assert main.main(["merge", str(folder), "--database", str(tmp_path / "m.duckdb")]) == 0
    assert "not shown, since a new plan of their run dropped them: 1 cell" in capsys.readouterr().out
    assert list(seen(tmp_path / "m.duckdb")) == ["gpt2/tiny/cpu", "vit/tiny/cpu"]
    assert merge([folder], tmp_path / "m.duckdb").withdrawn == ("bert/tiny/cpu",)


def test_after_a_change_of_the_matrix_older_shards_count_for_the_remaining_cells(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, WHOLE, "cpu")
    now = part(dataclasses.replace(WHOLE, cells=WHOLE.cells[3:], matrix_sha256="cd" * 32), ["cpu"])  # how earlier versions replanned
    (folder / "plan.json").write_text(to_json(now))
    report = merge([folder], tmp_path / "m.duckdb")
    assert (report.rejected, report.withdrawn) == ((), ("bert/tiny/cpu",))
    assert {status for status, _ in seen(tmp_path / "m.duckdb").values()} == {"pass"}
    assert merge([folder], tmp_path / "m.duckdb").withdrawn == ("bert/tiny/cpu",)


def changed_cell(plan: Plan, **changes: Any) -> Plan:
    return dataclasses.replace(plan, cells=(dataclasses.replace(plan.cells[0], **changes), *plan.cells[1:]))


def changed_model(plan: Plan, **changes: Any) -> Plan:
    return dataclasses.replace(plan, models=(dataclasses.replace(plan.models[0], **changes), *plan.models[1:]))


def changed_target(plan: Plan, **changes: Any) -> Plan:
    return dataclasses.replace(plan, targets=(dataclasses.replace(plan.targets[0], **changes), *plan.targets[1:]))


CONTRADICTIONS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "settings": (
        lambda plan: changed_cell(plan, settings=Settings(dtype=Dtype.FLOAT32, batch=4, sequence_length=16, threads=1)),
        r"cell bert/tiny/cpu: settings\.batch is 1 in the one and 4 in the other",
    ),
    "limits": (
        lambda plan: changed_cell(plan, limits=Limits(timeout_s=31.0, memory_mb=512)),
        r"cell bert/tiny/cpu: limits\.timeout_s is 30\.0 in the one and 31\.0",
    ),
    "model": (
        lambda plan: changed_model(plan, seed=7),
        rf"{BERT}: seed is 0 in the one and 7 in the other",
    ),
    "weights": (
        lambda plan: changed_model(plan, weights="/somewhere"),
        rf"{BERT}: weights is 'recipe' in the one and 'those of a",
    ),
    "target": (lambda plan: changed_target(plan, backend=Backend.QNN), r"target cpu: backend is 'cpu' in the one and 'qnn' in the other"),
    "tolerance": (
        lambda plan: dataclasses.replace(plan, tolerances={Dtype.FLOAT32: Tolerance(relative_error=0.5, reason="a test")}),
        r"the run 20260102T030405Z-abc123: tolerances is ",
    ),
    "timing": (
        lambda plan: dataclasses.replace(plan, timing=False),
        r"the run 20260102T030405Z-abc123: timing is True in the one and False",
    ),
    "matrix": (lambda plan: dataclasses.replace(plan, matrix_sha256="cd" * 32), r"matrix_sha256 is 'abab"),
}


def test_a_plan_of_a_version_without_the_field_onnx_belongs_to_the_same_run(tmp_path: Path) -> None:
    older = folder_of(tmp_path / "a", changed_target(WHOLE, onnx=None), "cpu")
    newer = folder_of(tmp_path / "b", changed_target(WHOLE, onnx=OnnxUse.NONE), "cpu", shard_ids=["bbbbbbbbbbbb"])
    assert merge([older, newer], tmp_path / "z.duckdb").rejected == ()


@pytest.mark.parametrize("kind", CONTRADICTIONS)
@pytest.mark.parametrize("apart", [False, True])
def test_contradicting_plans_are_refused_by_name(tmp_path: Path, kind: str, *, apart: bool) -> None:
    change, what = CONTRADICTIONS[kind]
    first, second = (make.run_folder(tmp_path / name, part(plan, ["cpu"])) for name, plan in (("a", WHOLE), ("b", change(WHOLE))))
    database = tmp_path / "z.duckdb"
    if apart:
        merge([first], database)
        before = database.read_bytes()
        with pytest.raises(StoreError, match=r"z\.duckdb") as caught:
            merge([second], database)
        assert database.read_bytes() == before
    else:
        with pytest.raises(StoreError, match=what) as caught:
            merge([first, second], database)
        assert str(first / "plan.json") in caught.value.message
        assert not database.exists()
    assert str(second / "plan.json") in caught.value.message
    assert "contradict each other" in caught.value.message
    assert caught.value.advice


def test_a_target_that_another_machine_has_is_not_unavailable(tmp_path: Path) -> None:
    here = part(WHOLE, ["cpu"])
    there = changed_target(here, unavailable="no such processor")
    folders = [make.run_folder(tmp_path / name, plan) for name, plan in (("a", here), ("b", there))]
    for order in (folders, folders[::-1]):
        merge(order, tmp_path / "m.duckdb", fresh=True)
        assert {status for status, _ in seen(tmp_path / "m.duckdb").values()} == {"not_run"}
    merge(folders[1:], tmp_path / "m.duckdb", fresh=True)
    assert {status for status, _ in seen(tmp_path / "m.duckdb").values()} == {"unavailable"}


def test_a_model_that_only_one_machine_can_fetch(tmp_path: Path) -> None:
    fetched = changed_model(part(WHOLE, ["cpu"]), weights="/cache/a", revision="abc")
    elsewhere = changed_model(part(WHOLE, ["openvino"]), weights="hub", unbuildable="no network")
    folder = make.run_folder(tmp_path / "a", fetched)
    make.write_shard(folder / "shards", fetched, "cpu", "aaaaaaaaaaaa")
    report = merge([make.run_folder(tmp_path / "b", elsewhere), folder], tmp_path / "m.duckdb")
    assert report.rejected == ()
    assert seen(tmp_path / "m.duckdb")["bert/tiny/cpu"][0] == "pass"
    assert seen(tmp_path / "m.duckdb")["bert/tiny/openvino"][0] == "not_run"
    other = changed_model(part(WHOLE, ["openvino"]), weights="/cache/b", revision="def")
    with pytest.raises(StoreError, match="revision is 'abc' in the one and 'def'"):
        merge([folder, make.run_folder(tmp_path / "c", other)], tmp_path / "n.duckdb")


def test_a_cell_without_its_model_is_refused(tmp_path: Path) -> None:
    folder = make.run_folder(tmp_path, dataclasses.replace(WHOLE, models=WHOLE.models[1:]))
    with pytest.raises(StoreError, match="has the cell bert/tiny/cpu, but no model bert"):
        merge([folder], tmp_path / "m.duckdb")


def test_a_history_combines_the_parts_of_a_run_from_two_databases(tmp_path: Path) -> None:
    databases = []
    for name in ("cpu", "openvino"):
        databases.append(tmp_path / f"{name}.duckdb")
        merge([folder_of(tmp_path / name, WHOLE, name)], databases[-1])
    for order in (databases, databases[::-1]):
        history = tmp_path / f"history-{order[0].name}"
        add(history, order)
        add(history, order)
        assert {key: status for key, (status, _) in seen(history).items()} == {
            cell.key: "pass" for cell in WHOLE.cells if cell.target != "onnxruntime"
        }
    contrary = tmp_path / "contrary.duckdb"
    merge([folder_of(tmp_path / "other", changed_model(WHOLE, seed=7), "onnxruntime")], contrary)
    before = history.read_bytes()
    with pytest.raises(StoreError, match=rf"contrary\.duckdb.* contradict each other: {BERT}: seed"):
        add(history, [contrary])
    assert history.read_bytes() == before


SMALL = make.plan(models=("bert", "gpt2"), targets=("cpu", "openvino"))


@pytest.fixture(scope="module")
def shard_of_each_cell(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One shard for each cell of the small plan, written once for all merges."""
    parent, shards = tmp_path_factory.mktemp("shards"), []
    for number, cell in enumerate(SMALL.cells):
        mine = dataclasses.replace(part(SMALL, [cell.target]), cells=(cell,))
        shards.append(make.write_shard(parent, mine, cell.target, f"{number:012}", results=[make.result(cell)]))
    return shards


@settings(max_examples=8, deadline=None)
@given(
    owners=st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=4, max_size=4),
    executed=st.sets(st.integers(0, 3), min_size=1),
    order=st.permutations(range(3)),
    again=st.lists(st.integers(0, 2), max_size=2),
)
def test_no_split_order_or_repetition_loses_a_cell(
    shard_of_each_cell: list[Path], owners: list[set[int]], executed: set[int], order: list[int], again: list[int]
) -> None:
    """Each cell is in one or several of three folders. Merged separately, in any order, some repeatedly, they give all cells."""
    with tempfile.TemporaryDirectory() as temporary:
        folders = {}
        for folder in set[int]().union(*owners):
            cells = tuple(cell for cell, own in zip(SMALL.cells, owners, strict=True) if folder in own)
            mine = dataclasses.replace(part(SMALL, [cell.target for cell in cells]), cells=cells)
            folders[folder] = make.run_folder(Path(temporary) / str(folder), mine)
            for number in executed:
                if folder in owners[number]:
                    for file in (shard_of_each_cell[number], sidecar_path(shard_of_each_cell[number])):
                        shutil.copy(file, folders[folder] / "shards")
        apart, at_once = Path(temporary) / "apart.duckdb", Path(temporary) / "at_once.duckdb"
        merged = [folders[folder] for folder in (*order, *again) if folder in folders]
        for each in merged:
            assert merge([each], apart).rejected == ()
        merge(merged, at_once)
        found = seen(at_once)
        assert found == seen(apart)
        assert list(found) == [cell.key for cell in SMALL.cells]
        assert {key for key, (status, _) in found.items() if status == "pass"} == {SMALL.cells[number].key for number in executed}


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_combining_plans_gives_the_same_in_any_order_and_grouping(data: st.DataObject) -> None:
    parts = [
        dataclasses.replace(part(WHOLE, names), cells=tuple(data.draw(st.sets(st.sampled_from(part(WHOLE, names).cells), min_size=1))))
        for names in data.draw(st.lists(st.lists(st.sampled_from([t.name for t in WHOLE.targets]), min_size=1), min_size=1, max_size=4))
    ]
    placed = [(f"place {number}", plan) for number, plan in enumerate(parts)]
    shuffled = data.draw(st.permutations([*placed, *placed]))
    cells = united([*placed, *placed[:1]]).cells
    assert {cell.key for cell in cells} == {cell.key for plan in parts for cell in plan.cells}
    assert {cell.key for cell in united(shuffled).cells} == {cell.key for cell in cells}
    if len(parts) > 1:
        nested = united([("both", united(placed[:2])), *placed[2:], placed[0]])
        assert set(nested.cells) == set(cells)


def test_a_failed_cell_is_shown_with_those_of_other_machines(tmp_path: Path) -> None:
    first = folder_of(tmp_path / "a", WHOLE, "cpu")
    mine = part(WHOLE, ["openvino"])
    second = make.run_folder(tmp_path / "b", mine)
    results = [make.result(cell, **make.failure(Status.CRASH)) for cell in mine.cells]
    make.write_shard(second / "shards", mine, "openvino", results=results)
    merge([first, second], tmp_path / "m.duckdb")
    assert sorted(status for status, _ in seen(tmp_path / "m.duckdb").values()) == ["crash"] * 3 + ["pass"] * 3
