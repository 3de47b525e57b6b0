from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import BEGIN, RUN, Database, steady, unmeasured

from hwmatrix.errors import StoreError
from hwmatrix.report.rows import Analysis, read
from hwmatrix.store.reading import names, query

if TYPE_CHECKING:
    from pathlib import Path


def analysis(path: Path) -> Analysis:
    return read(path).analysis


def answer_of(path: Path, name: str) -> list[tuple[Any, ...]]:
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.shard("s-ov", "openvino")
        for model, cpu_ms, ov_ms in (("bert", 4.0, 2.0), ("bert-b", 8.0, 3.0), ("vit", 5.0, 9.0)):
            database.cell(database.plan(model, "cpu"), "s-cpu", wall=steady(cpu_ms), peak_mb=300.0 + cpu_ms)
            database.cell(database.plan(model, "openvino"), "s-ov", wall=steady(ov_ms), peak_mb=400.0)
        database.cell(database.plan("gpt2", "openvino"), "s-ov", **unmeasured("crash"))
        return database.connection.execute(query(name)).fetchall()


def test_average_time_by_hardware(tmp_path: Path) -> None:
    rows = answer_of(tmp_path / "m.duckdb", "average_time_by_hardware")
    assert [(row[0], row[4]) for row in rows] == [("openvino", 3), ("cpu", 3)]
    assert rows[0][5] == pytest.approx(14e-3 / 3)
    assert rows[1][5:8] == pytest.approx((17e-3 / 3, 4e-3, 8e-3))


def test_best_hardware_by_model_type(tmp_path: Path) -> None:
    rows = answer_of(tmp_path / "m.duckdb", "best_hardware_by_model_type")
    assert [(row[0], row[7], row[4], row[6]) for row in rows] == [
        ("bert", "bert", "openvino", 2),
        ("bert", "bert-b", "openvino", 2),
        ("vit", "vit", "cpu", 2),
    ]
    assert rows[0][5] == pytest.approx(2e-3)


def test_top_memory(tmp_path: Path) -> None:
    rows = answer_of(tmp_path / "m.duckdb", "top_memory")
    assert [(row[0], row[1], row[5], row[7]) for row in rows] == [
        (name, name[:4].rstrip("-"), "openvino", 400.0) for name in ("bert", "bert-b", "vit")
    ]


def test_every_query_is_a_file_with_a_description() -> None:
    assert {"average_time_by_hardware", "best_hardware_by_model_type", "top_memory"} <= set(names())
    for name in names():
        assert query(name).startswith("-- "), name


def test_the_latest_run_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.plan("bert", "cpu")
        database.run("run-2", created_at=BEGIN.replace(year=2027))
        database.plan("vit", "cpu", run_id="run-2")
    assert [cell.model for cell in read(path).cells] == ["vit"]
    assert [cell.model for cell in read(path, RUN).cells] == ["bert"]
    with pytest.raises(StoreError, match="no run 'run-3'"):
        read(path, "run-3")


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        read(tmp_path / "missing.duckdb")
    broken = tmp_path / "broken.duckdb"
    broken.write_text("no database", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be read"):
        read(broken)
    empty = tmp_path / "empty.duckdb"
    with Database(empty):
        pass
    with pytest.raises(StoreError, match="it holds no run"):
        read(empty)


def test_reading_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.plan("bert", "cpu")
    before = path.read_bytes()
    read(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.duckdb"]


def test_nothing_is_ranked_across_machines_or_in_software(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.shard("s-far", "openvino", host="beef")
        database.shard("s-soft", "swift")
        database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(4.0))
        database.cell(database.plan("bert", "openvino"), "s-far", wall=steady(2.0))
        database.cell(database.plan("bert", "swift", execution="software", backend="openvino"), "s-soft", wall=steady(1.0))
    found = analysis(path)
    assert found.optimal == ()
    assert {row["target"]: row["speed_up"] for row in found.speeds} == {"cpu": None, "openvino": None, "swift": None}


def test_the_optimal_hardware_and_those_that_do_not_differ_from_it(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        for target in ("cpu", "openvino", "other"):
            database.shard(f"s-{target}", target)
        for model, times in (("clear", (4.0, 2.0, 3.0)), ("tied", (4.0, 2.0, 2.001)), ("cpu-wins", (1.0, 2.0, 3.0))):
            for target, p50 in zip(("cpu", "openvino", "other"), times, strict=True):
                planned = database.plan(model, target, size="full", backend="openvino" if target == "other" else target)
                database.cell(planned, f"s-{target}", wall=steady(p50))
    rows = {row["model"]: row for row in analysis(path).optimal}
    assert (rows["clear"]["target"], rows["clear"]["tied"]) == ("openvino", [])
    assert rows["clear"]["speed_up"] == pytest.approx(2.0)
    assert (rows["tied"]["target"], rows["tied"]["tied"]) == ("openvino", ["other"])
    assert (rows["cpu-wins"]["target"], rows["cpu-wins"]["speed_up"]) == ("cpu", None)


def test_there_is_no_speedup_if_intervals_overlap(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.shard("s-ov", "openvino")
        database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(2.1, spread=0.5))
        database.cell(database.plan("bert", "openvino"), "s-ov", wall=steady(2.0, spread=0.5))
    (row,) = analysis(path).optimal
    assert (row["target"], row["speed_up"], row["tied"]) == ("openvino", None, ["cpu"])


def test_the_mean_speedup_is_geometric(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.shard("s-ov", "openvino")
        for model, cpu_ms, ov_ms in (("a", 4.0, 1.0), ("b", 1.0, 4.0), ("only-openvino", None, 9.0)):
            if cpu_ms is not None:
                database.cell(database.plan(model, "cpu", size="full"), "s-cpu", wall=steady(cpu_ms))
            database.cell(database.plan(model, "openvino", size="full"), "s-ov", wall=steady(ov_ms))
    row = next(row for row in analysis(path).speeds if row["target"] == "openvino")
    assert (row["models"], row["faster"], row["slower"]) == (3, 1, 1)
    assert row["speed_up"] == pytest.approx(1.0)


def test_averages_mix_no_precisions(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        for target in ("cpu", "cuda"):
            database.shard(f"s-{target}", target)
        for target, dtype, p50_ms, peak_mb in (
            ("cpu", "float32", 8.0, 300.0),
            ("cuda", "float32", 4.0, 200.0),
            ("cuda", "float16", 1.0, 100.0),
        ):
            planned = database.plan("bert", target, dtype=dtype, cell_key=f"bert/{target}/{dtype}")
            database.cell(planned, f"s-{target}", wall=steady(p50_ms), peak_mb=peak_mb)
    found = analysis(tmp_path / "m.duckdb")
    expected = {("cpu", None): (8.0, 300.0), ("cuda", "float32"): (4.0, 200.0), ("cuda", "float16"): (1.0, 100.0)}
    for rows, column, which in (
        (found.speeds, "mean_ms", 0),
        (found.speed_by_architecture, "mean_ms", 0),
        (found.memory_by_target, "mean_mb", 1),
    ):
        assert {(row["target"], row["dtype"]): row[column] for row in rows} == {
            key: pytest.approx(each[which]) for key, each in expected.items()
        }
