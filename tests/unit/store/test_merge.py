from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import random
import shutil
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest
from factory_rows import RUN, Database

from hwmatrix.basics.clock import utc_now
from hwmatrix.basics.files import sha256_of, write_atomically
from hwmatrix.errors import StoreError
from hwmatrix.records import Role, Status, to_json
from hwmatrix.store import confined
from hwmatrix.store import merge as merging
from hwmatrix.store.cell_columns import SCHEMA_VERSION
from hwmatrix.store.merge import merge
from hwmatrix.store.planned import hidden
from hwmatrix.store.rewriting import rewriting
from hwmatrix.store.shard import finished_cells
from hwmatrix.store.sidecar import sidecar_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PLAN = make.plan()
TABLES = ("runs", "planned", "shards", "detections", "cells", "stages", "outputs", "samples", "rejected")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a complete shard for each of two targets, written once for all tests: they get copies."""
    folder = make.run_folder(tmp_path_factory.mktemp("written"), PLAN)
    make.write_shard(folder / "shards", PLAN, "cpu", "aaaaaaaaaaaa")
    make.write_shard(folder / "shards", PLAN, "openvino", "bbbbbbbbbbbb")
    return folder


@pytest.fixture(scope="module")
def written_database(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with that run, merged once for all tests."""
    path = tmp_path_factory.mktemp("merged") / "matrix.duckdb"
    merge([written], path)
    return path


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    """A run with a complete shard for each of two targets."""
    return shutil.copytree(written, tmp_path / "runs" / written.name)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where a merge creates a database."""
    return tmp_path / "latest" / "matrix.duckdb"


@pytest.fixture
def merged(written_database: Path, database: Path) -> Path:
    """The database with the run's two shards."""
    database.parent.mkdir()
    return shutil.copy(written_database, database)


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(query).fetchall()


def content(path: Path) -> dict[str, list[str]]:
    """All rows of all tables, sorted, without the times of rejections."""
    what = {table: "* EXCLUDE (rejected_at)" if table == "rejected" else "*" for table in TABLES}
    with duckdb.connect(str(path), read_only=True) as connection:
        found = {table: connection.execute(f"SELECT {columns} FROM {table}").fetchall() for table, columns in what.items()}  # noqa: S608
    return {table: sorted(map(repr, of_table)) for table, of_table in found.items()}


def statuses(path: Path) -> dict[str, tuple[str, str | None]]:
    return {key: (status, message) for key, status, message in rows(path, "SELECT cell_key, status, message FROM results")}


def resealed(path: Path) -> None:
    """Update the sidecar of a changed file, like an attacker who wants it to be merged."""
    data = json.loads(sidecar_path(path).read_text()) | {"sha256": sha256_of(path)}
    write_atomically(sidecar_path(path), json.dumps(data))


def test_all_rows_are_merged(run: Path, database: Path) -> None:
    report = merge([run], database)
    assert sorted(report.merged) == ["aaaaaaaaaaaa", "bbbbbbbbbbbb"]
    assert (report.known, report.rejected) == ((), ())
    counts = {table: len(found) for table, found in content(database).items()}
    expected = {
        "runs": 1,
        "planned": 4,
        "shards": 2,
        "detections": 0,
        "cells": 4,
        "stages": 20,
        "outputs": 8,
        "samples": 160,
        "rejected": 0,
    }
    assert counts == expected
    assert report.rows == 2 + 4 + 20 + 8 + 160
    assert rows(database, "SELECT sha256 FROM shards ORDER BY shard_id") == [
        (sha256_of(path),) for path in sorted((run / "shards").glob("*.duckdb"))
    ]
    assert {status for status, _ in statuses(database).values()} == {"pass"}
    assert [path.name for path in database.parent.iterdir()] == ["matrix.duckdb"]


def test_the_shards_of_a_batch_are_copied_by_one_statement_per_table(run: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[str] = []

    class Recording:
        """A connection that notes what it executes."""

        def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
            self.connection = connection

        def execute(self, query: str, *parameters: object) -> duckdb.DuckDBPyConnection:
            executed.append(query)
            return self.connection.execute(query, *parameters)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.connection, name)

    @contextlib.contextmanager
    def recorded(*arguments: Any, **options: Any) -> Iterator[Recording]:
        with rewriting(*arguments, **options) as connection:
            yield Recording(connection)

    monkeypatch.setattr(merging, "rewriting", recorded)
    assert len(merge([run], database).merged) == 2
    assert sum(query.startswith("INSERT INTO samples ") for query in executed) == 1


def test_merging_again_changes_nothing(run: Path, database: Path) -> None:
    (run / "shards" / "cpu-broken.duckdb").write_text("text")
    merge([run], database)
    before = content(database)
    report = merge([run], database)
    assert (report.merged, report.rows) == ((), 0)
    assert sorted(report.known) == ["aaaaaaaaaaaa", "bbbbbbbbbbbb"]
    assert content(database) == before


def test_the_order_does_not_matter(tmp_path: Path) -> None:
    other = make.plan(run_id="20260102T030406Z-def456")
    folders = [make.run_folder(tmp_path / "runs", plan) for plan in (PLAN, other)]
    make.write_shard(folders[0] / "shards", PLAN, "cpu", "aaaaaaaaaaaa")
    make.write_shard(folders[1] / "shards", other, "cpu", "bbbbbbbbbbbb")
    (folders[1] / "shards" / "cpu-broken.duckdb").write_text("text")
    found = []
    for number, order in enumerate(itertools.permutations(folders)):
        merge(order, tmp_path / f"{number}.duckdb")
        found.append(content(tmp_path / f"{number}.duckdb"))
    for folder in folders:
        merge([folder], tmp_path / "apart.duckdb")
    found.append(content(tmp_path / "apart.duckdb"))
    assert found[0] == found[1] == found[2]


def test_a_fresh_database_has_only_these_runs(merged: Path, tmp_path: Path) -> None:
    other = make.plan(run_id="20270102T030405Z-def456")
    folder = make.run_folder(tmp_path / "runs", other)
    merge([folder], merged, fresh=True)
    assert rows(merged, "SELECT run_id FROM runs") == [(other.run_id,)]


def test_more_shards_than_can_be_attached_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_BATCH", 2)
    folder = make.run_folder(tmp_path / "it's a folder", PLAN)
    for number in range(5):
        make.write_shard(folder / "shards", PLAN, "cpu", f"{number:012x}", results=[make.result(PLAN.cells[0])])
    broken = folder / "shards" / "cpu-000000000002.duckdb"
    with duckdb.connect(str(broken)) as connection:
        connection.execute("DELETE FROM stages")
    resealed(broken)
    report = merge([folder], tmp_path / "m.duckdb")
    assert report.merged == ("000000000000", "000000000001", "000000000003", "000000000004")
    assert [(rejection.run_id, rejection.file) for rejection in report.rejected] == [(PLAN.run_id, broken.name)]
    assert rows(tmp_path / "m.duckdb", "SELECT shard_id FROM shards ORDER BY ALL") == [(shard_id,) for shard_id in report.merged]
    assert report.rows == 4 * (1 + 1 + 5 + 2 + 40)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.Random(4).randrange(len(data))] ^= 4  # noqa: S311 - any bit will do
    path.write_bytes(data)


def change(path: Path, *statements: str) -> None:
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    resealed(path)


def without_checks(table: str) -> str:
    """SQL that replaces a table by one with the same rows and without constraints, as a foreign file may have it."""
    return f"CREATE TABLE plain AS FROM {table}; DROP TABLE {table}; ALTER TABLE plain RENAME TO {table}"


def edit_sidecar(path: Path, **changes: Any) -> None:
    write_atomically(sidecar_path(path), json.dumps(json.loads(sidecar_path(path).read_text()) | changes))


def then(*steps: Callable[[Path], object]) -> Callable[[Path], None]:
    """Apply several steps in order."""

    def breaking(path: Path) -> None:
        for step in steps:
            step(path)

    return breaking


def write(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (truncate, "its SHA-256 is not the one in its sidecar: it was damaged or changed"),
    "bit_flipped": (flip, "its SHA-256 is not the one in its sidecar: it was damaged or changed"),
    "text": (write(b"text"), "its SHA-256 is not the one in its sidecar: it was damaged or changed"),
    "text_resealed": (then(write(b"text"), resealed), "not a valid DuckDB database file"),
    "empty": (write(b""), "its SHA-256 is not the one in its sidecar: it was damaged or changed"),
    "empty_resealed": (then(write(b""), resealed), ""),
    "truncated_resealed": (then(truncate, resealed), ""),
    "folder": (then(lambda path: path.unlink(), lambda path: path.mkdir()), "Is a directory"),
    "no_sidecar": (lambda path: sidecar_path(path).unlink(), "it has no sidecar: it was never finished, or not copied whole"),
    "broken_sidecar": (lambda path: sidecar_path(path).write_text("{"), "its sidecar cannot be read"),
    "other_shard_version": (lambda path: edit_sidecar(path, schema="hwmatrix/shard/9"), "its version is 'hwmatrix/shard/9'"),
    "other_schema_version": (
        lambda path: change(path, "UPDATE meta SET value = '99'"),
        f"its schema is version 99, this hwmatrix reads {SCHEMA_VERSION}: run the target again",
    ),
    "no_schema_version": (lambda path: change(path, "DELETE FROM meta"), "its schema is version none"),
    "fewer_rows": (lambda path: change(path, "DELETE FROM samples"), "its table samples holds 0 rows, its sidecar says 80"),
    "other_columns": (lambda path: change(path, "ALTER TABLE stages DROP COLUMN wall_ms"), "wall_ms"),
    "foreign": (
        lambda path: edit_sidecar(path, run_id="another"),
        "it belongs to another run, another, which is not being merged",
    ),
    "with_wal": (
        lambda path: path.with_name(f"{path.name}.wal").write_bytes(b"x"),
        "it has a write-ahead log: something wrote to it after",
    ),
    "uncounted": (lambda path: edit_sidecar(path, counts={"cells": 2}), "its sidecar is broken: it counts cells"),
    "counted_wrongly": (lambda path: edit_sidecar(path, counts="many"), "its sidecar is broken: counts is 'many'"),
}


@pytest.mark.parametrize("kind", sorted(BROKEN))
def test_a_broken_shard_is_listed_and_the_others_are_merged(run: Path, database: Path, kind: str) -> None:
    breaking, reason = BROKEN[kind]
    breaking(run / "shards" / "cpu-aaaaaaaaaaaa.duckdb")
    report = merge([run], database)
    assert report.merged == ("bbbbbbbbbbbb",)
    ((run_id, file, told),) = rows(database, "SELECT run_id, file, reason FROM rejected")
    assert (run_id, file) == (PLAN.run_id, "cpu-aaaaaaaaaaaa.duckdb")
    assert told
    assert reason in told
    assert [(rejection.file, rejection.reason) for rejection in report.rejected] == [(file, told)]
    found = content(database)
    assert (len(found["cells"]), len(found["shards"]), len(found["samples"])) == (2, 1, 80)
    assert {key.split("/")[-1]: status for key, (status, _) in statuses(database).items()} == {"cpu": "not_run", "openvino": "pass"}


@pytest.mark.parametrize(("strangers", "told"), [(3, "cell-0, cell-1, cell-2"), (5, "cell-0, cell-1, cell-2 and 2 more")])
def test_cells_in_no_plan_are_named_up_to_a_limit(run: Path, database: Path, strangers: int, told: str) -> None:
    path = run / "shards" / "cpu-aaaaaaaaaaaa.duckdb"
    more = "cell_key = 'cell-' || n, cell_id = 'aaaaaaaaaaaa/cell-' || n"
    copies = [
        f"CREATE TEMP TABLE copies AS SELECT c.*, n FROM (FROM cells LIMIT 1) c, range({strangers}) r(n)",  # noqa: S608
        f"UPDATE copies SET {more}",  # noqa: S608
        "ALTER TABLE copies DROP COLUMN n",
        "INSERT INTO cells FROM copies",
    ]
    change(path, *copies)
    edit_sidecar(path, counts=json.loads(sidecar_path(path).read_text())["counts"] | {"cells": 2 + strangers})
    report = merge([run], database)
    assert report.merged == ("bbbbbbbbbbbb",)
    ((refused,),) = rows(database, "SELECT reason FROM rejected")
    assert refused.endswith(f" {told}")


def test_a_repaired_shard_is_no_longer_listed_as_rejected(run: Path, database: Path) -> None:
    path = run / "shards" / "cpu-aaaaaaaaaaaa.duckdb"
    whole = path.read_bytes()
    truncate(path)
    assert len(merge([run], database).rejected) == 1
    path.write_bytes(whole)
    report = merge([run], database)
    assert report.merged == ("aaaaaaaaaaaa",)
    assert rows(database, "SELECT * FROM rejected") == []


def test_a_copy_of_a_shard_counts_once(run: Path, database: Path) -> None:
    path = run / "shards" / "cpu-aaaaaaaaaaaa.duckdb"
    copy = path.with_name("cpu-copy.duckdb")
    shutil.copy(path, copy)
    shutil.copy(sidecar_path(path), sidecar_path(copy))
    report = merge([run], database)
    assert sorted(report.merged) == ["aaaaaaaaaaaa", "bbbbbbbbbbbb"]
    assert (report.known, report.rejected) == (("aaaaaaaaaaaa",), ())
    before = content(database)
    assert len(before["cells"]) == 4
    merge([run], database)
    assert content(database) == before


def test_two_shards_with_the_same_id_and_different_content(run: Path, database: Path) -> None:
    path = run / "shards" / "cpu-aaaaaaaaaaaa.duckdb"
    copy = path.with_name("cpu-copy.duckdb")
    shutil.copy(path, copy)
    shutil.copy(sidecar_path(path), sidecar_path(copy))
    change(copy, "UPDATE cells SET status = 'mismatch'")
    report = merge([run], database)
    assert [rejection.file for rejection in report.rejected] == [copy.name]
    assert {status for status, _ in statuses(database).values()} == {"pass"}


def test_another_shard_under_a_known_id(run: Path, merged: Path) -> None:
    path = run / "shards" / "cpu-aaaaaaaaaaaa.duckdb"
    change(path, "UPDATE cells SET status = 'mismatch'")
    report = merge([run], merged)
    assert [rejection.reason for rejection in report.rejected] == ["the database already has a different shard with the same id"]
    assert {status for status, _ in statuses(merged).values()} == {"pass"}


def test_a_failed_merge_does_not_change_the_database(run: Path, merged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = merged.read_bytes()
    make.write_shard(run / "shards", PLAN, "cpu", "cccccccccccc")

    def full(*_: object, **__: object) -> None:
        raise duckdb.IOException("No space left on device")

    monkeypatch.setattr(merging, "check_visible", full)
    with pytest.raises(StoreError, match=r"the merge failed: .*No space left") as caught:
        merge([run], merged)
    assert caught.value.advice == "The database is as it was before."
    assert merged.read_bytes() == before
    assert [path.name for path in merged.parent.iterdir()] == ["matrix.duckdb"]


@pytest.mark.parametrize("text", ["garbage", ""])
def test_a_file_that_is_not_a_database_is_not_replaced(run: Path, database: Path, text: str) -> None:
    database.parent.mkdir()
    database.write_text(text)
    with pytest.raises(StoreError, match="cannot be read as a merged database"):
        merge([run], database)
    assert database.read_text() == text
    assert len(merge([run], database, fresh=True).merged) == 2


def test_a_database_of_another_version_is_refused_with_advice(run: Path, merged: Path) -> None:
    change_version = "UPDATE meta SET value = '99' WHERE key = 'schema_version'"
    with duckdb.connect(str(merged)) as connection:
        connection.execute(change_version)
    with pytest.raises(StoreError, match=f"schema version 99, this hwmatrix reads {SCHEMA_VERSION}") as caught:
        merge([run], merged)
    assert "merge their shards into a new file" in caught.value.advice


@pytest.mark.parametrize("column", ["message", "bundle"])
def test_a_shard_must_have_all_columns(run: Path, database: Path, column: str) -> None:
    shard, *_ = sorted((run / "shards").glob("*.duckdb"))
    change(shard, without_checks("cells"), f"ALTER TABLE cells DROP COLUMN {column}")
    (rejection,) = merge([run], database).rejected
    assert rejection.file == shard.name
    assert column in rejection.reason


def test_another_application_s_database_is_refused(run: Path, database: Path) -> None:
    database.parent.mkdir()
    with duckdb.connect(str(database)) as connection:
        connection.execute("CREATE TABLE mine (x INTEGER)")
    with pytest.raises(StoreError, match="not a merged database"):
        merge([run], database)


def test_a_folder_that_cannot_be_made(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be created"):
        merge([run], tmp_path / "file" / "m.duckdb")


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Name a run's folder"):
        merge([tmp_path], tmp_path / "m.duckdb")


def test_missing_cells_are_not_run(run: Path, database: Path) -> None:
    (run / "shards" / "openvino-bbbbbbbbbbbb.duckdb").unlink()
    merge([run], database)
    assert statuses(database)["bert/tiny/openvino"] == ("not_run", None)
    assert rows(database, "SELECT level FROM matrix WHERE target = 'openvino'") == [(None,), (None,)]


def test_impossible_cells_have_their_reason(tmp_path: Path, database: Path) -> None:
    plan = dataclasses.replace(
        PLAN,
        targets=(make.target_plan(), make.target_plan("openvino", unavailable="no such device")),
        models=(make.model_plan(), make.model_plan("big", unbuildable="too large")),
        cells=(make.cell_plan(), make.cell_plan("big"), make.cell_plan("bert", "openvino")),
    )
    folder = make.run_folder(tmp_path / "runs", plan)
    merge([folder], database)
    assert statuses(database) == {
        "bert/tiny/cpu": ("not_run", None),
        "big/tiny/cpu": ("factory_error", "too large"),
        "bert/tiny/openvino": ("unavailable", "no such device"),
    }
    types = dict(rows(database, "SELECT cell_key, error_type FROM results WHERE error_type IS NOT NULL"))
    assert types == {"big/tiny/cpu": "unbuildable", "bert/tiny/openvino": "target_unavailable"}


@pytest.mark.parametrize("canary_ok", [False, None])
def test_without_good_canaries_no_result_counts(tmp_path: Path, database: Path, *, canary_ok: bool | None) -> None:
    folder = make.run_folder(tmp_path / "runs", PLAN)
    make.write_shard(folder / "shards", PLAN, "cpu", canary_ok=canary_ok)
    merge([folder], database)
    columns = "status, error_type, p50_ms, relative_error, level"
    assert set(rows(database, f"SELECT {columns} FROM matrix WHERE target = 'cpu'")) == {  # noqa: S608
        ("infra_error", "canary_failed", None, None, None)
    }


def test_the_latest_execution_of_a_cell_counts(tmp_path: Path, database: Path) -> None:
    folder = make.run_folder(tmp_path / "runs", PLAN)
    cell = PLAN.cells[0]
    early = make.result(cell, **make.failure(Status.INFRA_ERROR), started_at="2026-01-02T03:04:06")
    make.write_shard(folder / "shards", PLAN, "cpu", "aaaaaaaaaaaa", results=[make.result(cell, started_at="2026-01-02T03:05:00")])
    make.write_shard(folder / "shards", PLAN, "cpu", "bbbbbbbbbbbb", results=[early])
    merge([folder], database)
    assert statuses(database)[cell.key][0] == "pass"


def test_canaries_are_not_in_the_matrix(tmp_path: Path, database: Path) -> None:
    folder = make.run_folder(tmp_path / "runs", PLAN)
    make.write_shard(folder / "shards", PLAN, "cpu", results=[make.result(PLAN.cells[0], role=Role.CANARY_GOOD)])
    merge([folder], database)
    assert statuses(database)["bert/tiny/cpu"][0] == "not_run"
    assert rows(database, "SELECT count(*) FROM hardware_results") == [(0,)]


def test_a_shard_whose_tables_are_views_is_refused(run: Path, database: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not tell")
    shard = min((run / "shards").glob("*.duckdb"))
    with duckdb.connect(str(shard)) as connection:
        connection.execute("ALTER TABLE detections RENAME TO kept")
        connection.execute(f"CREATE VIEW detections AS SELECT * REPLACE ((SELECT content FROM read_text('{secret}')) AS name) FROM kept")  # noqa: S608
    resealed(shard)
    report = merge([run], database)
    assert [rejection.reason for rejection in report.rejected] == [
        "it is not a valid shard: it has views, which could read other files: detections"
    ]
    assert len(report.merged) == 1


def test_a_merge_cannot_read_other_files_or_change_settings(run: Path, tmp_path: Path) -> None:
    shard = next((run / "shards").glob("*.duckdb"))
    other = tmp_path / "other.txt"
    other.write_text("do not tell")
    with duckdb.connect(str(tmp_path / "merged.duckdb")) as connection:
        confined.confine(connection, [shard])
        connection.execute(f"ATTACH '{shard}' AS one (READ_ONLY)")
        assert connection.execute("SELECT count(*) FROM one.cells").fetchone() is not None
        for statement in (
            f"SELECT content FROM read_text('{other}')",  # noqa: S608
            f"COPY (SELECT 1) TO '{tmp_path / 'written'}'",
            f"ATTACH '{tmp_path / 'another.duckdb'}' AS another",
            "SET enable_external_access = true",
            "INSTALL httpfs",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(statement)
    assert {path.name for path in tmp_path.iterdir()} <= {"runs", "other.txt", "merged.duckdb"}


def test_reading_a_shard_executes_nothing_from_it(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not tell")
    shard = next((run / "shards").glob("*.duckdb"))
    with duckdb.connect(str(shard)) as connection:
        connection.execute("ALTER TABLE cells RENAME TO kept")
        connection.execute(f"CREATE VIEW cells AS SELECT * REPLACE ((SELECT content FROM read_text('{secret}')) AS cell_key) FROM kept")  # noqa: S608
    with pytest.raises(StoreError, match="disabled by configuration"):
        finished_cells([shard])


def test_a_merge_of_one_run_keeps_the_rejections_of_another(tmp_path: Path, database: Path) -> None:
    other = make.plan(run_id="20260102T030406Z-def456")
    folders = [make.run_folder(tmp_path / "runs", plan) for plan in (PLAN, other)]
    for folder in folders:
        (folder / "shards" / "cpu-broken.duckdb").write_text("text")
    began = utc_now()
    merge(folders, database)
    listed = "SELECT run_id, file, strftime(rejected_at, '%Y-%m-%dT%H:%M:%S.%f') FROM rejected ORDER BY run_id"
    before = rows(database, listed)
    assert [(run_id, file) for run_id, file, _ in before] == [(plan.run_id, "cpu-broken.duckdb") for plan in (PLAN, other)]
    assert all(began <= at <= utc_now() for *_, at in before), "the time of the rejection must not change"
    (folders[1] / "shards" / "cpu-broken.duckdb").unlink()
    assert merge(folders[1:], database).rejected == ()
    assert rows(database, listed) == before[:1]


def test_all_views_of_a_shard_are_named(run: Path, database: Path) -> None:
    change(run / "shards" / "cpu-aaaaaaaaaaaa.duckdb", "CREATE VIEW second AS SELECT 2", "CREATE VIEW first AS SELECT 1")
    (rejection,) = merge([run], database).rejected
    assert rejection.reason == "it is not a valid shard: it has views, which could read other files: first, second"


def test_a_plan_that_cannot_be_read_is_named(run: Path, merged: Path) -> None:
    with duckdb.connect(str(merged)) as connection:
        connection.execute("UPDATE runs SET plan = '{}'")
    with pytest.raises(StoreError) as caught:
        merge([run], merged)
    assert f"{merged}, run {PLAN.run_id}" in caught.value.message
    (run / "plan.json").write_text("{}")
    with pytest.raises(StoreError) as caught:
        merge([run], merged)
    assert str(run / "plan.json") in caught.value.message
    (run / "plan.json").unlink()
    with pytest.raises(StoreError, match=r"cannot be read: .*No such file") as caught:
        merge([run], merged)
    assert caught.value.message.startswith(f"{run / 'plan.json'}: ")


def test_hidden_cells_are_reported_with_the_database(run: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = merging.put
    monkeypatch.setattr(merging, "put", lambda connection, plan, _text: put(connection, dataclasses.replace(plan, cells=())))
    monkeypatch.setattr(merging, "_unplanned", lambda *_: {})  # it would refuse the shard first
    with pytest.raises(StoreError) as caught:
        merge([run], database)
    assert caught.value.message.startswith(f"{database}: no report would show these cells: ")


@pytest.mark.parametrize(
    ("later", "canary_ok"),
    [
        (Status.UNAVAILABLE, True),
        (Status.FACTORY_ERROR, True),
        (Status.INFRA_ERROR, True),
        (Status.CRASH, False),
        (Status.PASS, False),
        (Status.FALLBACK, False),
    ],
)
def test_a_later_execution_without_a_verdict_hides_nothing_and_stops_no_merge(
    later: Status, *, canary_ok: bool, tmp_path: Path, database: Path
) -> None:
    folder = make.run_folder(tmp_path / "runs", PLAN)
    make.write_shard(folder / "shards", PLAN, "cpu", "aaaaaaaaaaaa")
    outcome = {} if later is Status.PASS else dict(make.failure(later))
    again = make.result(PLAN.cells[0], **outcome, started_at="2026-01-02T04:00:00.000000")
    make.write_shard(folder / "shards", PLAN, "cpu", "bbbbbbbbbbbb", results=[again], canary_ok=canary_ok)
    assert len(merge([folder], database).merged) == 2
    with duckdb.connect(str(database), read_only=True) as connection:
        found = connection.execute("SELECT status FROM matrix WHERE cell_key = $key", {"key": PLAN.cells[0].key}).fetchall()
    assert found == [("fallback" if later is Status.FALLBACK else "pass",)]


def test_cells_withdrawn_from_several_shards_of_a_run_are_reported(tmp_path: Path, database: Path) -> None:
    folder = make.run_folder(tmp_path / "runs", PLAN)
    gone = {"gpt2/tiny/cpu", "bert/tiny/openvino"}
    for shard_id, target in (("aaaaaaaaaaaa", "cpu"), ("bbbbbbbbbbbb", "openvino")):
        make.write_shard(folder / "shards", PLAN, target, shard_id)
    left = tuple(cell for cell in PLAN.cells if cell.key not in gone)
    (folder / "plan.json").write_text(to_json(dataclasses.replace(PLAN, cells=left, matrix_sha256="cd" * 32)))
    report = merge([folder], database)
    assert (len(report.merged), report.withdrawn) == (2, tuple(sorted(gone)))


def test_a_cell_that_generated_other_than_planned_is_refused(run: Path, database: Path) -> None:
    change(run / "shards" / "cpu-aaaaaaaaaaaa.duckdb", "UPDATE cells SET new_tokens = 8")
    (rejection,) = merge([run], database).rejected
    assert rejection.reason == "its cell bert/tiny/cpu has the new_tokens 8, but 0 in the plan", "the first of its cells, by key"


def test_cells_withdrawn_from_several_runs_are_reported_in_order(tmp_path: Path, database: Path) -> None:
    other = make.plan(run_id="20260102T030406Z-def456")
    folders = []
    for plan, shard_id, withdrawn in ((PLAN, "aaaaaaaaaaaa", "gpt2/tiny/cpu"), (other, "bbbbbbbbbbbb", "bert/tiny/cpu")):
        folders.append(make.run_folder(tmp_path / "runs", plan))
        make.write_shard(folders[-1] / "shards", plan, "cpu", shard_id)
        left = tuple(cell for cell in plan.cells if cell.key != withdrawn)
        (folders[-1] / "plan.json").write_text(to_json(dataclasses.replace(plan, cells=left, matrix_sha256="cd" * 32)))
    make.write_shard(folders[0] / "shards", PLAN, "openvino", "cccccccccccc")  # without withdrawn cells
    report = merge(folders, database)
    assert (len(report.merged), report.rejected) == (3, ())
    assert report.withdrawn == ("bert/tiny/cpu", "gpt2/tiny/cpu")
    kept = rows(database, "SELECT run_id, json_extract_string(plan, '$.withdrawn[*]') FROM runs ORDER BY run_id")
    assert kept == [(PLAN.run_id, ["gpt2/tiny/cpu"]), (other.run_id, ["bert/tiny/cpu"])]
    assert merge(folders, database).withdrawn == report.withdrawn


def test_a_folder_given_twice_counts_once(run: Path, database: Path) -> None:
    report = merge([run, run], database)
    assert sorted(report.merged) == ["aaaaaaaaaaaa", "bbbbbbbbbbbb"]
    assert (report.known, report.rejected) == ((), ())


@pytest.mark.parametrize(("setting", "value"), [("threads", 3), ("new_tokens", 7), ("batch", 2), ("sequence_length", 99)])
def test_a_cell_with_other_settings_than_its_plan_has_is_refused(run: Path, database: Path, setting: str, value: int) -> None:
    plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    (cell,) = (cell for cell in plan["cells"] if cell["key"] == "bert/tiny/cpu")
    before = cell["settings"].get(setting, 0)
    cell["settings"][setting] = value
    if setting in {"batch", "sequence_length"}:  # a plan without the model of its cell is refused as a whole
        plan["models"].append(plan["models"][0] | {setting: value})
    (run / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    report = merge([run], database)
    (rejection,) = report.rejected
    assert rejection.reason == f"its cell bert/tiny/cpu has the {setting} {before}, but {value} in the plan"
    assert len(report.merged) == 1


def test_the_check_for_hidden_cells_reads_a_large_plan_once(tmp_path: Path) -> None:
    """A plan of many cells has many megabytes: one copy of it for each cell would not fit into any memory."""
    path = tmp_path / "many.duckdb"
    with Database(path) as filled:
        filled.run(plan=json.dumps({"models": [{"name": "x" * 3_000_000}]}))
        filled.shard("s", "cpu")
        for number in range(400):
            filled.cell(filled.plan(f"model-{number:03}", "cpu"), "s")
    with duckdb.connect(str(path)) as connection:
        connection.execute("SET memory_limit = '400MB'; SET temp_directory = ''; SET threads = 1")
        assert hidden(connection, [RUN]) == []
