"""An emulator's times are stored, but never shown as speed: not in a table of speeds, a ranking, or the hardware view."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest
from factory_rows import Database, steady

from hwmatrix.report.markdown import matrix_md, summary_md
from hwmatrix.report.rows import ReportRows, read
from hwmatrix.store.reading import query

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """One model on the CPU, and on an emulator with a shorter time."""
    path = tmp_path / "m.duckdb"
    with Database(path) as rows:
        rows.run()
        rows.shard("s-cpu", "cpu")
        rows.shard("s-qnn", "qnn")
        rows.cell(rows.plan("bert", "cpu"), "s-cpu", wall=steady(2.0))
        rows.cell(rows.plan("bert", "qnn", execution="emulated"), "s-qnn", wall=steady(1.0))
    return path


@pytest.fixture
def rows(database: Path) -> ReportRows:
    return read(database)


def section(document: str, title: str) -> str:
    """The text below a heading, up to the next heading of its level."""
    level = title.partition(" ")[0]
    return document.partition(f"\n{title}\n")[2].partition(f"\n{level} ")[0]


def test_its_time_is_not_in_the_table_of_speeds(rows: ReportRows) -> None:
    performance, _, emulated = section(matrix_md(rows), "## Performance").partition("### Emulated")
    assert "cpu (" in performance
    assert "qnn (" not in performance
    assert "qnn (" in emulated
    assert "Emulation ms" in emulated
    assert "says nothing about the speed" in emulated


def test_it_is_not_ranked(rows: ReportRows) -> None:
    assert "qnn (" not in section(summary_md(rows), "## Performance analysis")
    assert "qnn (" not in section(summary_md(rows), "## Optimal hardware")
    assert {row["target"] for row in rows.analysis.speeds} == {"cpu"}
    assert {row["target"] for row in rows.analysis.speed_by_architecture} == {"cpu"}
    assert [row for row in rows.analysis.optimal if row["target"] == "qnn"] == []


def test_the_view_of_hardware_has_a_verdict_and_no_time(database: Path) -> None:
    with duckdb.connect(str(database), read_only=True) as connection:
        found = connection.execute("SELECT hardware, success, inference_time FROM hardware_results ORDER BY hardware").fetchall()
        averages = connection.execute(query("average_time_by_hardware")).fetchall()
        best = connection.execute(query("best_hardware_by_model_type")).fetchall()
    assert found == [("cpu", True, pytest.approx(0.002)), ("qnn", True, None)]
    assert [row[0] for row in averages] == ["cpu"]
    assert [row[4] for row in best] == ["cpu"]
