"""Every number of README.md is that of the published database."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hwmatrix.knowledge.on_record import on_record
from hwmatrix.report.headline import BEGIN, END, headline, with_headline
from hwmatrix.report.rows import read

ROOT: Final = Path(__file__).parents[3]


def test_readme_says_what_the_published_database_says() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = read(ROOT / "reports" / "published" / "matrix.duckdb")
    assert text == with_headline(text, rows), "write it: hwmatrix publish"
    assert headline(rows) in text
    (span,) = rows.analysis.span
    assert on_record(ROOT / "reports" / "published").answer()[0]["cells"] == span["executed"], "one count of cells everywhere"
    cpu = [cell for cell in rows.cells if (cell.target, cell.dtype, cell.workload) == ("cpu", "float32", "forward") and cell.level]
    tried, wrong = {cell.model for cell in cpu}, {cell.model for cell in cpu if cell.status != "pass"}
    models = {cell.model for cell in rows.cells if cell.level}
    assert f"{len(models):,} models in {span['executed']:,} cells" in text
    assert f"cpu {len(tried) - len(wrong)} of {len(tried)}" in text
    changed = {
        cell.model for cell in rows.cells if (cell.target, cell.workload, cell.level) == ("qnn", "forward", "Low") and cell.status == "pass"
    }
    assert bool(changed) == ("with changes of ours" in text)


def test_only_what_is_between_the_marks_is_replaced() -> None:
    rows = read(ROOT / "tests" / "recorded" / "default.duckdb")
    assert with_headline("no marks", rows) == "no marks"
    assert with_headline(f"a\n{BEGIN}old\n{END}b\n", rows) == f"a\n{BEGIN}{headline(rows)}{END}b\n"
