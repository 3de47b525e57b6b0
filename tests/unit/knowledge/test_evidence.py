"""The evidence in a merged database, and how near it is to the requested model."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest
from factory_rows import BEGIN, FAILURES, Database, example, steady, unmeasured

from hwmatrix.errors import StoreError
from hwmatrix.knowledge.evidence import Evidence, Nearness, newest, read_evidence
from hwmatrix.records import Backend, Execution, Family, Isolation, Level, Size, Status

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "matrix.duckdb"


def by_cell(records: tuple[Evidence, ...]) -> dict[tuple[str, str], Evidence]:
    return {(record.model, record.target): record for record in records}


def test_every_executed_cell_has_its_measurements(path: Path) -> None:
    found = by_cell(read_evidence(example(path)))
    bert = found["bert", "openvino"]
    assert (bert.family, bert.architecture, bert.size, bert.backend) == (Family.EMBEDDING, "bert", Size.TINY, Backend.OPENVINO)
    assert (bert.status, bert.level, bert.execution, bert.isolation) == (Status.PASS, Level.HIGH, Execution.HARDWARE, Isolation.CONTAINER)
    assert bert.p50_ms == pytest.approx(1.7)
    assert bert.speed_up == pytest.approx(3.2 / 1.7)
    assert (bert.speed_differs, bert.peak_mb, bert.device_peak_mb) == (True, 500.0, None)
    assert bert.started_at is not None
    assert bert.started_at.startswith("2026-01-02T03:04")
    assert found["gpt2", "openvino"].level is Level.MEDIUM
    assert {status: found[f"model-{status}".replace("_", "-"), "openvino"].status.value for status in FAILURES} == {s: s for s in FAILURES}


def test_unavailable_cells_have_no_level_and_untried_ones_are_no_evidence(path: Path) -> None:
    found = by_cell(read_evidence(example(path)))
    assert (found["bert", "gpu"].status, found["bert", "gpu"].level) == (Status.UNAVAILABLE, None)
    assert found["bert", "gpu"].message == "OpenVINO lists no device GPU here"
    assert found["mixtral", "cpu"].status is Status.FACTORY_ERROR
    assert ("late", "cpu") not in found


def test_a_shard_with_failed_canaries_proves_nothing(path: Path) -> None:
    with Database(path) as database:
        database.run()
        database.shard("s", "cpu", canary_ok=False, canary_detail="canary-wrong passed")
        database.cell(database.plan("bert", "cpu"), "s", wall=steady(2.0))
    (record,) = read_evidence(path)
    assert (record.status, record.level, record.p50_ms, record.peak_mb) == (Status.INFRA_ERROR, None, None, None)


def test_cells_of_a_backend_of_another_package_are_no_evidence(path: Path) -> None:
    with Database(path) as database:
        database.run()
        database.shard("s", "cpu")
        database.shard("t", "mine")
        database.cell(database.plan("bert", "cpu"), "s", wall=steady(2.0))
        database.cell(database.plan("bert", "mine", backend="toy"), "t", wall=steady(1.0))
    assert [record.target for record in read_evidence(path)] == ["cpu"]


def test_the_newest_execution_of_a_setting_counts(path: Path) -> None:
    with Database(path) as database:
        for number, run in enumerate(("old", "new", "later-but-not-run")):
            database.run(run, created_at=BEGIN + dt.timedelta(days=number))
            database.shard(f"s-{run}", "cpu", run)
        database.cell(database.plan("bert", "cpu", "old"), "s-old", **unmeasured("crash"))
        database.cell(database.plan("bert", "cpu", "new"), "s-new", wall=steady(2.0))
        database.cell(database.plan("bert", "cpu", "old", dtype="float16", cell_key="half"), "s-old", **unmeasured("mismatch"))
        database.plan("bert", "cpu", "later-but-not-run")
    found = {(record.dtype.value, record.run_id, record.status.value) for record in newest(read_evidence(path))}
    assert found == {("float32", "new", "pass"), ("float16", "old", "mismatch")}


def test_machines_are_kept_separate(path: Path) -> None:
    with Database(path) as database:
        for run, host in (("one", "aaaa"), ("two", "bbbb")):
            database.run(run)
            database.shard(f"s-{run}", "cpu", run, host=host)
            database.cell(database.plan("bert", "cpu", run), f"s-{run}", wall=steady(2.0))
    assert {record.host for record in newest(read_evidence(path))} == {"aaaa", "bbbb"}


BERT = make.model_plan("bert", hub_id="google-bert/bert-base-uncased", size=Size.FULL)


@pytest.mark.parametrize(
    ("recorded", "asked", "expected"),
    [
        ({"model": "bert", "hub_id": "google-bert/bert-base-uncased"}, {"plan": BERT, "model_name": "bert-base-uncased"}, Nearness.MODEL),
        ({"model": "mine", "hub_id": "Google-BERT/bert-base-uncased"}, {"plan": BERT, "model_name": "bert"}, Nearness.MODEL),
        ({"model": "bert", "hub_id": None}, {"plan": BERT, "model_name": "bert"}, Nearness.MODEL),
        ({"model": "my_model", "hub_id": None}, {"plan": None, "model_name": "My-Model"}, Nearness.MODEL),
        ({"model": "x", "hub_id": "a/b"}, {"plan": None, "model_name": "a/b"}, Nearness.MODEL),
        ({"model": "bert", "hub_id": "other/bert"}, {"plan": BERT, "model_name": "bert"}, Nearness.ARCHITECTURE),
        ({"model": "x", "hub_id": None}, {"plan": None, "model_name": "y", "architecture": "bert"}, Nearness.ARCHITECTURE),
        ({"model": "x", "hub_id": None}, {"plan": None, "model_name": "y", "architecture": "gpt2"}, Nearness.FAMILY),
        ({"model": "x", "hub_id": None}, {"plan": None, "model_name": "y", "architecture": None, "family": Family.VISION}, None),
        ({"model": "x", "hub_id": None}, {"plan": None, "model_name": "y", "architecture": None, "family": None}, None),
    ],
)
def test_nearness(path: Path, recorded: dict[str, Any], asked: dict[str, Any], expected: Nearness | None) -> None:
    with Database(path) as database:
        database.run()
        database.shard("s", "cpu")
        model = recorded.pop("model")
        database.cell(database.plan(model, "cpu", architecture="bert", **recorded), "s", wall=steady(2.0))
    (record,) = read_evidence(path)
    assert record.nearness(**{"architecture": "bert", "family": Family.EMBEDDING} | asked) is expected


def change(path: Path, statement: str) -> Path:
    example(path)
    with duckdb.connect(str(path)) as connection:
        connection.execute(statement)
    return path


def test_unreadable_files_are_errors_with_advice(tmp_path: Path, path: Path) -> None:
    text, other = tmp_path / "text.duckdb", tmp_path / "other.duckdb"
    text.write_text("no database")
    with duckdb.connect(str(other)) as connection:
        connection.execute("CREATE TABLE t (x INTEGER)")
    cases = [
        (tmp_path / "none.duckdb", "there is no such file"),
        (text, "cannot be read as a merged database"),
        (other, "not a merged database of hwmatrix"),
        (change(path, "UPDATE meta SET value = '99'"), "schema version 99, this hwmatrix reads 15"),
        (change(tmp_path / "b.duckdb", "DELETE FROM meta"), "schema version none"),
        (change(tmp_path / "d.duckdb", "CREATE OR REPLACE VIEW matrix AS SELECT 1 AS one, run_id FROM runs"), "cannot be read as a merged"),
    ]
    for database, said in cases:
        with pytest.raises(StoreError, match=said) as caught:
            read_evidence(database)
        assert caught.value.exit_code == 7
        assert caught.value.advice


def test_a_shard_is_distinguished_from_a_merged_database(tmp_path: Path) -> None:
    plan = make.plan()
    shard = make.write_shard(make.run_folder(tmp_path, plan) / "shards", plan)
    with pytest.raises(StoreError, match="looks like a shard"):
        read_evidence(shard)
