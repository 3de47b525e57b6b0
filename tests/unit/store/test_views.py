"""The public views and queries: their names and columns."""

from __future__ import annotations

import dataclasses
import importlib.resources
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest
from factory_rows import Database, steady

from hwmatrix.records import Detection, Status, cell_command
from hwmatrix.store.merge import merge
from hwmatrix.store.reading import query
from hwmatrix.store.shard import ShardWriter

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.records import Plan

PLAN = make.plan()
RESULTS_COLUMNS = "id model_id model_type hardware success load_time inference_time memory_usage error timestamp output_shape".split()  # noqa: SIM905
ADDED_COLUMNS = ["size", "dtype", "batch", "sequence_length", "threads", "new_tokens", "execution", "weights", "hub_id", "cell_id"]
DETECTION_COLUMNS = ["id", "hardware_type", "available", "name", "features", "timestamp"]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "matrix.duckdb"


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(query).fetchall()


def columns_of(path: Path, view: str) -> list[str]:
    return [name for (name,) in rows(path, f"SELECT column_name FROM (DESCRIBE {view})")]  # noqa: S608


def test_the_public_views(tmp_path: Path, database: Path) -> None:
    folder = make.run_folder(tmp_path / "runs", PLAN)
    found = Detection(hardware_type="cpu", available=True, name="x", features={"cores": 2}, reason=None, detected_at="2026-01-02T03:04:05")
    with ShardWriter(folder / "shards", PLAN, make.identity()) as shard:
        shard.add_detections([found])
        shard.set_canaries(ok=True, detail=None)
        for cell in PLAN.cells[::2]:
            command = cell_command(PLAN.model_of(cell), cell, PLAN)
            changes = make.failure(Status.ERROR) if cell.model == "gpt2" else {}
            shard.add_cell(make.result(cell, **changes), command=command)
        shard.seal()
    merge([folder], database)
    assert columns_of(database, "hardware_results") == [*RESULTS_COLUMNS, *ADDED_COLUMNS]
    assert columns_of(database, "hardware_detection") == DETECTION_COLUMNS
    columns = "model_id, model_type, hardware, success, load_time, memory_usage, error, output_shape"
    assert rows(database, f"SELECT {columns} FROM hardware_results ORDER BY model_id") == [  # noqa: S608
        ("bert", "bert", "cpu", True, 0.064, 350.0, None, "extra [1]; logits [1, 16, 256]"),
        ("gpt2", "gpt2", "cpu", False, 0.064, None, "a test", None),
    ]
    assert rows(database, "SELECT inference_time FROM hardware_results WHERE success")[0][0] == pytest.approx(1.0000195e-3)
    assert rows(database, "SELECT hardware_type, available, name, features FROM hardware_detection") == [("cpu", True, "x", '{"cores": 2}')]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("average_time_by_hardware", [("cpu", "tiny", "float32", "hardware", 2), ("openvino", "tiny", "float32", "hardware", 2)]),
        ("best_hardware_by_model_type", [(name, "tiny", "float32", "hardware", "cpu") for name in ("bert", "gpt2")]),
        ("top_memory", [(name, name, "tiny", "random", "hardware") for name in ("bert", "gpt2")]),
    ],
)
def test_the_three_queries_run(tmp_path: Path, database: Path, name: str, expected: list[tuple[Any, ...]]) -> None:
    folder = make.run_folder(tmp_path / "runs", PLAN)
    make.write_shard(folder / "shards", PLAN, "cpu", "aaaaaaaaaaaa")
    make.write_shard(folder / "shards", PLAN, "openvino", "bbbbbbbbbbbb")
    merge([folder], database)
    text = importlib.resources.files("hwmatrix.store").joinpath("queries", f"{name}.sql").read_text(encoding="utf-8")
    assert [row[:5] for row in rows(database, text)] == expected


def weights_plan() -> Plan:
    """One architecture with every source of weights."""
    ways = {
        "recipe": {},
        "factory": {"weights": "factory"},
        "hub": {"weights": "/cache/models--owner--hub/snapshots/abc", "revision": "abc"},
        "folder": {"weights": "/models/abc", "revision": None},
    }
    models = tuple(make.model_plan(name, architecture="bert", hub_id="owner/bert", **way) for name, way in ways.items())
    return dataclasses.replace(make.plan(models=tuple(ways), targets=("cpu",)), models=models)


def test_a_random_recipe_never_appears_as_the_model_on_the_hub(tmp_path: Path, database: Path) -> None:
    plan = weights_plan()
    folder = make.run_folder(tmp_path / "runs", plan)
    make.write_shard(folder / "shards", plan, "cpu", "aaaaaaaaaaaa")
    merge([folder], database)
    columns = "cell_id, model_id, hub_id, weights, size, dtype, execution, success"
    found = {row[0].split("/")[2]: row[1:] for row in rows(database, f"SELECT {columns} FROM hardware_results")}  # noqa: S608
    same = ("tiny", "float32", "hardware", True)
    assert found == {
        "recipe": ("recipe", "owner/bert", "random", *same),
        "factory": ("factory", "owner/bert", "random", *same),
        "hub": ("owner/bert", "owner/bert", "hub", *same),
        "folder": ("folder", "owner/bert", "checkpoint", *same),
    }


def test_an_id_does_not_change_when_runs_are_added(tmp_path: Path, database: Path) -> None:
    folders = []
    for number in (2, 1):
        plan = make.plan(run_id=f"2026010{number}T030405Z-abc123")
        folders.append(make.run_folder(tmp_path / "runs", plan))
        results = [make.result(cell, started_at=f"2026-01-0{number}T03:04:06") for cell in plan.cells if cell.target == "cpu"]
        make.write_shard(folders[-1] / "shards", plan, "cpu", f"{number:012}", results=results)
    merge(folders[:1], database)
    before = set(rows(database, "SELECT cell_id, model_id, timestamp FROM hardware_results"))
    merge(folders, database)
    after = set(rows(database, "SELECT cell_id, model_id, timestamp FROM hardware_results"))
    assert before < after
    assert len({cell_id for cell_id, *_ in after}) == 4


def test_sizes_precisions_and_executions_are_not_mixed(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        for target in ("cpu", "openvino", "webgpu", "qnn"):
            database.shard(f"s-{target}", target)
        executed = {"webgpu": "software", "qnn": "emulated"}
        for size, dtype, target, ms, mb in (
            ("tiny", "float32", "cpu", 2.0, 300.0),
            ("tiny", "float32", "webgpu", 1.0, 350.0),
            ("tiny", "float32", "qnn", 0.5, 360.0),
            ("tiny", "float16", "cpu", 3.0, 310.0),
            ("full", "float32", "cpu", 200.0, 3000.0),
            ("full", "float32", "openvino", 100.0, 3500.0),
        ):
            facts = {"size": size, "dtype": dtype, "execution": executed.get(target, "hardware")}
            planned = database.plan("bert", target, cell_key=f"bert/{size}/{target}/{dtype}", **facts)
            detail = "of the browser's processes" if target == "webgpu" else None
            database.cell(planned, f"s-{target}", wall=steady(ms), peak_mb=mb, memory_detail=detail)
        ask = database.connection.execute
        assert [(*row[:5], round(row[5] * 1000, 3)) for row in ask(query("average_time_by_hardware")).fetchall()] == [
            ("openvino", "full", "float32", "hardware", 1, 100.0),
            ("cpu", "full", "float32", "hardware", 1, 200.0),
            ("cpu", "tiny", "float16", "hardware", 1, 3.0),
            ("cpu", "tiny", "float32", "hardware", 1, 2.0),
            ("webgpu", "tiny", "float32", "software", 1, 1.0),
        ]
        assert [row[1:5] for row in ask(query("best_hardware_by_model_type")).fetchall()] == [
            ("full", "float32", "hardware", "openvino"),
            ("tiny", "float16", "hardware", "cpu"),
            ("tiny", "float32", "hardware", "cpu"),
        ]
        assert [(row[2], *row[4:]) for row in ask(query("top_memory")).fetchall()] == [
            ("full", "hardware", "openvino", "float32", 3500.0),
            ("tiny", "emulated", "qnn", "float32", 360.0),
            ("tiny", "hardware", "cpu", "float16", 310.0),
            ("tiny", "software", "webgpu", "float32", 350.0),
        ]
