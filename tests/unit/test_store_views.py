"""The views and queries that others rely on, by their names and columns."""

from __future__ import annotations

import importlib.resources
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest

from hwmatrix.records import Detection, Status, cell_command
from hwmatrix.store.merge import merge
from hwmatrix.store.shard import ShardWriter

if TYPE_CHECKING:
    from pathlib import Path

PLAN = make.plan()
RESULTS_COLUMNS = "id model_id model_type hardware success load_time inference_time memory_usage error timestamp output_shape".split()  # noqa: SIM905
DETECTION_COLUMNS = ["id", "hardware_type", "available", "name", "features", "timestamp"]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "matrix.duckdb"


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(query).fetchall()


def columns_of(path: Path, view: str) -> list[str]:
    return [name for (name,) in rows(path, f"SELECT column_name FROM (DESCRIBE {view})")]  # noqa: S608


def test_the_views_of_the_contract(tmp_path: Path, database: Path) -> None:
    folder = make.run_folder(tmp_path / "runs", PLAN)
    found = Detection(hardware_type="cpu", available=True, name="x", features={"cores": 2}, reason=None, detected_at="2026-01-02T03:04:05")
    with ShardWriter(folder / "shards", PLAN, make.identity()) as shard:
        shard.add_detections([found])
        shard.set_canaries(ok=True, detail=None)
        for cell in PLAN.cells[::2]:
            command = cell_command(PLAN.model(cell.model, cell.size), cell, PLAN.isolation)
            changes = make.failure(Status.ERROR) if cell.model == "gpt2" else {}
            shard.add_cell(make.result(cell, **changes), command=command)
        shard.seal()
    merge([folder], database)
    assert columns_of(database, "hardware_results") == RESULTS_COLUMNS
    assert columns_of(database, "hardware_detection") == DETECTION_COLUMNS
    columns = "model_id, model_type, hardware, success, load_time, memory_usage, error, output_shape"
    assert rows(database, f"SELECT {columns} FROM hardware_results ORDER BY model_id") == [  # noqa: S608
        ("owner/bert", "bert", "cpu", True, 0.064, 350.0, None, "extra [1]; logits [1, 16, 256]"),
        ("owner/gpt2", "gpt2", "cpu", False, 0.064, None, "a test", None),
    ]
    assert rows(database, "SELECT inference_time FROM hardware_results WHERE success")[0][0] == pytest.approx(1.0000195e-3)
    assert rows(database, "SELECT hardware_type, available, name, features FROM hardware_detection") == [("cpu", True, "x", '{"cores": 2}')]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("average_time_by_hardware", [("cpu", 2), ("openvino", 2)]),
        ("best_hardware_by_model_type", [("bert", "cpu"), ("gpt2", "cpu")]),
        ("top_memory", [("owner/bert", "bert"), ("owner/gpt2", "gpt2")]),
    ],
)
def test_the_three_queries_run(tmp_path: Path, database: Path, name: str, expected: list[tuple[Any, ...]]) -> None:
    folder = make.run_folder(tmp_path / "runs", PLAN)
    make.write_shard(folder / "shards", PLAN, "cpu", "aaaaaaaaaaaa")
    make.write_shard(folder / "shards", PLAN, "openvino", "bbbbbbbbbbbb")
    merge([folder], database)
    text = importlib.resources.files("hwmatrix.store").joinpath("queries", f"{name}.sql").read_text(encoding="utf-8")
    assert [row[:2] for row in rows(database, text)] == expected
