"""Laws of what is counted: every executed cell is one row, a verdict is never hidden, and a model is counted once."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import BEGIN, RUN, Database, steady, unmeasured

from hwmatrix.report.badges import badges
from hwmatrix.report.charts import charts
from hwmatrix.report.rows import read
from hwmatrix.report.totals import totals_of
from hwmatrix.store.reading import reading, records

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

VERDICTS = ("pass", "mismatch", "fallback", "unsupported", "error", "oom", "timeout", "crash")
NO_VERDICTS = ("unavailable", "factory_error", "infra_error")
AXES: tuple[dict[str, tuple[Any, ...]], ...] = (
    {"batch": (1, 8, 32)},
    {"sequence_length": (16, 64), "batch": (2, 4)},
    {"dtype": ("float32", "int8"), "new_tokens": (0, 8), "threads": (1, 4)},
    {"size": ("tiny", "full"), "batch": (1, 2), "new_tokens": (0, 8)},
)
"""What plans vary, apart from models and targets."""


def varied(axes: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def plan_text(settings: Iterable[dict[str, Any]], models: Iterable[str]) -> str:
    """A plan has its models once for each batch and length."""
    keys = dict.fromkeys((s.get("size", "tiny"), s.get("batch", 1), s.get("sequence_length", 16)) for s in settings)
    return json.dumps(
        {
            "models": [
                {"name": model, "size": size, "batch": batch, "sequence_length": length, "weights": "recipe"}
                for model in models
                for size, batch, length in keys
            ]
        }
    )


@pytest.mark.parametrize("axes", AXES)
def test_every_executed_cell_is_one_row_of_each_view(tmp_path: Path, axes: dict[str, tuple[Any, ...]]) -> None:
    settings = varied(axes)
    executed = planned = 0
    with Database(tmp_path / "m.duckdb") as database:
        for run_id, isolation in (("run-1", "container"), ("run-2", "venv")):
            database.run(run_id, plan=plan_text(settings, ("bert", "gpt2")))
            for target, model, setting in itertools.product(("cpu", "openvino"), ("bert", "gpt2"), settings):
                planned += 1
                shard = f"{run_id}-{target}"
                if model == "bert" and setting == settings[0]:
                    database.shard(shard, target, run_id, isolation=isolation)
                row = database.plan(model, target, run_id, cell_key=f"{model}/{target}/{setting}", **setting)
                if planned % 5:
                    executed += 1
                    database.cell(row, shard, wall=steady(2.0))
    with reading(tmp_path / "m.duckdb") as connection:

        def count(what: str) -> int:
            ((number,),) = connection.execute(f"SELECT count(*) FROM {what}").fetchall()  # noqa: S608
            return int(number)

        assert count("hardware_results") == count("(SELECT DISTINCT cell_id FROM hardware_results)") == executed
        assert count("results") == count("matrix") == count("verdicts") == planned
        assert count("hardware_results WHERE weights IS DISTINCT FROM 'random'") == 0
        rows = records(connection, "evidence")
        assert len(rows) == executed
        for row in rows:
            plan = json.loads(row["plan"])
            assert (plan["batch"], plan["sequence_length"]) == (row["batch"], row["sequence_length"])


@pytest.mark.parametrize("later", NO_VERDICTS)
@pytest.mark.parametrize("verdict", VERDICTS)
def test_what_is_no_verdict_never_hides_one_of_the_same_run(tmp_path: Path, verdict: str, later: str) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        row = database.plan("bert", "cpu")
        for number, status in enumerate((verdict, later, "pass")):
            shard = f"s-{number}"
            database.shard(shard, "cpu", canary_ok=number < 2)
            when = {"started_at": BEGIN + dt.timedelta(hours=number), "cell_id": shard}
            database.cell(row, shard, **{**(unmeasured(status) if status != "pass" else {}), **when})
        assert database.connection.execute("SELECT status FROM results").fetchall() == [(verdict,)]


def level_of(path: Path, target: str = "openvino", *, planned: dict[str, Any] | None = None, **measured: Any) -> tuple[str, str | None]:
    """The level of a cell with these facts, and why it is Medium. ``cpu``: the milliseconds of cpu beside it."""
    beside = measured.pop("cpu", None)
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.shard("s", target)
        if beside is not None:
            database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(beside))
        wall = steady(measured.pop("p50")) if "p50" in measured else ()
        database.cell(database.plan("bert", target, **planned or {}), "s", wall=wall, **measured)
        ((level, reason),) = database.connection.execute("SELECT level, level_reason FROM matrix WHERE target = ?", [target]).fetchall()
    return level, reason


def test_a_right_model_is_high_unless_something_was_measured_against_it(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    assert level_of(path) == ("High", None), "it was not timed"
    assert level_of(path, p50=5.0) == ("High", None), "cpu was not timed"
    assert level_of(path, p50=5.0, cpu=10.0) == ("High", None)
    assert level_of(path, p50=10.0, cpu=10.0) == ("High", None), "not told apart"
    assert level_of(path, p50=20.0, cpu=10.0) == ("Medium", "slower than cpu")
    assert level_of(path, p50=20.0, cpu=10.0, device_processes=1) == ("High", None), "disturbed while it was timed"
    assert level_of(path, approximate=True) == ("Medium", "approximate")
    assert level_of(path, on_target=0.5) == ("Medium", "partly placed")
    assert level_of(path, on_target=None) == ("Medium", "placement unknown")
    for execution in ("software", "emulated"):
        assert level_of(path, planned={"execution": execution}, p50=20.0, cpu=10.0) == ("Medium", execution)


def test_a_speed_is_over_cpu_in_float32_and_over_the_target_s_own(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        times = {("cpu", "float32"): 12.0, ("cpu", "int8"): 60.0, ("openvino", "float32"): 6.0, ("openvino", "int8"): 4.0}
        for (target, dtype), p50 in times.items():
            if dtype == "float32":
                database.shard(f"s-{target}", target)
            row = database.plan("bert", target, dtype=dtype, cell_key=f"{target}/{dtype}")
            database.cell(row, f"s-{target}", wall=steady(p50))
        found = database.connection.execute("SELECT target, dtype, round(speed_up, 3), round(own_speed_up, 3) FROM matrix").fetchall()
    assert {row[:2]: row[2:] for row in found} == {
        ("cpu", "float32"): (None, None),
        ("cpu", "int8"): (0.2, 0.2),
        ("openvino", "float32"): (2.0, None),
        ("openvino", "int8"): (3.0, 1.5),
    }


def test_times_of_other_machines_runs_or_settings_are_not_compared(tmp_path: Path) -> None:
    for name, elsewhere in (
        ("host", {"host": "beef"}),
        ("batch", {"batch": 8}),
        ("new_tokens", {"new_tokens": 8}),
        ("threads", {"threads": 4}),
    ):
        with Database(tmp_path / f"{name}.duckdb") as database:
            database.run()
            database.shard("s-cpu", "cpu", **elsewhere if name == "host" else {})
            database.shard("s", "openvino")
            database.cell(database.plan("bert", "cpu", **{} if name == "host" else elsewhere), "s-cpu", wall=steady(1.0))
            database.cell(database.plan("bert", "openvino"), "s", wall=steady(2.0))
            assert database.connection.execute("SELECT count(speed_up) FROM matrix WHERE run_id = ?", [RUN]).fetchall() == [(0,)]


def test_a_workload_is_the_smallest_forward_pass_and_one_generation(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        for target, threads in (("cpu", 1), ("openvino", 4)):
            database.shard(f"s-{target}", target)
            for batch, length, tokens in itertools.product((1, 8), (16, 64), (0, 32)):
                facts = {"batch": batch, "sequence_length": length, "new_tokens": tokens, "threads": threads}
                database.cell(database.plan("bert", target, cell_key=f"{target}/{facts}", **facts), f"s-{target}")
        found = database.connection.execute(
            "SELECT target, workload, batch, sequence_length, new_tokens, threads FROM workloads"
        ).fetchall()
    assert sorted(found) == [
        ("cpu", "forward", 1, 16, 0, 1),
        ("cpu", "generation", 1, 16, 32, 1),
        ("openvino", "forward", 1, 16, 0, 4),
        ("openvino", "generation", 1, 16, 32, 4),
    ]


MODELS = {"bert": "embedding", "gpt2": "text_generation", "llama": "text_generation"}
ADDED: dict[str, list[dict[str, Any]]] = {
    "generations that fail": [{"new_tokens": 32, "status": "mismatch"}],
    "batches": [{"batch": 4}, {"batch": 8, "status": "oom"}],
    "lengths": [{"sequence_length": 512}, {"sequence_length": 1024, "status": "error"}],
    "a precision": [{"dtype": "int8"}],
    "a precision that fails": [{"dtype": "int4", "status": "crash"}],
    "threads": [{"threads": 4}],
    "a precision with fewer threads": [{"dtype": "default", "threads": 0}],
}
"""Cells that are added to each model on each target: none of them is another model."""


def counted(path: Path, added: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a report says of models, and its averages per model, after these cells were added to the forward passes of three models."""
    with Database(path) as database:
        database.run()
        for target, factor in (("cpu", 1.0), ("openvino", 0.5)):
            database.shard(f"s-{target}", target)
            for number, (model, family) in enumerate(MODELS.items()):
                for facts in ({}, *added):
                    settings = {"size": "full", "sequence_length": 128} | facts
                    status = settings.pop("status", "pass")
                    row = database.plan(model, target, family=family, cell_key=f"{model}/{target}/{facts}", **settings)
                    outcome = {"wall": steady(10.0 * factor * (number + 1))} if status == "pass" else unmeasured(status)
                    database.cell(row, f"s-{target}", **outcome)
    rows = read(path)
    totals = totals_of(rows)
    chart = next(chart for chart in charts(rows) if chart.name == "families")
    models = {
        "models": totals.models,
        "inputs": totals.inputs,
        "lines": [(line.column, line.models, line.by_family) for line in totals.lines if line.column.dtype == "float32"],
        "badges": [(badge.label, badge.message) for badge in badges(rows)],
        "families": chart.spec["datasets"]["rows"],
        "choices": [
            {name: row[name] for name in ("family", "target", "tried", "passed", "speed_up", "compared")}
            for row in rows.analysis.choices
            if row["dtype"] in {None, "float32"}
        ],
        "limits": [(row["models"], row["limit_mb"]) for row in rows.analysis.memory_limits],
    }
    averages = {
        name: [
            {column: value for column, value in row.items() if column != "dtype"}
            for row in getattr(rows.analysis, name)
            if row["dtype"] in {None, "float32"} and row.get("workload", "forward") == "forward"
        ]
        for name in ("speeds", "speed_by_architecture", "memory_by_target")
    }
    return models, averages


@pytest.mark.parametrize("what", ADDED)
def test_what_is_no_other_model_changes_neither_a_number_of_models_nor_an_average(tmp_path: Path, what: str) -> None:
    before, after = counted(tmp_path / "before.duckdb", ()), counted(tmp_path / "after.duckdb", ADDED[what])
    assert after == before
    assert before[0]["models"] == 3
    assert {row["models"] for row in before[1]["speeds"]} == {3}
