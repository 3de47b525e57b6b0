from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import Database, unmeasured

from hwmatrix.errors import ConfigError
from hwmatrix.faults.catalogue import UNMATCHED
from hwmatrix.faults.error_records import KEYS, from_dict, in_utc, merged, of_type, recognized
from hwmatrix.records import Severity, Status
from hwmatrix.report.failures import failures
from hwmatrix.report.rows import read
from hwmatrix.reporter.collecting import errors_in

if TYPE_CHECKING:
    from pathlib import Path

NINE = {
    "hardware_type": "cuda",
    "error_type": "memory_pressure",
    "severity": "critical",
    "message": "CUDA out of memory. Tried to allocate 1 GiB",
    "component": "resource_pool",
    "timestamp": "2026-11-20T08:00:00Z",
    "model_name": "bert",
    "recommendations": ["Use a smaller batch."],
    "traceback": None,
}


def test_the_record_has_the_nine_keys() -> None:
    assert tuple(NINE) == KEYS
    record = of_type("memory_pressure", "no memory", component="load", hardware="cuda", model_name="bert", timestamp="2026-11-20T08:00:00")
    assert tuple(record.to_dict()) == KEYS
    assert record.severity is Severity.CRITICAL
    assert record.timestamp == "2026-11-20T08:00:00Z"
    assert any("Split the model over several GPUs" in line for line in record.recommendations)


def test_a_record_is_restored_unchanged() -> None:
    assert from_dict(NINE).to_dict() == NINE
    with pytest.raises(dataclasses.FrozenInstanceError):
        from_dict(NINE).message = "another"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"severity": "fatal"}, "'fatal' is not a severity"),
        ({"hint": "x"}, "it has 'hint'"),
        ({"timestamp": "yesterday"}, "'yesterday' is not a time"),
    ],
)
def test_an_invalid_record_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        from_dict(NINE | change)


def test_every_missing_key_is_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict({"message": "only this"})
    assert len(caught.value.problems) == len(KEYS) - 1


def test_known_and_unknown_messages() -> None:
    assert recognized("CUDA error: uncorrectable ECC error encountered", component="run", hardware="cuda").error_type == "gpu_memory_error"
    unknown = recognized("nobody has ever seen this", component="run", hardware="cuda")
    assert (unknown.error_type, unknown.severity) == (UNMATCHED, Severity.ERROR)
    assert unknown.recommendations
    by_status = recognized("the process was ended by SIGSEGV (signal 11)", component="run", hardware="cpu", status=Status.CRASH)
    assert by_status.error_type == "segmentation_fault"
    assert recognized("No space left on device", component="run").hardware_type is None


def test_a_given_severity_counts() -> None:
    assert of_type("component_broken", "x", component="c", severity=Severity.CRITICAL).severity is Severity.CRITICAL


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        (None, None),
        ("2026-11-20T09:15:00+01:00", "2026-11-20T08:15:00Z"),
        ("2026-11-20T08:15:00.123456", "2026-11-20T08:15:00Z"),
        (dt.datetime(2026, 11, 20, 8, 15, tzinfo=dt.UTC), "2026-11-20T08:15:00Z"),
    ],
)
def test_times_are_in_utc(stamp: Any, expected: str | None) -> None:
    assert in_utc(stamp) == expected


def test_equal_errors_are_merged_and_the_most_severe_come_first() -> None:
    late = from_dict(NINE | {"timestamp": "2026-11-20T09:00:00Z"})
    early = from_dict(NINE)
    undated = from_dict(NINE | {"timestamp": None})
    other = from_dict(NINE | {"model_name": "vit"})
    info = of_type("gpu_no_driver", "none", component="hardware_detection", hardware="cuda")
    wanted = ((early, 3), (other, 1), (info, 1))
    for order in itertools.permutations([info, late, other, early, undated]):
        assert merged(order) == wanted


def test_an_empty_list_stays_empty() -> None:
    assert merged([]) == ()


@pytest.mark.parametrize(
    ("dtype", "batch", "advised"), [("float16", 1, set()), ("float16", 8, {"batch"}), ("float32", 8, {"float16", "batch"})]
)
def test_advice_for_a_recorded_cell_does_not_repeat_its_settings(tmp_path: Path, dtype: str, batch: int, advised: set[str]) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        planned = database.plan("bert", "cpu", dtype=dtype, batch=batch)
        database.cell(planned, "s-cpu", **unmeasured("oom") | {"error_type": "memory_pressure"})
    (record,) = errors_in(tmp_path / "m.duckdb")
    (failure,) = failures(read(tmp_path / "m.duckdb"))
    for told in (record.recommendations, failure.entry.recommendations):
        assert {word for word in ("float16", "batch") if any(word in line for line in told)} == advised
        assert told


def test_a_failed_canary_is_its_own_component(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.cell(database.plan("bert", "cpu"), "s-cpu", **unmeasured("infra_error") | {"error_type": "canary_failed"})
        database.cell(database.plan("vit", "cpu"), "s-cpu", **unmeasured("crash") | {"stage": "run", "error_type": None})
    components = {"canary_failed": "canary", "segmentation_fault": "run"}
    assert {record.error_type: record.component for record in errors_in(tmp_path / "m.duckdb")} == components
    assert {failure.entry.error_type: failure.entry.component for failure in failures(read(tmp_path / "m.duckdb"))} == components
