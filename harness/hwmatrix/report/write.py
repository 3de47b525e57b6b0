"""Writes a run's reports: renders all texts, writes each file under a temporary name, then renames all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwmatrix.basics.files import write_together
from hwmatrix.basics.garbage import without_collection
from hwmatrix.errors import StoreError
from hwmatrix.report.charts import charts
from hwmatrix.report.expected import expected_json, expected_md
from hwmatrix.report.json_report import errors_json, matrix_json
from hwmatrix.report.markdown import errors_md, matrix_md, summary_md
from hwmatrix.report.page import index_html
from hwmatrix.report.page_history import page_history
from hwmatrix.report.page_rows import read_page_rows
from hwmatrix.report.plots import FOLDER as PLOTS
from hwmatrix.report.plots import plots, undrawn
from hwmatrix.report.rows import read

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.report.plots import Chart


def write_reports(
    database: Path,
    output_dir: Path,
    *,
    run_id: str | None = None,
    history: Path | None = None,
    beside: bool = True,
    cache: Path | None = None,
) -> list[Path]:
    """Write ``index.html``, ``plots/*.svg``, and ``summary``, ``matrix``, ``errors``, ``expected`` (Markdown, the last three also JSON).

    The same database gives the same bytes. The latest run is reported unless ``run_id`` names another. ``history`` is the
    database of earlier runs for the page; by default history.duckdb beside the folder, if it exists and ``beside`` is true. ``cache`` is
    the cache folder, which keeps the page's drawing library. Plots that only an earlier run has are removed. If
    :func:`hwmatrix.report.plots.undrawn` gives a reason, index.html and plots are left out, and those of an earlier run are removed.

    Returns:
        The files, plots last.

    Raises:
        StoreError: the database or the given history cannot be read, the run does not exist, or the folder cannot be written.
    """
    texts, drawn = rendered(database, output_dir, run_id=run_id, history=history, beside=beside, cache=cache)
    pictures = {f"{PLOTS}/{name}": text for name, text in plots(drawn).items()}
    written = replace(output_dir, texts | pictures)
    for path in [*(output_dir / PLOTS).glob("*.svg"), output_dir / _PAGE]:
        if path not in written:
            path.unlink(missing_ok=True)
    return written


_PAGE: Final = "index.html"


@without_collection()
def rendered(
    database: Path,
    output_dir: Path,
    *,
    run_id: str | None = None,
    history: Path | None = None,
    beside: bool = True,
    cache: Path | None = None,
) -> tuple[dict[str, str], tuple[Chart, ...]]:
    """The texts of the reports by file name, and the charts to draw beside them. Nothing is written.

    Raises:
        StoreError: as :func:`write_reports`.
    """
    rows = read(database, run_id)
    drawn = charts(rows) if undrawn() is None else ()
    page = {}
    if undrawn() is None:
        details = read_page_rows(database, run_id)
        page[_PAGE] = index_html(
            rows, details, charts=drawn, history=page_history(history, output_dir.absolute().parent if beside else None), cache=cache
        )
    texts = page | {
        "summary.md": summary_md(rows, {chart.name: chart for chart in drawn}),
        "matrix.md": matrix_md(rows),
        "matrix.json": matrix_json(rows),
        "errors.md": errors_md(rows),
        "errors.json": errors_json(rows),
        "expected.md": expected_md(rows),
        "expected.json": expected_json(rows),
    }
    return texts, drawn


def replace(folder: Path, texts: dict[str, str]) -> list[Path]:
    """Write files to a folder and its subfolders, which are created if missing; return the paths in the same order.

    Raises:
        StoreError: the folder cannot be written.
    """
    try:
        for parent in {(folder / name).parent for name in texts}:
            parent.mkdir(parents=True, exist_ok=True)
        write_together({folder / name: text for name, text in texts.items()}, durable=False)
    except OSError as error:
        raise StoreError(f"{folder}: the reports cannot be written: {error}", advice="Free space, or name another folder.") from error
    return [folder / name for name in texts]
