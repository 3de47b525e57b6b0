"""Whose memory was measured, or why there is no value, in JSON and in text."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import Database, steady

from hwmatrix.cli import main
from hwmatrix.report.write import write_reports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OF_BROWSER = "of the 8 processes of the browser; what they share counts once"
NOTHING = "not measured: this kernel keeps no high-water mark of a process"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Reports of a run with the memory of a process, of a browser, and of a kernel that does not report it."""
    before, tmp_path = signal.getsignal(signal.SIGTERM), tmp_path_factory.mktemp("reports")
    with Database(tmp_path / "matrix.duckdb") as database:
        database.run()
        web = {"backend": "webgpu", "execution": "software"}
        for target, planned in (("cpu", {}), ("webgpu", web), ("openvino", {})):
            database.shard(f"s-{target}", target)
            told: dict[str, Any] = {"cpu": {}, "webgpu": {"memory_detail": OF_BROWSER}}.get(
                target, {"memory_detail": NOTHING, "peak_mb": None, "delta_mb": None}
            )
            database.cell(
                database.plan("bert", target, **planned), f"s-{target}", wall=steady(2.0), **{"peak_mb": 700.0, "delta_mb": 60.0} | told
            )
    write_reports(tmp_path / "matrix.duckdb", tmp_path)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def test_json_says_whose_memory_it_is(folder: Path) -> None:
    cells = json.loads((folder / "matrix.json").read_text(encoding="utf-8"))["cells"]
    found = {cell["target"]: (cell["memory"]["peak_mb"], cell["memory"]["detail"]) for cell in cells}
    assert found == {"cpu": (700.0, None), "webgpu": (700.0, OF_BROWSER), "openvino": (None, NOTHING)}


@pytest.mark.parametrize(
    ("target", "told"),
    [("cpu", "peak 700 MiB, added 60 MiB"), ("webgpu", f"peak 700 MiB, added 60 MiB; {OF_BROWSER}"), ("openvino", NOTHING)],
)
def test_why_says_whose_memory_it_is(folder: Path, capsys: pytest.CaptureFixture[str], target: str, told: str) -> None:
    assert main.main(["why", "bert", target, "--database", str(folder / "matrix.duckdb")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("memory:")]
    assert line.split(None, 1)[1] == told


def test_the_summary_says_why_there_is_none(folder: Path) -> None:
    assert NOTHING in (folder / "summary.md").read_text(encoding="utf-8")


def test_the_most_demanding_forward_passes_are_told_with_their_settings_where_these_differ(tmp_path: Path, folder: Path) -> None:
    with Database(tmp_path / "matrix.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        for dtype, batch, added in (("float32", 1, 60.0), ("int8", 1, 40.0), ("int8", 8, 90.0)):
            planned = database.plan("bert", "cpu", dtype=dtype, batch=batch, cell_key=f"{dtype}/{batch}")
            database.cell(planned, "s-cpu", wall=steady(2.0), peak_mb=700.0, delta_mb=added)
    write_reports(tmp_path / "matrix.duckdb", tmp_path)
    lines = (tmp_path / "summary.md").read_text(encoding="utf-8").partition("| Parameters | Added MiB |")[2].splitlines()[2:4]
    told = [line.split(" | ")[1].partition(", 16 tokens")[0] for line in lines]
    assert told == ["tiny, float32, batch 1", "tiny, int8, batch 1"]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<td>tiny, int8, batch 1, 16 tokens, 1 thread</td>" in page
    assert "| Model | Size | Target | Parameters |" in (folder / "summary.md").read_text(encoding="utf-8")
