"""``hwmatrix show``: the matrix of a run in a terminal."""

# ruff: noqa: RUF001 - typographic signs are intended
from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from hwmatrix.basics.text import plain, plural
from hwmatrix.cli.options import (
    DEFAULT_OUTPUT,
    CellGeneration,
    CellSize,
    Database,
    Format,
    FormatOption,
    OwnDtypes,
    RunId,
    chosen_cells,
    known,
    recorded,
    recorded_names,
)
from hwmatrix.cli.tables import LEVEL_STYLES, fits, longest_word
from hwmatrix.cli.terminal import echo, safe_text
from hwmatrix.knowledge.names import name_on_record
from hwmatrix.records import Status
from hwmatrix.report import grid
from hwmatrix.report.json_report import matrix_json
from hwmatrix.report.rows import read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.report.rows import CellRow


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("show")(show_command)


def show_command(
    *,
    models: Annotated[list[str] | None, typer.Option("--models", help="Only these models: --models bert gpt2", metavar="M ...")] = None,
    targets: Annotated[list[str] | None, typer.Option("--targets", help="Only these targets: --targets cpu qnn", metavar="T ...")] = None,
    status: Annotated[
        list[str] | None, typer.Option("--status", help="Only rows with one of these statuses: --status mismatch error", metavar="S ...")
    ] = None,
    dtypes: OwnDtypes = None,
    size: CellSize = None,
    generation: CellGeneration = None,
    database: Database = DEFAULT_OUTPUT,
    run: RunId = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show the matrix of a run in the terminal, or a part of it.

    For example:

    hwmatrix show

    hwmatrix show --targets cpu openvino --dtype float32 int8 --size full

    hwmatrix show --generation --database reports/published

    hwmatrix show --status mismatch crash
    """
    where = recorded(database)
    rows, models = read(where, run), [name_on_record(name, where) for name in models or ()]
    recorded_names("--models", models, {cell.model for cell in rows.cells}, f"run {rows.run.run_id}")
    recorded_names("--targets", targets or (), {cell.target for cell in rows.cells}, f"run {rows.run.run_id}")
    known("--status", status or (), {each.value for each in Status})
    named = (cell for cell in rows.cells if (not models or cell.model in models) and (not targets or cell.target in targets))
    cells = chosen_cells(named, dtypes, size, generation)
    if status:
        wanted = {(cell.model, cell.size) for cell in cells if cell.status.value in status}
        cells = [cell for cell in cells if (cell.model, cell.size) in wanted]
    if output is Format.JSON:  # matrix.json with only these cells
        echo(matrix_json(dataclasses.replace(rows, cells=tuple(cells))), nl=False)
        return
    console = Console()
    console.print(safe_text(f"run {rows.run.run_id} of {rows.run.created_at:%Y-%m-%d %H:%M} UTC, hwmatrix {rows.run.hwmatrix_version}"))
    here = {cell.target for cell in cells if cell.status is not Status.UNAVAILABLE} - _untried_targets(cells)
    built = grid.build([cell for cell in cells if cell.target in here])
    if not here:
        console.print("no cell matches" if not cells else "no target is available")
    else:
        if built.common:
            console.print(safe_text(built.common, style="dim"), soft_wrap=True)
        table = _table(built)
        console.print(table if fits(table, console) else _list(built))
    for target, reason in {cell.target: cell.message for cell in cells if cell.target not in here}.items():
        console.print(safe_text(f"➖ {target}: {plain(reason or 'unavailable')}", style="dim"), soft_wrap=True)
    for line in built.legend:
        console.print(safe_text(f"{line.label}: {line.meaning}", style="dim"), soft_wrap=True)
    shown = {cell.cell_key for cell in cells}
    doubts = Counter(row["doubt"] for row in rows.analysis.doubts if row["cell_key"] in shown)
    for doubt, count in doubts.items():
        console.print(safe_text(f"{plural(count, 'cell')} in doubt: {doubt} (hwmatrix why MODEL TARGET)", style="dim"), soft_wrap=True)


def _untried_targets(cells: Sequence[CellRow]) -> set[str]:
    """Targets of which no cell was tried: their columns would say the same in every row."""
    tried = {cell.target for cell in cells if cell.status not in {Status.UNAVAILABLE, Status.FACTORY_ERROR}}
    return {cell.target for cell in cells} - tried


def _table(built: grid.Grid) -> Table:
    """One table for all families, so that their columns are aligned."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("model", no_wrap=True)
    if built.by_row:
        table.add_column("settings", min_width=longest_word(*(row.settings for section in built.sections for row in section.rows)))
    places: dict[str, set[str]] = {}
    for column in built.columns:
        places.setdefault(column.target, set()).add(column.isolation.value)
    for number, column in enumerate(built.columns):
        words = [column.target, column.dtype, column.isolation.value if len(places[column.target]) > 1 else ""]
        labels = (grid.label(cell) for section in built.sections for row in section.rows if (cell := row.cells[number]))
        table.add_column("\n".join(word for word in words if word), min_width=longest_word(*words, *labels))
    for section in built.sections:
        table.add_section()
        table.add_row(safe_text(section.family.value.replace("_", " "), style="bold"))
        for row in section.rows:
            cells = [safe_text(_short(grid.label(cell)), style=LEVEL_STYLES[cell.level]) if cell else safe_text() for cell in row.cells]
            table.add_row(safe_text(plain(row.model)), *([safe_text(row.settings)] if built.by_row else []), *cells)
    return table


def _list(built: grid.Grid) -> Table:
    """The same with a row for each cell, for terminals on which the targets do not fit beside each other."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for head in ("model, target", "precision", "isolation"):
        table.add_column(head, no_wrap=True)
    table.add_column("result")
    for section in built.sections:
        table.add_section()
        table.add_row(safe_text(section.family.value.replace("_", " "), style="bold"))
        for row in section.rows:
            table.add_section()
            table.add_row(safe_text(plain(row.model), style="bold"), "", "", safe_text(row.settings, style="bold"))
            for column, cell in zip(built.columns, row.cells, strict=True):
                if cell:
                    result = safe_text(_short(grid.label(cell)), style=LEVEL_STYLES[cell.level])
                    table.add_row(safe_text(f"  {column.target}"), cell.dtype.value, column.isolation.value, result)
    return table


def _short(label: str) -> str:
    """A cell's label without its separator, because terminals are narrow; the legend below explains it."""
    return label.replace(" · ", " ")
