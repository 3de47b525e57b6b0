"""A history adds databases run by run, each run once, completely or not at all. It is a merged database itself."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import duckdb
import jsonschema
import pytest
from factory_rows import BEGIN, Database, example, steady, unmeasured

from hwmatrix.app.schemas import history_schema
from hwmatrix.cli import main
from hwmatrix.errors import StoreError
from hwmatrix.report.history import history_json, history_md, read_runs, read_trends
from hwmatrix.report.rows import read
from hwmatrix.store.history import add

if TYPE_CHECKING:
    from pathlib import Path


def run(path: Path, run_id: str, *, p50_ms: float | None = 2.0, day: int = 1, **shard: Any) -> Path:
    """A database with one run of one cell; without a time, the cell crashed."""
    with Database(path) as database:
        database.run(run_id, created_at=BEGIN.replace(day=day))
        database.shard(f"s-{run_id}", "cpu", run_id, sha256=f"{run_id}-sum", **shard)
        changes = {} if p50_ms is not None else unmeasured("crash")
        database.cell(database.plan("bert", "cpu", run_id), f"s-{run_id}", wall=steady(p50_ms) if p50_ms else (), **changes)
        database.detection(f"s-{run_id}")
    return path


def count(path: Path, table: str) -> int:
    with duckdb.connect(str(path), read_only=True) as connection:
        row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
    assert row is not None
    return int(row[0])


def test_runs_accumulate(tmp_path: Path) -> None:
    history = tmp_path / "deep" / "history.duckdb"
    first = add(history, [run(tmp_path / "a.duckdb", "a")], release="1.0")
    second = add(history, [run(tmp_path / "b.duckdb", "b", p50_ms=None, day=2)])
    assert [(added.runs, added.shards, added.known) for added in (*first, *second)] == [(("a",), 1, 0), (("b",), 1, 0)]
    assert [(each.run_id, each.release, each.passed, each.failed, each.targets) for each in read_runs(history)] == [
        ("a", "1.0", 1, 0, ("cpu",)),
        ("b", None, 0, 1, ("cpu",)),
    ]
    (trend,) = read_trends(history)
    assert [moment.status.value for moment in trend.moments] == ["pass", "crash"]
    assert trend.moments[0].p50_ms == pytest.approx(2.0)
    assert trend.last.p50_ms is None


def test_the_trends_of_one_model_are_those_of_the_whole_history(tmp_path: Path) -> None:
    """They are computed from that model's cells alone: speeds compare it with its own cpu cell, and its retries are its own."""
    history = tmp_path / "h.duckdb"
    add(
        history, [example(tmp_path / "m.duckdb"), run(tmp_path / "a.duckdb", "a", p50_ms=3.0), run(tmp_path / "b.duckdb", "b", p50_ms=None)]
    )
    whole = read_trends(history)
    models = {trend.last.model for trend in whole}
    assert len(models) > 3
    assert any(moment.speed_up is not None for trend in whole for moment in trend.moments)
    assert read_trends(history, model="it's no model") == ()
    for model in models:
        mine = tuple(trend for trend in whole if trend.last.model == model)
        assert read_trends(history, model=model) == mine
        for target in {trend.last.target for trend in mine}:
            assert read_trends(history, model=model, target=target) == tuple(trend for trend in mine if trend.last.target == target)


def test_adding_again_changes_nothing(tmp_path: Path) -> None:
    history, database = tmp_path / "h.duckdb", run(tmp_path / "a.duckdb", "a")
    add(history, [database, database])
    tables = ("runs", "planned", "shards", "cells", "samples", "outputs", "detections")
    before = {table: count(history, table) for table in tables}
    (again,) = add(history, [database])
    assert (again.runs, again.shards, again.known) == ((), 0, 1)
    assert {table: count(history, table) for table in tables} == before
    assert before["samples"] == count(database, "samples") > 0


def test_a_run_with_new_shards_adds_these(tmp_path: Path) -> None:
    history, database = tmp_path / "h.duckdb", run(tmp_path / "a.duckdb", "a")
    add(history, [database])
    with duckdb.connect(str(database)) as connection:
        connection.execute("INSERT INTO shards SELECT * REPLACE ('late' AS shard_id, 'late-sum' AS sha256) FROM shards")
        connection.execute("INSERT INTO cells SELECT * REPLACE ('late' AS shard_id, 'late-cell' AS cell_id) FROM cells")
    (added,) = add(history, [database])
    assert (added.runs, added.shards, added.known) == ((), 1, 1)
    assert (count(history, "cells"), count(history, "planned")) == (2, 1)


def test_other_content_under_the_same_id_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    history = tmp_path / "h.duckdb"
    add(history, [run(tmp_path / "a.duckdb", "a")])
    before = history.read_bytes()
    changed = run(tmp_path / "changed.duckdb", "a")
    with duckdb.connect(str(changed)) as connection:
        connection.execute("UPDATE shards SET sha256 = 'another'")
    with pytest.raises(StoreError, match="differs from the one with the same id"):
        add(history, [run(tmp_path / "b.duckdb", "b"), changed])
    assert history.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_release_keeps_its_name(tmp_path: Path) -> None:
    history, database = tmp_path / "h.duckdb", run(tmp_path / "a.duckdb", "a")
    add(history, [database], release="1.0")
    add(history, [database], release="1.0")
    with pytest.raises(StoreError, match=r"is called '1\.0' in the history, not '2\.0'"):
        add(history, [database], release="2.0")
    onward = tmp_path / "onward.duckdb"
    add(onward, [history])
    assert [each.release for each in read_runs(onward)] == ["1.0"]


@pytest.mark.parametrize("text", [b"", b"text"])
def test_a_file_that_is_not_a_database_is_refused_before_anything_is_copied(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "broken.duckdb").write_bytes(text)
    with pytest.raises(StoreError):
        add(tmp_path / "h.duckdb", [run(tmp_path / "a.duckdb", "a"), tmp_path / "broken.duckdb"])
    assert not (tmp_path / "h.duckdb").exists()


def test_a_view_instead_of_a_table_is_refused_and_never_read(tmp_path: Path) -> None:
    foreign = run(tmp_path / "a.duckdb", "a")
    with duckdb.connect(str(foreign)) as connection:
        connection.execute("DROP TABLE releases; CREATE VIEW releases AS SELECT content AS run_id FROM read_text('/etc/hostname')")
    with pytest.raises(StoreError, match="views instead of tables: releases"):
        add(tmp_path / "h.duckdb", [foreign])
    assert not (tmp_path / "h.duckdb").exists()


def test_text_of_a_history_is_printed_without_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = run(tmp_path / "matrix.duckdb", "a\x1b[31m\u202e")
    before = database.read_bytes()
    assert [summary.release for summary in read_runs(database)] == [None]
    assert [len(trend.moments) for trend in read_trends(database)] == [1]
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main.main(["history", "bert", "--database", str(tmp_path)]) == 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    printed = capsys.readouterr().out
    assert "bert on cpu" in printed
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert database.read_bytes() == before


def test_reports_read_a_history(tmp_path: Path) -> None:
    history = tmp_path / "h.duckdb"
    add(history, [example(tmp_path / "m.duckdb")])
    assert read(history).cells == read(tmp_path / "m.duckdb").cells


def test_documents_of_a_history(tmp_path: Path) -> None:
    history = tmp_path / "h.duckdb"
    add(history, [example(tmp_path / "m.duckdb")], release="<b>|1.0")
    text = history_md(read_runs(history), read_trends(history))
    assert "<b>" not in text
    for table in text.split("\n## "):
        assert len({line.count("|") for line in table.splitlines() if line.startswith("|")}) == 1
    document = json.loads(history_json(read_runs(history), read_trends(history, model="bert")))
    jsonschema.validate(document, history_schema())
    assert document["schema"] == "hwmatrix/history/1"
    assert document["runs"][0]["created_at"] == "2026-01-02T03:04:05+00:00"
    assert {cell[0]["model"] for cell in document["cells"]} == {"bert"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports" / "latest").mkdir(parents=True)
    run(tmp_path / "reports" / "latest" / "matrix.duckdb", "a")
    return tmp_path


def hwmatrix(*argv: str) -> int:
    before = signal.getsignal(signal.SIGTERM)
    try:
        return main.main(list(argv))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("history", "--add", "reports/latest", "--release", "1.0") == 0
    told = capsys.readouterr()
    assert "1 run and 1 shard added" in told.err
    assert "1.0" in told.out
    assert (project / "reports" / "history.duckdb").is_file()
    assert hwmatrix("history", "bert", "cpu") == 0
    assert "bert on cpu: tiny float32 b1 s16 t1 (container)" in capsys.readouterr().out
    assert hwmatrix("history", "bert", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["cells"][0][0]["release"] == "1.0"
    assert hwmatrix("history", "--format", "markdown") == 0
    assert capsys.readouterr().out.startswith("# History")


@pytest.mark.parametrize(
    ("argv", "code", "what"),
    [
        (("history", "--database", "none.duckdb"), 7, "there is no such file"),
        (("history", "brt", "--database", "reports/latest/matrix.duckdb"), 2, "did you mean 'bert'?"),
        (("history", "bert", "cp", "--database", "reports/latest/matrix.duckdb"), 2, "did you mean 'cpu'?"),
        (("history", "--release", "1.0"), 2, "nothing is added"),
        (("history", "--add", "nowhere"), 7, "there is no such file"),
    ],
)
@pytest.mark.usefixtures("project")
def test_bad_arguments(argv: tuple[str, ...], code: int, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix(*argv) == code
    assert what in capsys.readouterr().err
