"""Merging several databases with the latest verdict of every cell: the same in any order, complete, and without users' paths."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwmatrix.cli import main
from hwmatrix.errors import StoreError
from hwmatrix.records import Backend, Dtype, Execution, Stage, Status
from hwmatrix.report.diff import read_side
from hwmatrix.report.json_report import matrix_document
from hwmatrix.report.markdown import matrix_md
from hwmatrix.report.rows import read
from hwmatrix.report.why import explain
from hwmatrix.store.history import add
from hwmatrix.store.latest import merge_latest, merge_places
from hwmatrix.store.merge import merge
from hwmatrix.store.planned import hidden
from hwmatrix.store.shard import ShardWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.records import CellResult, Plan

RECORDED = Path(__file__).parents[2] / "recorded" / "performance.duckdb"
TABLES = (
    *("runs", "planned", "shards", "detections", "cells", "stages", "outputs", "samples", "timings", "operators"),
    *("classifications", "releases", "rejected"),
)


def content(path: Path) -> dict[str, list[str]]:
    """All rows of all tables, sorted."""
    with duckdb.connect(str(path), read_only=True) as connection:
        return {table: sorted(map(repr, connection.execute(f"FROM {table}").fetchall())) for table in TABLES}


def shown(path: Path) -> dict[str, tuple[str, str]]:
    """The status and run of each cell in a report over all runs."""
    return {cell.cell_key: (cell.status.value, cell.run_id) for cell in read(path).cells}


def plan_of(day: int, **changes: Any) -> Plan:
    """The plan of a run on that day."""
    plan = make.plan(run_id=f"2026010{day}T000000Z-abc{day:03}", created_at=f"2026-01-0{day}T00:00:00.000000")
    return dataclasses.replace(plan, **changes)


def write_run(folder: Path, plan: Plan, results: Sequence[CellResult], *, torch: str = "2.13.0", ok: bool = True) -> Path:
    """Write a run's folder with a shard for each target, which has the target's results."""
    run = make.run_folder(folder, plan)
    for target in plan.targets:
        of_target = [result for result in results if result.target == target.name]
        if not of_target:
            continue
        identity = make.identity(target.name, f"{target.name}-{plan.run_id[-6:]}", versions={"torch": torch})
        with ShardWriter(run / "shards", plan, identity) as shard:
            shard.set_canaries(ok=ok, detail=None)
            for result in of_target:
                shard.add_cell(result, command=f"hwmatrix matrix --models {result.model} --targets {target.name}")
            shard.seal()
    return run


def database(folder: Path, day: int, outcomes: dict[str, str] | None = None, *, plan: Plan | None = None, **made: Any) -> Path:
    """A merged database of one run on that day. ``outcomes`` by key: pass (timed), untimed, or a failing status; others were not run."""
    plan = plan or plan_of(day)
    results = []
    for cell in plan.cells:
        outcome = "pass" if outcomes is None else outcomes.get(cell.key)
        changes: dict[str, Any] = {"started_at": f"2026-01-0{day}T00:00:0{plan.cells.index(cell)}.000000"}
        if outcome is None:
            continue
        if outcome == "untimed":
            changes |= {"samples_wall_ns": (), "samples_cpu_ns": ()}
        elif outcome != "pass":
            changes |= make.failure(Status(outcome), Stage.RUN)
        results.append(make.result(cell, **changes))
    path = folder / f"{plan.run_id}-{len(list(folder.glob('*.duckdb')))}.duckdb"
    merge([write_run(folder / f"runs-{path.stem}", plan, results, **made)], path)
    return path


def merged(folder: Path, *databases: Path, name: str = "both", **options: Any) -> Path:
    merge_latest(databases, folder / f"{name}.duckdb", **options)
    return folder / f"{name}.duckdb"


BERT, GPT2, BERT_OV, GPT2_OV = "bert/tiny/cpu", "gpt2/tiny/cpu", "bert/tiny/openvino", "gpt2/tiny/openvino"


def test_the_latest_verdict_of_every_cell_is_kept_with_its_run(tmp_path: Path) -> None:
    first = database(tmp_path, 1, {BERT: "pass", GPT2: "pass", BERT_OV: "crash", GPT2_OV: "error"})
    second = database(tmp_path, 2, {BERT: "error", BERT_OV: "pass"})
    both = merged(tmp_path, first, second)
    one, two = plan_of(1).run_id, plan_of(2).run_id
    assert shown(both) == {BERT: ("error", two), GPT2: ("pass", one), BERT_OV: ("pass", two), GPT2_OV: ("error", one)}
    cells = {cell.model + "/" + cell.target: cell.evidence for cell in matrix_document(read(both)).cells}
    assert cells["bert/cpu"].executed_at is not None
    assert (cells["bert/cpu"].executed_at.day, cells["gpt2/cpu"].run_id) == (2, one)
    with duckdb.connect(str(both), read_only=True) as connection:
        kept = connection.execute("SELECT run_id, cell_key FROM cells WHERE role = 'model' ORDER BY ALL").fetchall()
        assert kept == [(one, BERT), (one, GPT2), (one, GPT2_OV), (two, BERT), (two, BERT_OV)], (
            "superseded results must be removed, but not the last timing"
        )
        assert hidden(connection, [one, two]) == []


@pytest.mark.parametrize("status", ["infra_error", "unavailable", "factory_error"])
def test_only_a_verdict_replaces_a_verdict(tmp_path: Path, status: str) -> None:
    both = merged(tmp_path, database(tmp_path, 1, {BERT: "mismatch"}), database(tmp_path, 2, {BERT: status}))
    assert shown(both)[BERT] == ("mismatch", plan_of(1).run_id)


def test_a_result_with_failed_canaries_replaces_no_verdict(tmp_path: Path) -> None:
    both = merged(tmp_path, database(tmp_path, 1, {BERT: "mismatch"}), database(tmp_path, 2, {BERT: "pass"}, ok=False))
    assert shown(both)[BERT] == ("mismatch", plan_of(1).run_id)


def test_another_precision_length_isolation_or_hub_model_is_another_cell(tmp_path: Path) -> None:
    base = plan_of(1, models=(make.model_plan("bert"),), targets=(make.target_plan("cpu"),), cells=(make.cell_plan("bert", "cpu"),))
    longer = dataclasses.replace(base.cells[0], key="bert/tiny/cpu/s128", settings=dataclasses.replace(make.SETTINGS, sequence_length=128))
    model = dataclasses.replace(base.models[0], sequence_length=128)
    second = dataclasses.replace(base, run_id=plan_of(2).run_id, models=(model,), cells=(longer,))
    third = dataclasses.replace(base, run_id=plan_of(3).run_id, models=(make.model_plan("bert", hub_id="another/bert"),))
    both = merged(tmp_path, *(database(tmp_path, day, plan=plan) for day, plan in enumerate((base, second, third), 1)))
    assert sorted((cell.sequence_length, cell.run_id) for cell in read(both).cells) == [
        (16, base.run_id),
        (16, third.run_id),
        (128, second.run_id),
    ]


def test_a_timed_pass_is_shown_until_the_versions_change(tmp_path: Path) -> None:
    timed, again = database(tmp_path, 1, {BERT: "pass"}), database(tmp_path, 2, {BERT: "untimed"})
    both = merged(tmp_path, timed, again)
    assert shown(both)[BERT] == ("pass", plan_of(1).run_id)
    newer = merged(tmp_path, timed, database(tmp_path, 3, {BERT: "untimed"}, torch="2.14.0"), name="newer")
    assert shown(newer)[BERT] == ("pass", plan_of(3).run_id)
    with duckdb.connect(str(newer), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM verdicts WHERE best_timed AND NOT shown").fetchone() == (1,), (
            "it must be kept for the advice"
        )
    broken = merged(tmp_path, timed, database(tmp_path, 4, {BERT: "crash"}), name="broken")
    assert shown(broken)[BERT] == ("crash", plan_of(4).run_id)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.INT4, Dtype.DEFAULT])
def test_the_cpu_cell_of_a_speed_comparison_is_kept(tmp_path: Path, dtype: Dtype) -> None:
    plan = plan_of(1)
    dtypes = {"cpu": Dtype.FLOAT32, "openvino": dtype}
    cells = (dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, dtype=dtypes[cell.target])) for cell in plan.cells)
    plan = dataclasses.replace(plan, cells=tuple(cells))
    first = database(tmp_path, 1, {BERT: "pass", BERT_OV: "pass"}, plan=plan)
    before = {cell.cell_key: (cell.level, cell.speed_up) for cell in read(first).cells}
    both = merged(tmp_path, first, database(tmp_path, 2, {BERT: "crash"}))
    after = {cell.cell_key: (cell.level, cell.speed_up) for cell in read(both).cells}
    assert after[BERT_OV] == before[BERT_OV]
    assert after[BERT_OV][1] is not None


OUTCOMES = st.sampled_from(["pass", "untimed", "mismatch", "crash", "infra_error"])
KEYS = st.sampled_from([BERT, GPT2, BERT_OV, GPT2_OV])


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), runs=st.lists(st.dictionaries(KEYS, OUTCOMES, min_size=1), min_size=2, max_size=3))
def test_the_same_databases_give_the_same_content_in_any_order_and_repetition(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, runs: list[dict[str, str]]
) -> None:
    versions = [data.draw(st.sampled_from(["2.13.0", "2.14.0"])) for _ in runs]
    folder = tmp_path_factory.mktemp("merged")
    made = [database(folder, day, outcomes, torch=torch) for day, (outcomes, torch) in enumerate(zip(runs, versions, strict=True), 1)]
    expected = content(merged(folder, *made, name="once"))
    order = data.draw(st.permutations([*made, data.draw(st.sampled_from(made))]))
    assert content(merged(folder, *order, name="again")) == expected
    step = merged(folder, *order[:2], name="part")
    assert content(merged(folder, step, *order[2:], name="step")) == expected, "merged one after the other"
    assert content(merged(folder, folder / "once.duckdb", *made, name="more")) == expected, "merged with its own result"
    latest: dict[str, tuple[str, str]] = {}
    for day, outcomes in enumerate(runs, 1):
        latest |= {key: (outcome, plan_of(day).run_id) for key, outcome in outcomes.items() if outcome != "infra_error"}
    found = shown(folder / "once.duckdb")
    for key, (outcome, run_id) in latest.items():
        status, shown_run = found[key]
        assert status == ("pass" if outcome == "untimed" else outcome)
        assert shown_run == run_id or outcome == "untimed"


@pytest.mark.parametrize(
    "runs",
    [
        [("pass", "2.13.0"), ("pass", "2.14.0"), ("untimed", "2.13.0")],
        [("pass", "2.13.0"), ("crash", "2.13.0"), ("untimed", "2.13.0")],
    ],
)
def test_what_was_executed_between_two_runs_changes_no_verdict_when_it_is_merged_first(tmp_path: Path, runs: list[tuple[str, str]]) -> None:
    made = [database(tmp_path, day, {BERT: outcome}, torch=torch) for day, (outcome, torch) in enumerate(runs, 1)]
    once = merged(tmp_path, *made, name="once")
    for last in made:
        first, second = (each for each in made if each != last)
        step = merged(tmp_path, first, second, name="part")
        assert content(merged(tmp_path, step, last, name="step")) == content(once), f"{last.name} was merged last"


def test_merging_existing_content_does_not_change_the_file(tmp_path: Path) -> None:
    first, second = database(tmp_path, 1), database(tmp_path, 2, {BERT: "crash"})
    both = merged(tmp_path, first, second)
    before = both.read_bytes()
    merge_places([first, second], both)
    assert both.read_bytes() == before


def test_the_order_of_columns_does_not_matter(tmp_path: Path) -> None:
    """In an upgraded database, newer columns come last."""
    first, second = database(tmp_path, 1), database(tmp_path, 2, {BERT: "crash"})
    both = merged(tmp_path, first, second)
    with duckdb.connect(str(both)) as connection:
        names = [name for (name,) in connection.execute("SELECT column_name FROM (DESCRIBE cells)").fetchall()]
        connection.execute(f"CREATE TABLE turned AS SELECT {', '.join(reversed(names))} FROM cells")  # noqa: S608
        connection.execute("DROP TABLE cells")
        connection.execute("ALTER TABLE turned RENAME TO cells")
    before, told = both.read_bytes(), shown(both)
    merge_places([both, first], both)
    assert both.read_bytes() == before
    merge_places([both, database(tmp_path, 3, {BERT: "pass"})], both)
    assert {key: verdict for key, verdict in shown(both).items() if key != BERT} == {
        key: verdict for key, verdict in told.items() if key != BERT
    }
    assert shown(both) != told


def test_runs_and_databases_can_be_merged_together(tmp_path: Path) -> None:
    plan = plan_of(2)
    run = write_run(tmp_path / "runs", plan, [make.result(cell, started_at="2026-01-02T00:00:00.000000") for cell in plan.cells])
    kept, folders = merge_places([database(tmp_path, 1), run], tmp_path / "both.duckdb")
    assert ([len(each.merged) for each in folders], kept.cells) == ([2], 4)
    assert {run_id for _, run_id in shown(tmp_path / "both.duckdb").values()} == {plan.run_id}


def test_the_command_merges_databases_and_then_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = tmp_path / "both.duckdb"
    first = database(tmp_path, 1, {BERT: "pass", GPT2: "pass", BERT_OV: "pass", GPT2_OV: "mismatch"})
    assert main.main(["merge", str(first), str(database(tmp_path, 2, {GPT2_OV: "crash"})), "--database", str(both)]) == 0
    assert "the latest verdicts of 2 runs on 4 cells; 1 earlier executions are left out" in " ".join(capsys.readouterr().out.split())
    plan = plan_of(3)
    run = write_run(tmp_path / "runs", plan, [make.result(plan.cells[0], started_at="2026-01-03T00:00:00.000000")])
    assert main.main(["merge", str(run), "--database", str(both)]) == 0
    assert shown(both)[BERT] == ("pass", plan.run_id)
    assert len(read(both).parts) == 3


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3 :] = bytes(len(data) - len(data) // 3)
    path.write_bytes(bytes(data[: len(data) // 2]))


@pytest.mark.parametrize("kind", ["damaged", "missing", "no database", "another schema", "a shard"])
def test_an_unreadable_database_is_refused_by_name_and_nothing_is_written(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = database(tmp_path, 1), database(tmp_path, 2).rename(tmp_path / "bad.duckdb")
    if kind == "damaged":
        damage(bad)
    elif kind == "missing":
        bad.unlink()
    elif kind == "no database":
        bad.write_text("text", encoding="utf-8")
    elif kind == "another schema":
        with duckdb.connect(str(bad)) as connection:
            connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    else:
        shutil.copy(next((tmp_path).rglob("shards/*.duckdb")), bad)
    assert main.main(["merge", str(good), str(bad), "--database", str(tmp_path / "both.duckdb")]) == 7
    assert "bad.duckdb" in capsys.readouterr().err
    assert not (tmp_path / "both.duckdb").exists()


def test_a_view_instead_of_a_table_is_refused(tmp_path: Path) -> None:
    good, bad = database(tmp_path, 1), database(tmp_path, 2)
    with duckdb.connect(str(bad)) as connection:
        connection.execute("DROP TABLE releases; CREATE VIEW releases AS SELECT content AS run_id FROM read_text('/etc/hostname')")
    with pytest.raises(StoreError, match="views instead of tables"):
        merge_latest([good, bad], tmp_path / "both.duckdb")


def test_different_content_of_the_same_shard_is_refused(tmp_path: Path) -> None:
    one, other = database(tmp_path, 1), database(tmp_path, 1, {BERT: "crash", BERT_OV: "pass"})
    with pytest.raises(StoreError, match="differs from the one with the same id"):
        merge_latest([one, other], tmp_path / "both.duckdb")


def test_older_versions_are_marked_with_their_date(tmp_path: Path) -> None:
    first = database(tmp_path, 1, {BERT: "pass", GPT2: "pass", BERT_OV: "pass"}, torch="2.12.0")
    both = merged(tmp_path, first, database(tmp_path, 2, {BERT: "pass"}))
    cells = {cell.cell_key: cell for cell in read(both).cells}
    assert {key: cell.older_than for key, cell in cells.items() if cell.started_at} == {
        BERT: None,
        GPT2: plan_of(2).run_id,
        BERT_OV: None,
    }, "openvino has no newer run"
    assert "‡ 2026-01-01" in matrix_md(read(both))
    (answer,) = explain(both, "gpt2", "cpu")
    assert any("older than the newest run of its target: executed on 2026-01-01" in doubt for doubt in answer.doubts)
    by_name = {(cell.model, cell.target): cell.evidence.older_than for cell in matrix_document(read(both)).cells}
    assert (by_name["gpt2", "cpu"], by_name["bert", "cpu"]) == (plan_of(2).run_id, None)
    assert "‡" not in matrix_md(read(first)), "a single run must not be marked as older"


def test_a_published_database_gives_the_same_reports_without_samples(tmp_path: Path) -> None:
    first, second = database(tmp_path, 1), database(tmp_path, 2, {BERT: "mismatch"})
    whole, lean = merged(tmp_path, first, second, name="whole"), merged(tmp_path, first, second, name="lean", publish=True)
    with duckdb.connect(str(lean), read_only=True) as connection:
        assert connection.execute("SELECT (SELECT count(*) FROM samples), (SELECT count(*) FROM timings)").fetchone() == (0, 4)
        assert connection.execute("SELECT block_size FROM pragma_database_size()").fetchone() == (16384,)
    one, other = (read(path) for path in (whole, lean))
    assert [dataclasses.replace(cell, load_ms=None, prepare_ms=None, first_ms=None) for cell in one.cells] == [
        dataclasses.replace(cell, load_ms=None, prepare_ms=None, first_ms=None) for cell in other.cells
    ]
    assert [(cell.p25_ms, cell.noise_ms) for cell in read_side(whole).cells] == [
        (cell.p25_ms, cell.noise_ms) for cell in read_side(lean).cells
    ]
    again = merged(tmp_path, lean, whole, name="again", publish=True)
    assert content(again) == content(lean)


def test_no_user_s_path_is_published(tmp_path: Path) -> None:
    plan = plan_of(1, command="hwmatrix matrix --matrix /srv/alice/own.yaml --output-dir=/home/alice/out")
    weights = "/home/alice/.cache/huggingface/hub/models--bert/snapshots/0a1b"
    plan = dataclasses.replace(plan, models=tuple(dataclasses.replace(model, weights=weights, revision="0a1b") for model in plan.models))
    failure = make.failure(Status.ERROR)
    trace = 'File "/home/alice/.venv/lib/python3.11/site-packages/torch/nn.py", line 3\nat /model/layers.0/MatMul\n/opt/venv/lib/x.py'
    failure["error"] = dataclasses.replace(failure["error"], traceback=trace, message="no /Users/alice/model.onnx")
    path = tmp_path / "one.duckdb"
    merge([write_run(tmp_path / "runs", plan, [make.result(cell, **failure) for cell in plan.cells])], path)
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE cells SET command = 'hwmatrix matrix --matrix /anywhere/alice/own.yaml'")
    lean = merged(tmp_path, path, name="lean", publish=True)
    texts = list(itertools.chain.from_iterable(content(lean).values()))
    assert texts
    assert not [text for text in texts if "alice" in text]
    with duckdb.connect(str(lean), read_only=True) as connection:
        found = connection.execute("SELECT DISTINCT traceback, message, command FROM cells").fetchall()
        assert found == [
            (
                'File "…/site-packages/torch/nn.py", line 3\nat /model/layers.0/MatMul\n/opt/venv/lib/x.py',
                "no …/model.onnx",
                "hwmatrix matrix --matrix own.yaml",
            )
        ]
        command, kept = connection.execute("SELECT command, CAST(plan AS VARCHAR) FROM runs").fetchall()[0]
        assert command == "hwmatrix matrix --matrix own.yaml --output-dir=out"
        assert json.loads(kept)["models"][0]["weights"] == "…/snapshots/0a1b"
    together = merged(tmp_path, lean, path, name="together", publish=True)
    assert content(together) == content(lean), "the original run and the published one must be recognized as the same"


def test_no_gpu_s_serial_number_is_published(tmp_path: Path) -> None:
    path = database(tmp_path, 1)
    gpus = '[{"index": 0, "name": "NVIDIA H200", "uuid": "GPU-e9c4", "memory_mb": 143771}]'
    with duckdb.connect(str(path)) as connection:
        shards = connection.execute("SELECT shard_id FROM shards").fetchall()
        for (shard,) in shards:
            row = [shard, "cuda", f'{{"driver": "580.159.04", "gpus": {gpus}}}']
            connection.execute("INSERT INTO detections VALUES (?, ?, true, 'NVIDIA H200', ?, NULL, '2026-01-01')", row)
    lean = merged(tmp_path, path, name="lean", publish=True)
    with duckdb.connect(str(lean), read_only=True) as connection:
        found = {text for (text,) in connection.execute("SELECT CAST(features AS VARCHAR) FROM detections").fetchall()}
    assert [json.loads(text) for text in found] == [
        {"driver": "580.159.04", "gpus": [{"index": 0, "name": "NVIDIA H200", "memory_mb": 143771}]}
    ]
    assert content(merged(tmp_path, lean, path, name="together", publish=True)) == content(lean)


def test_cells_that_were_never_run_are_not_published(tmp_path: Path) -> None:
    first, second = database(tmp_path, 1, {BERT: "pass"}), database(tmp_path, 2, {GPT2: "unavailable"})
    assert shown(merged(tmp_path, first, second))[BERT_OV][0] == "not_run"
    lean = merged(tmp_path, first, second, name="lean", publish=True)
    assert shown(lean) == {BERT: ("pass", plan_of(1).run_id), GPT2: ("unavailable", plan_of(2).run_id)}
    assert content(merged(tmp_path, lean, first, second, name="again", publish=True)) == content(lean)


def test_a_history_refuses_incomplete_runs(tmp_path: Path) -> None:
    both = merged(tmp_path, database(tmp_path, 1), database(tmp_path, 2))
    with pytest.raises(StoreError, match="keeps only the latest verdicts"):
        add(tmp_path / "history.duckdb", [both])
    assert not (tmp_path / "history.duckdb").exists()


def test_a_single_run_can_be_reported(tmp_path: Path) -> None:
    both = merged(tmp_path, database(tmp_path, 1), database(tmp_path, 2, {BERT: "crash"}))
    alone = read(both, plan_of(2).run_id)
    assert [(cell.cell_key, cell.status) for cell in alone.cells] == [(BERT, Status.CRASH)]
    assert alone.run.run_id == plan_of(2).run_id
    together = read(both)
    assert together.run.run_id == f"latest-of-2-runs-to-{plan_of(2).run_id}"
    assert [(part.run_id, part.cells, part.targets) for part in together.parts] == [
        (plan_of(2).run_id, 1, ("cpu",)),
        (plan_of(1).run_id, 3, ("cpu", "openvino")),
    ]


def test_an_emulator_s_times_do_not_keep_an_older_verdict(tmp_path: Path) -> None:
    emulated = make.target_plan("qnn", backend=Backend.QNN, execution=Execution.EMULATED)
    plans = [plan_of(day, models=(make.model_plan("bert"),), targets=(emulated,), cells=(make.cell_plan("bert", "qnn"),)) for day in (1, 2)]
    first = database(tmp_path, 1, {"bert/tiny/qnn": "pass"}, plan=plans[0])
    second = database(tmp_path, 2, {"bert/tiny/qnn": "untimed"}, plan=plans[1])
    assert shown(merged(tmp_path, first, second))["bert/tiny/qnn"] == ("pass", plans[1].run_id)
