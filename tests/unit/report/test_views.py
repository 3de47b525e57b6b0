from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import BEGIN, FAILURES, RUN, Database, steady, unmeasured

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "matrix.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.shard("s-ov", "openvino")
        yield database


def fetch(database: Database, columns: str, where: str = "true", view: str = "matrix") -> Any:
    rows = database.connection.execute(f"SELECT {columns} FROM {view} WHERE {where}").fetchall()  # noqa: S608
    assert len(rows) == 1
    return rows[0] if len(rows[0]) > 1 else rows[0][0]


def pair(database: Database, cpu: tuple[int, ...], openvino: tuple[int, ...], **changes: Any) -> tuple[Any, ...]:
    """Level, speedup and whether it differs, for openvino compared with cpu."""
    planned = {name: changes.pop(name) for name in ("threads", "execution", "dtype") if name in changes}
    database.cell(database.plan("bert", "cpu"), "s-cpu", wall=cpu)
    database.cell(database.plan("bert", "openvino", **planned), "s-ov", wall=openvino, **changes)
    return fetch(database, "level, speed_up, speed_differs", "target = 'openvino'")


def test_level_high_when_faster(database: Database) -> None:
    level, speed_up, differs = pair(database, steady(4.0), steady(2.0))
    assert (level, differs) == ("High", True)
    assert speed_up == pytest.approx(2.0)


def test_level_high_when_the_intervals_overlap(database: Database) -> None:
    level, speed_up, differs = pair(database, steady(4.0, spread=0.2), steady(4.01, spread=0.2))
    assert (level, differs) == ("High", False)
    assert speed_up == pytest.approx(4.0 / 4.01)


def test_level_medium_when_slower(database: Database) -> None:
    assert pair(database, steady(2.0), steady(4.0))[::2] == ("Medium", True)


def test_level_medium_when_partly_placed(database: Database) -> None:
    assert pair(database, steady(4.0), steady(2.0), on_target=0.99)[0] == "Medium"


def test_level_medium_when_the_placement_is_unknown(database: Database) -> None:
    assert pair(database, steady(4.0), steady(2.0), on_target=None)[0] == "Medium"


def test_cpu_with_other_settings_is_not_compared(database: Database) -> None:
    assert pair(database, steady(4.0), steady(2.0), threads=2) == ("High", None, False)


@pytest.mark.parametrize("dtype", ["default", "int4", "bfloat16"])
def test_every_precision_is_compared_with_cpu_in_float32(database: Database, dtype: str) -> None:
    level, speed_up, differs = pair(database, steady(4.0), steady(2.0), dtype=dtype)
    assert (level, differs) == ("High", True)
    assert speed_up == pytest.approx(2.0)


@pytest.mark.parametrize("execution", ["software", "emulated"])
def test_software_and_emulation_have_level_medium_and_no_speedup(database: Database, execution: str) -> None:
    assert pair(database, steady(4.0), steady(2.0), execution=execution) == ("Medium", None, False)


def test_another_machine_is_not_compared(database: Database) -> None:
    database.shard("s-far", "openvino", host="beef")
    database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(4.0))
    database.cell(database.plan("bert", "openvino"), "s-far", wall=steady(2.0))
    assert fetch(database, "level, speed_up", "target = 'openvino'") == ("High", None)


def test_another_isolation_is_not_compared(database: Database) -> None:
    database.shard("s-venv", "openvino", isolation="venv")
    database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(4.0))
    database.cell(database.plan("bert", "openvino"), "s-venv", wall=steady(2.0))
    assert fetch(database, "level, speed_up", "target = 'openvino'") == ("High", None)


def test_a_failed_cpu_cell_is_not_compared(database: Database) -> None:
    database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(4.0), status="mismatch")
    database.cell(database.plan("bert", "openvino"), "s-ov", wall=steady(2.0))
    assert fetch(database, "level, speed_up", "target = 'openvino'") == ("High", None)


def test_an_untimed_pass_is_high(database: Database) -> None:
    database.cell(database.plan("bert", "cpu"), "s-cpu", stage="compare")
    database.cell(database.plan("bert", "openvino"), "s-ov", stage="compare")
    assert fetch(database, "level, speed_up", "target = 'openvino'") == ("High", None)
    assert fetch(database, "level, speed_up", "target = 'cpu'") == ("High", None)
    assert fetch(database, "bool_or(speed_differs)") is False


@pytest.mark.parametrize("timed", ["cpu", "openvino"])
def test_a_time_without_a_cpu_time_is_not_compared(database: Database, timed: str) -> None:
    for target, shard in (("cpu", "s-cpu"), ("openvino", "s-ov")):
        database.cell(database.plan("bert", target), shard, wall=steady(2.0) if target == timed else ())
    assert fetch(database, "level, speed_up", "target = 'openvino'") == ("High", None)


def test_two_cpu_targets_do_not_duplicate_rows(database: Database) -> None:
    database.shard("s-cpu2", "cpu-other")
    database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(4.0))
    database.cell(database.plan("bert", "cpu-other", backend="cpu"), "s-cpu2", wall=steady(8.0))
    database.cell(database.plan("bert", "openvino"), "s-ov", wall=steady(2.0))
    assert fetch(database, "count(*)") == 3
    assert fetch(database, "speed_up", "target = 'openvino'") == pytest.approx(2.0)  # compared with the first one of matrix.yaml
    assert fetch(database, "level", "target = 'cpu-other'") == "Medium"  # twice as slow as the first


LEVELS = {
    "mismatch": "none",
    "fallback": "Low",
    "unsupported": "none",
    "error": "none",
    "oom": "none",
    "timeout": "none",
    "crash": "none",
    "unavailable": None,
    "factory_error": None,
    "infra_error": None,
}


@pytest.mark.parametrize("status", FAILURES)
def test_level_of_each_status(database: Database, status: str) -> None:
    database.cell(database.plan("bert", "openvino"), "s-ov", **unmeasured(status))
    expected = FAILURES[status]
    row = fetch(database, "status, level, error_type, severity, message, stage")
    assert row == (
        status,
        LEVELS[status],
        expected.get("error_type"),
        expected.get("severity"),
        expected["message"],
        expected["stage"],
    )


def test_a_cell_without_execution_is_not_run(database: Database) -> None:
    database.plan("bert", "cpu")
    assert fetch(database, "status, level, error_type, cell_id, isolation, column_isolation") == (
        "not_run",
        None,
        None,
        None,
        None,
        "container",
    )


def test_a_missing_target_is_unavailable(database: Database) -> None:
    database.plan("bert", "gpu", unavailable="no driver")
    assert fetch(database, "status, level, error_type, severity, message") == (
        "unavailable",
        None,
        "target_unavailable",
        "info",
        "no driver",
    )


def test_an_unbuildable_model_is_a_factory_error_even_on_a_missing_target(database: Database) -> None:
    database.plan("mixtral", "gpu", unavailable="no driver", unbuildable="47 B parameters")
    assert fetch(database, "status, level, error_type, message") == ("factory_error", None, "unbuildable", "47 B parameters")


@pytest.mark.parametrize("canary_ok", [False, None])
def test_a_shard_with_failed_canaries_proves_nothing(database: Database, canary_ok: bool | None) -> None:  # noqa: FBT001
    database.shard("s-bad", "openvino", canary_ok=canary_ok, canary_detail=None)
    database.cell(database.plan("bert", "openvino"), "s-bad", wall=steady(2.0))
    row = fetch(database, "status, level, error_type, severity, p50_ms, peak_mb, relative_error, on_target")
    assert row == ("infra_error", None, "canary_failed", "critical", None, None, None, None)
    assert "canaries" in fetch(database, "message")
    assert fetch(database, "command") is not None
    assert fetch(database, "success, inference_time", view="hardware_results") == (False, None)


def test_an_infra_error_keeps_its_own_reason_when_canaries_failed(database: Database) -> None:
    database.shard("s-bad", "openvino", canary_ok=False)
    database.cell(database.plan("bert", "openvino"), "s-bad", **unmeasured("infra_error"))
    assert fetch(database, "status, error_type") == ("infra_error", "bundle_broken")


@pytest.mark.parametrize(("cpu_busy", "openvino_busy", "expected"), [(1.0, 1.0, False), (0.8, 1.0, True), (1.0, 0.8, True)])
def test_a_comparison_with_a_contended_time_is_marked(
    database: Database,
    cpu_busy: float,
    openvino_busy: float,
    expected: bool,  # noqa: FBT001 - the last column of the table
) -> None:
    database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(4.0), busy=cpu_busy)
    database.cell(database.plan("bert", "openvino"), "s-ov", wall=steady(2.0), busy=openvino_busy)
    assert fetch(database, "speed_contended", "target = 'openvino'") is expected


def test_canaries_are_not_models(database: Database) -> None:
    planned = database.plan("bert", "cpu")
    database.cell(planned, "s-cpu", role="canary_good", cell_id="canary")
    assert fetch(database, "status") == "not_run"


def test_the_newest_execution_counts(database: Database) -> None:
    database.shard("s-again", "cpu")
    planned = database.plan("bert", "cpu")
    database.cell(planned, "s-cpu", **unmeasured("crash"), started_at=BEGIN)
    database.cell(planned, "s-again", wall=steady(2.0), started_at=BEGIN.replace(hour=9))
    assert fetch(database, "status, level") == ("pass", "High")


def test_executions_of_another_run_do_not_count(database: Database) -> None:
    database.run("run-2", created_at=BEGIN.replace(hour=9))
    planned = database.plan("bert", "cpu")
    database.cell(planned, "s-cpu", wall=steady(2.0))
    database.plan("bert", "cpu", run_id="run-2")
    assert fetch(database, "status", f"run_id = '{RUN}'") == "pass"
    assert fetch(database, "status", "run_id = 'run-2'") == "not_run"


def test_the_statistics_of_latency(database: Database) -> None:
    milliseconds = [5, 1, 4, 2, 3, 6, 7, 8, 9, 10, 11]
    database.cell(database.plan("bert", "cpu"), "s-cpu", wall=[value * 1_000_000 for value in milliseconds])
    row = fetch(database, "samples, p50_ms, p90_ms, mean_ms, min_ms, max_ms, cpu_p50_ms", view="latency")
    assert row == (11, 6.0, 10.0, 6.0, 1.0, 11.0, 6.0)


def ranks(database: Database, count: int) -> tuple[int, int]:
    """The ranks of the interval's ends among ``count`` sorted samples."""
    database.cell(database.plan("bert", "cpu"), "s-cpu", wall=[n * 1_000_000 for n in range(1, count + 1)])
    low, high = fetch(database, "ci_low_ms, ci_high_ms", view="latency")
    return round(low), round(high)


@pytest.mark.parametrize("count", [6, 7, 10, 30, 31, 100, 301, 1000])
def test_the_interval_of_the_median_holds_95_percent(database: Database, count: int) -> None:
    low, high = ranks(database, count)
    assert 1 <= low < high <= count
    # The median lies between the order statistics low and high if at least low and fewer than high samples are below it.
    coverage = sum(math.comb(count, below) for below in range(low, high)) / 2**count
    assert coverage >= 0.95
    if count >= 30:
        assert coverage < 0.985  # and not much wider than necessary


def test_below_six_samples_there_is_no_interval(database: Database) -> None:
    database.cell(database.plan("bert", "cpu"), "s-cpu", wall=[1_000_000] * 5)
    assert fetch(database, "p50_ms, ci_low_ms, ci_high_ms", view="latency") == (1.0, None, None)


@pytest.mark.parametrize(("threads", "busy", "expected"), [(1, 1.0, False), (1, 0.97, False), (1, 0.9, True), (2, 0.5, None)])
def test_contended(database: Database, threads: int, busy: float, expected: bool | None) -> None:  # noqa: FBT001
    database.cell(database.plan("bert", "cpu", threads=threads), "s-cpu", wall=steady(2.0), busy=busy)
    assert fetch(database, "contended") is expected


@pytest.mark.parametrize(("others", "expected"), [(0, False), (2, True)])
def test_on_a_device_that_counts_its_processes_they_decide(database: Database, others: int, expected: bool) -> None:  # noqa: FBT001
    database.cell(database.plan("bert", "cuda"), "s-cpu", wall=steady(2.0), busy=0.5, device_processes=others)
    assert fetch(database, "contended", "target = 'cuda'") is expected


def test_without_samples_nothing_is_contended(database: Database) -> None:
    database.cell(database.plan("bert", "cpu"), "s-cpu")
    assert fetch(database, "contended, p50_ms, samples") == (None, None, None)


def test_the_view_hardware_results_has_the_promised_columns(database: Database) -> None:
    database.cell(database.plan("bert", "cpu", hub_id="bert-base-uncased"), "s-cpu", wall=steady(2.0))
    database.plan("bert", "openvino")
    row = database.connection.execute("SELECT * FROM hardware_results").fetchall()
    names = [column[0] for column in database.connection.description or ()]
    assert names == [
        *("id", "model_id", "model_type", "hardware", "success", "load_time", "inference_time", "memory_usage", "error", "timestamp"),
        *(
            "output_shape",
            "size",
            "dtype",
            "batch",
            "sequence_length",
            "threads",
            "new_tokens",
            "execution",
            "weights",
            "hub_id",
            "cell_id",
        ),
    ]
    assert len(row) == 1
    found = dict(zip(names, row[0], strict=True))
    assert (found["model_id"], found["hub_id"], found["weights"]) == ("bert", "bert-base-uncased", None)  # this run's plan does not say
    assert found["load_time"] == pytest.approx(0.0125)
    assert found["inference_time"] == pytest.approx(0.002)
    assert found["output_shape"] == "logits [1, 16, 512]"
    assert found["success"] is True
    assert found["error"] is None


def test_the_view_hardware_detection_has_the_promised_columns(database: Database) -> None:
    database.detection("s-cpu")
    row = fetch(database, "id, hardware_type, available, name, features, timestamp", view="hardware_detection")
    assert row[:4] == (1, "cpu", True, "Example CPU @ 2.00GHz")
    assert '"cores"' in row[4]


@pytest.mark.parametrize(("detail", "known"), [(None, False), ("of the 8 processes of the browser", True)])
def test_a_browser_s_cell_has_the_memory_of_the_browser_or_none(database: Database, detail: str | None, known: bool) -> None:  # noqa: FBT001
    """A value recorded without ``memory_detail`` is the harness's own memory, so it is not shown."""
    database.shard("s-web", "webgpu")
    changes = {"backend": "webgpu", "execution": "software"}
    database.cell(database.plan("bert", "webgpu", **changes), "s-web", peak_mb=900.0, delta_mb=500.0, memory_detail=detail)
    database.cell(database.plan("bert", "cpu"), "s-cpu", peak_mb=700.0)
    assert fetch(database, "peak_mb, delta_mb, memory_detail", "target = 'webgpu'") == (
        (900.0, 500.0, detail) if known else (None, None, None)
    )
    assert fetch(database, "peak_mb", "target = 'cpu'") == 700.0
    assert fetch(database, "memory_usage", "hardware = 'webgpu'", view="hardware_results") == (900.0 if known else None)
