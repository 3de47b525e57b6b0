from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from factory_rows import BEGIN, RUN, Database, example

from hwmatrix.errors import StoreError
from hwmatrix.report.plots import undrawn
from hwmatrix.report.write import write_reports

FILES = ["index.html", "summary.md", "matrix.md", "matrix.json", "errors.md", "errors.json", "expected.md", "expected.json"]
PLOTS = ["matrix", "families", "latency", "memory", "tradeoffs"]


def test_exactly_these_files_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "latest"
    written = write_reports(example(tmp_path / "m.duckdb"), folder)
    assert written == [*(folder / name for name in FILES), *(folder / "plots" / f"{name}.svg" for name in PLOTS)]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, "plots"])


def test_the_same_database_gives_the_same_bytes(tmp_path: Path) -> None:
    database = example(tmp_path / "m.duckdb")
    first = [path.read_bytes() for path in write_reports(database, tmp_path / "first")]
    assert first == [path.read_bytes() for path in write_reports(database, tmp_path / "second")]
    assert first == [path.read_bytes() for path in write_reports(database, tmp_path / "first")]


def test_another_run_can_be_selected(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.plan("bert", "cpu")
        database.run("run-2", created_at=BEGIN.replace(year=2027))
    write_reports(path, tmp_path / "out", run_id=RUN)
    assert json.loads((tmp_path / "out" / "matrix.json").read_text(encoding="utf-8"))["run"]["run_id"] == RUN


def test_a_failure_leaves_the_old_reports_and_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, folder = example(tmp_path / "m.duckdb"), tmp_path / "latest"
    folder.mkdir()
    (folder / "matrix.md").write_text("old", encoding="utf-8")
    opened = Path.open

    def full(self: Path, mode: str = "r", **options: Any) -> Any:
        if "w" in mode and "errors" in self.name:
            raise OSError(28, "No space left on device")
        return opened(self, mode, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StoreError, match="No space left on device"):
        write_reports(database, folder)
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["matrix.md"]
    assert (folder / "matrix.md").read_text(encoding="utf-8") == "old"


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("in the way", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be written"):
        write_reports(example(tmp_path / "m.duckdb"), tmp_path / "latest")


def test_650_models_by_8_targets(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        for target in range(8):
            database.shard(f"s-{target}", f"t{target}")
        database.connection.execute(
            "INSERT INTO planned BY NAME SELECT 'run-1' AS run_id, concat('m', m, '/t', t) AS cell_key, concat('m', m) AS model, "
            "'tiny' AS size, concat('t', t) AS target, 'vision' AS family, concat('a', m % 50) AS architecture, 'float32' AS dtype, "
            "1 AS batch, 16 AS sequence_length, 1 AS threads, 'hardware' AS execution, if(t = 0, 'cpu', 'openvino') AS backend, "
            "m * 8 + t AS position FROM range(650) AS models(m), range(8) AS targets(t)"
        )
        database.connection.execute(
            "INSERT INTO cells BY NAME SELECT run_id, cell_key, cell_key AS cell_id, concat('s-', target[2:]) AS shard_id, "
            "'model' AS role, model, size, target, family, architecture, dtype, batch, sequence_length, threads, execution, "
            "'measure' AS stage, "
            "if(position % 7 = 3, 'error', 'pass') AS status, if(position % 7 = 3, concat('message ', position), NULL) AS message, "
            "1.0 AS on_target, 100.0 + position % 97 AS peak_mb, now()::TIMESTAMP AS started_at, 5.0 AS wall_ms, "
            "'again' AS command FROM planned"
        )
        database.connection.execute(
            "INSERT INTO samples SELECT cell_key, n, 1000000 + position * 100 + n * 1000, 1000000 + position * 100 + n * 1000 "
            "FROM planned, range(30) AS numbers(n)"
        )
    files = write_reports(path, tmp_path / "out")
    document = json.loads((tmp_path / "out" / "matrix.json").read_text(encoding="utf-8"))
    assert len(document["cells"]) == 5200
    assert document["run"]["counts"] == {"pass": 4457, "error": 743}
    assert all(file.stat().st_size > 0 for file in files)


def test_without_the_drawing_library_the_other_reports_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, database = tmp_path / "latest", example(tmp_path / "m.duckdb")
    write_reports(database, folder)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    write_reports(database, folder)
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == sorted(set(FILES) - {"index.html"})
    assert "plots/" not in (folder / "summary.md").read_text(encoding="utf-8")
    assert "vl-convert-python" in (undrawn() or "")
