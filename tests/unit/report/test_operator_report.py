from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest
from factory_operators import result

from hwmatrix.errors import StoreError
from hwmatrix.records import ErrorRecord, Severity, Status
from hwmatrix.report import rows as model_rows
from hwmatrix.report.markdown import errors_md
from hwmatrix.report.operator_report import Counts, Coverage, read, shown, write_operators
from hwmatrix.store.merge import merge
from hwmatrix.store.shard import ShardWriter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hwmatrix.records import OperatorResult

PLAN = make.plan(models=(), run_id="20260103T000000Z-ops001", created_at="2026-01-03T00:00:00.000000")
NONE = {"tests": 0, "passed": 0, "on_target": 0, "fallback": 0, "mismatch": 0, "unsupported": 0, "error": 0, "ended": 0}


def shard(folder: Path, target: str, results: Sequence[OperatorResult], *, ok: bool | None = True, detail: str | None = None) -> None:
    identity = make.identity(target=target, shard_id=f"{target}-ops", versions={"runtime": "1.2.3"})
    with ShardWriter(folder / "shards", PLAN, identity) as writer:
        writer.set_canaries(ok=ok, detail=detail)
        writer.add_operators(results)
        writer.seal()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with operator tests on two targets, one of them unavailable, and with a run of models."""
    folder = make.run_folder(tmp_path / "operators", PLAN)
    tests = [
        result("test_add"),
        result("test_add_int", status=Status.UNSUPPORTED, needs=("Add",), message="no | kernel", error_type="unsupported_operator"),
        result("test_mul", "Mul", on_target=0.5, max_error=0.25),
        result("test_gelu", "Gelu", status=Status.CRASH, message="signal 11"),
        result("test_gelu_expanded", "Gelu", expanded=True),
        result("test_det", "Det", status=Status.FALLBACK, on_target=0.0),
        result("test_momentum", "Momentum", domain="ai.onnx.preview.training"),
    ]
    shard(folder, "cpu", tests, detail="a processor")
    shard(folder, "openvino", [], ok=None, detail="no device here")
    models = make.run_folder(tmp_path / "runs", make.plan())
    make.write_shard(models / "shards", make.plan(), "cpu", "aaaaaaaaaaaa")
    path = tmp_path / "matrix.duckdb"
    report = merge([models, folder], path)
    assert report.rejected == ()
    return path


def test_coverage_counts_tests_of_the_operator_itself(database: Path) -> None:
    found = {row.name: row.counts for row in read(database).coverage}
    assert found == {
        "Add": Counts(**NONE | {"tests": 2, "passed": 1, "on_target": 1, "unsupported": 1}),
        "Det": Counts(**NONE | {"tests": 1, "fallback": 1}),
        "Gelu": Counts(**NONE | {"tests": 1, "ended": 1}),
        "Mul": Counts(**NONE | {"tests": 1, "passed": 1}),
        "ai.onnx.preview.training.Momentum": Counts(**NONE | {"tests": 1, "passed": 1, "on_target": 1}),
    }
    totals = {(row.target, row.expanded): row.counts.tests for row in read(database).targets}
    assert totals == {("cpu", False): 6, ("cpu", True): 1}


def test_an_unavailable_target_has_its_reason(database: Path) -> None:
    (refused,) = read(database).refused
    assert (refused.target, refused.broken, refused.reason) == ("openvino", False, "no device here")


def test_the_page_has_a_row_for_each_operator(database: Path, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "operators.md"
    written = write_operators(database, tmp_path / "out", page=page)
    assert [path.name for path in written] == ["ops.md", "ops.json", "operators.md"]
    text = page.read_text()
    assert text == (tmp_path / "out" / "ops.md").read_text()
    lines = [line.replace(" ", "") for line in text.splitlines()]
    for line in ("|`Add`|🟡1/2|", "|`Mul`|🟡1/1,0whollythere|", "|`Gelu`|❌noresult|", "|`Det`|🟠fallback|"):
        assert line in lines
    assert "- cpu (container): `Add` 1\n" in text
    assert "➖ openvino (container) was not tested: `no device here`" in text  # noqa: RUF001 - the sign of what is not here
    assert "| a processor |" in text
    document = json.loads((tmp_path / "out" / "ops.json").read_text())
    assert document["schema"] == "hwmatrix/operators/1"
    assert document["targets"][0]["counts"]["tests"] == 6
    assert len(document["operators"]) == 5


def test_the_same_database_gives_the_same_bytes(database: Path, tmp_path: Path) -> None:
    one, other = (write_operators(database, tmp_path / name) for name in ("one", "other"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_a_later_run_of_some_tests_replaces_only_those(database: Path, tmp_path: Path) -> None:
    later = make.plan(models=(), run_id="20260104T000000Z-ops002", created_at="2026-01-04T00:00:00.000000")
    folder = make.run_folder(tmp_path / "operators", later)
    with ShardWriter(folder / "shards", later, make.identity(shard_id="cpu-later")) as writer:
        writer.set_canaries(ok=True, detail=None)
        writer.add_operators([result("test_gelu", "Gelu")])
        writer.seal()
    merge([folder], database)
    found = {row.name: row.counts for row in read(database).coverage}
    assert found["Gelu"] == Counts(**NONE | {"tests": 1, "passed": 1, "on_target": 1})
    assert found["Add"].tests == 2


def test_the_reported_run_is_still_the_latest_run_of_models(database: Path) -> None:
    assert model_rows.read(database).run.run_id == make.plan().run_id


def test_a_model_s_missing_operator_is_shown_with_its_tests(database: Path, tmp_path: Path) -> None:
    plan = make.plan(run_id="20260105T000000Z-later1", created_at="2026-01-05T00:00:00.000000")
    folder = make.run_folder(tmp_path / "later", plan)
    cells = [cell for cell in plan.cells if cell.target == "cpu"]
    error = ErrorRecord(type="unsupported_operator", severity=Severity.ERROR, message="no kernel", needs=("Add", "NoSuch"))
    failed = make.result(cells[0], **make.failure(Status.UNSUPPORTED, error=error))
    make.write_shard(folder / "shards", plan, "cpu", "cccccccccccc", results=[failed, make.result(cells[1])])
    merge([folder], database)
    text = errors_md(model_rows.read(database))
    assert "The target lacks: `Add`, `NoSuch`" in text
    assert "Of 2 tests of `Add` in the ONNX standard, this target passes 1, 1 of them wholly on the target." in text
    assert "of `NoSuch` in the ONNX standard" not in text


def test_a_missing_database_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no such file"):
        read(tmp_path / "none.duckdb")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tests": 3, "passed": 3, "on_target": 3}, "✅ 3"),
        ({"tests": 3, "passed": 3, "on_target": 1}, "🟡 3/3, 1 wholly there"),
        ({"tests": 3, "passed": 1, "on_target": 1, "mismatch": 2}, "🟡 1/3"),
        ({"tests": 3, "unsupported": 2, "error": 1}, "❌ unsupported"),
        ({"tests": 1, "ended": 1}, "❌ no result"),
        ({"tests": 2, "fallback": 2}, "🟠 fallback"),
    ],
)
def test_a_cell_shows_the_most_frequent_result(changes: dict[str, Any], text: str) -> None:
    isolation = PLAN.isolation
    assert shown(Coverage(domain="", operator="Add", target="cpu", isolation=isolation, counts=Counts(**NONE | changes))) == text


def test_operators_that_were_not_run_are_empty() -> None:
    assert shown(None) == "⬜"
