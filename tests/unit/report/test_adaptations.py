"""Failed and retried cells in a merged database: levels, counts, comparisons."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import RUN, Database, steady, unmeasured

from hwmatrix.report.diff import make_diff, read_side
from hwmatrix.report.rows import read
from hwmatrix.report.write import write_reports

if TYPE_CHECKING:
    from pathlib import Path

BEGIN = dt.datetime(2026, 3, 4, 5, 6, 7)  # noqa: DTZ001 - as the database stores it


def attempt(
    database: Database, planned: dict[str, Any], changed: dict[str, Any], *, after_s: float, shard: str = "s-cpu", **changes: Any
) -> None:
    """Add an attempt that started ``after_s`` seconds after the cell's execution."""
    key = planned["cell_key"]
    ((name, value),) = changed.items()
    row = {
        "cell_id": f"{shard}/adapted/{key}+{name}={value}/{after_s}",
        "cell_key": f"{key}+{name}={value}",
        "role": "adapted",
        "adapted_from": key,
        "adaptation": json.dumps(changed),
        "started_at": BEGIN + dt.timedelta(seconds=after_s),
    }
    database.cell(planned, shard, **(row | changed | changes))


def level_of(path: Path, status: str, *attempts: tuple[float, dict[str, Any]], canary_ok: bool = True) -> tuple[str, str | None, Any]:
    """Status, level and adaptation of a cell with this status and these attempts (seconds after it, changes to the row)."""
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.shard("s-later", "cpu", canary_ok=canary_ok)
        planned = database.plan("bert", "cpu", batch=8)
        ended = {} if status == "pass" else unmeasured(status)
        database.cell(planned, "s-cpu", started_at=BEGIN, wall=steady(2.0) if status == "pass" else (), **ended)
        for after_s, changes in attempts:
            attempt(database, planned, {"batch": 4}, after_s=after_s, shard="s-later", **changes)
    (cell,) = read(path).cells
    return cell.status.value, cell.level.value if cell.level else None, cell.adaptation


@pytest.mark.parametrize("status", ["mismatch", "unsupported", "error", "oom", "crash"])
def test_a_cell_that_works_only_with_a_change_keeps_its_status_and_has_level_low(tmp_path: Path, status: str) -> None:
    assert level_of(tmp_path / "m.duckdb", status, (1, {})) == (status, "Low", {"batch": 4})


@pytest.mark.parametrize(
    ("attempts", "canary_ok"),
    [
        ((), True),
        (((1, unmeasured("oom")),), True),
        (((-1, {}),), True),  # belongs to an earlier execution
        (((1, {}),), False),  # a shard with failed canaries
    ],
)
def test_attempts_that_prove_nothing_change_no_level(tmp_path: Path, attempts: Any, *, canary_ok: bool) -> None:
    assert level_of(tmp_path / "m.duckdb", "oom", *attempts, canary_ok=canary_ok) == ("oom", "none", None)


def test_a_passed_cell_does_not_become_low(tmp_path: Path) -> None:
    assert level_of(tmp_path / "m.duckdb", "pass", (1, {})) == ("pass", "High", None)


def counted(path: Path, *, with_attempts: bool) -> Path:
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.cell(database.plan("gpt2", "cpu"), "s-cpu", wall=steady(2.0))
        planned = database.plan("bert", "cpu", batch=8)
        database.cell(planned, "s-cpu", started_at=BEGIN, **unmeasured("oom"))
        if with_attempts:
            attempt(database, planned, {"batch": 4}, after_s=1, **unmeasured("oom"))
            attempt(database, planned, {"batch": 2}, after_s=2, wall=steady(1.0))
    return path


def test_attempts_are_not_counted_as_cells(tmp_path: Path) -> None:
    found = [read(counted(tmp_path / f"{name}.duckdb", with_attempts=name == "with")) for name in ("with", "without")]
    assert [len(rows.cells) for rows in found] == [2, 2]
    assert found[0].analysis.totals == found[1].analysis.totals
    assert found[0].analysis.memory_top == found[1].analysis.memory_top
    assert [len(rows.attempts) for rows in found] == [2, 0]


def test_comparisons_use_the_planned_cells(tmp_path: Path) -> None:
    one, other = (counted(tmp_path / f"{name}.duckdb", with_attempts=name == "with") for name in ("without", "with"))
    assert make_diff(read_side(one), read_side(other)).changes == ()


def test_all_reports_of_such_a_run_can_be_written(tmp_path: Path) -> None:
    path = counted(tmp_path / "m.duckdb", with_attempts=True)
    write_reports(path, tmp_path / "new")
    document = json.loads((tmp_path / "new" / "matrix.json").read_text(encoding="utf-8"))
    assert [cell["adaptation"] for cell in document["cells"]] == [None, {"changed": {"batch": 2}, "words": "batch 2 instead of 8"}]
    assert "batch 2 instead of 8: pass" in (tmp_path / "new" / "index.html").read_text(encoding="utf-8")
    assert document["run"]["run_id"] == RUN
