"""``hwmatrix why``, ``show``: the result of one cell, and the whole matrix in a terminal."""

# ruff: noqa: RUF001 - typographic signs are meant
from __future__ import annotations

import dataclasses
import datetime as dt
import json
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hwmatrix.cli.options import DEFAULT_OUTPUT, Format, FormatOption, known
from hwmatrix.knowledge.measured_cell import TRIED_AND_FAILED
from hwmatrix.knowledge.names import name_on_record
from hwmatrix.records import Execution, Level, Status
from hwmatrix.report import adapted, grid, numbers, origins
from hwmatrix.report.escape import plain
from hwmatrix.report.json_report import matrix_json
from hwmatrix.report.rows import read
from hwmatrix.report.why import WhyDocument, explain
from hwmatrix.store.reading import database_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hwmatrix.report.rows import CellRow
    from hwmatrix.report.why import Answer

_MODEL_SHARE = 8
"""Names of models have this part of the terminal's width at most; longer ones are folded."""
_STYLES = {Level.HIGH: "green", Level.MEDIUM: "yellow", Level.LOW: "dark_orange", Level.NONE: "red", None: "dim"}

Database = Annotated[Path, typer.Option("--database", help="A merged database, or a folder of reports.", metavar="FILE")]
Run = Annotated[str | None, typer.Option("--run", help="A run's id. [default: the latest in the database]", metavar="ID")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("why")(why_command)
    app.command("show")(show_command)


def why_command(
    model: Annotated[str, typer.Argument(help="A model of the run.", metavar="MODEL")],
    target: Annotated[str, typer.Argument(help="A target of the run.", metavar="TARGET")],
    *,
    database: Database = DEFAULT_OUTPUT,
    run: Run = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Explain the result of a cell: how far it got, the first error, what to do, and the closest configuration that works.

    Everything comes from the recorded run; nothing is executed. Examples:

        hwmatrix why mixtral qnn

        hwmatrix why bert cuda --database reports/published/2026-11-20-default --format json
    """
    where = database_at(database)
    answers = explain(where, name_on_record(model, where), target, run_id=run)
    if output is Format.JSON:
        document = dataclasses.asdict(WhyDocument(answers=answers))
        typer.echo(json.dumps({"schema": document.pop("schema"), **document}, indent=2, ensure_ascii=False, default=_plain))
        return
    console = Console()
    for answer in answers:
        for line, style in _lines(answer, where):
            console.print(Text(line, style=style), soft_wrap=True)
        console.print()


def show_command(
    *,
    models: Annotated[list[str] | None, typer.Option("--models", help="Only these models: --models bert gpt2", metavar="M ...")] = None,
    targets: Annotated[list[str] | None, typer.Option("--targets", help="Only these targets: --targets cpu qnn", metavar="T ...")] = None,
    status: Annotated[
        list[str] | None, typer.Option("--status", help="Only rows with one of these statuses: --status mismatch error", metavar="S ...")
    ] = None,
    database: Database = DEFAULT_OUTPUT,
    run: Run = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show the matrix of a run in the terminal, or a part of it.

    Examples of that:

    hwmatrix show

    hwmatrix show --targets cpu openvino --database reports/published/2026-11-20-default

    hwmatrix show --status mismatch crash
    """
    where = database_at(database)
    rows, models = read(where, run), [name_on_record(name, where) for name in models or ()]
    known("--models", models, {cell.model for cell in rows.cells})
    known("--targets", targets or (), {cell.target for cell in rows.cells})
    known("--status", status or (), {each.value for each in Status})
    cells = [cell for cell in rows.cells if (not models or cell.model in models) and (not targets or cell.target in targets)]
    if status:
        wanted = {(cell.model, cell.size) for cell in cells if cell.status.value in status}
        cells = [cell for cell in cells if (cell.model, cell.size) in wanted]
    if output is Format.JSON:  # matrix.json with these cells alone
        typer.echo(matrix_json(dataclasses.replace(rows, cells=tuple(cells))), nl=False)
        return
    console = Console()
    console.print(Text(f"run {rows.run.run_id} of {rows.run.created_at:%Y-%m-%d %H:%M} UTC, hwmatrix {rows.run.hwmatrix_version}"))
    here = {cell.target for cell in cells if cell.status is not Status.UNAVAILABLE} - _never_here(cells)
    built = grid.build([cell for cell in cells if cell.target in here])
    if not here:
        console.print("no cell is like that" if not cells else "no target is here")
    else:
        if built.common:
            console.print(Text(built.common, style="dim"), soft_wrap=True)
        console.print(_table(built, console.width))
    for target, reason in {cell.target: cell.message for cell in cells if cell.target not in here}.items():
        console.print(Text(f"➖ {target}: {plain(reason or 'unavailable')}", style="dim"), soft_wrap=True)
    for line in built.legend:
        console.print(Text(f"{line.label}: {line.meaning}", style="dim"), soft_wrap=True)
    shown = {cell.cell_key for cell in cells}
    doubts = Counter(row["doubt"] for row in rows.analysis.doubts if row["cell_key"] in shown)
    for doubt, count in doubts.items():
        console.print(Text(f"{numbers.plural(count, 'cell')} in doubt: {doubt} (hwmatrix why MODEL TARGET)", style="dim"), soft_wrap=True)


def _never_here(cells: Sequence[CellRow]) -> set[str]:
    """Targets of which no cell was tried: a column of them would say the same in every row."""
    tried = {cell.target for cell in cells if cell.status not in {Status.UNAVAILABLE, Status.FACTORY_ERROR}}
    return {cell.target for cell in cells} - tried


def _table(built: grid.Grid, width: int) -> Table:
    """One table for all families, so that columns stand under each other."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    heads = (word for section in built.sections for word in section.family.value.split("_"))
    longest = max(map(len, (*heads, *(row.model for section in built.sections for row in section.rows))))
    table.add_column("model", width=min(longest, width // _MODEL_SHARE), overflow="fold")
    if built.by_row:
        table.add_column("settings")
    places: dict[str, set[str]] = {}
    for column in built.columns:
        places.setdefault(column.target, set()).add(column.isolation.value)
    for column in built.columns:
        words = [column.target, column.dtype, column.isolation.value if len(places[column.target]) > 1 else ""]
        table.add_column("\n".join(word for word in words if word), overflow="fold")
    for section in built.sections:
        table.add_section()
        table.add_row(Text(section.family.value.replace("_", " "), style="bold"))
        for row in section.rows:
            cells = [Text(_short(grid.label(cell)), style=_STYLES[cell.level]) if cell else Text() for cell in row.cells]
            table.add_row(Text(plain(row.model)), *([Text(row.settings)] if built.by_row else []), *cells)
    return table


def _short(label: str) -> str:
    """A cell's label without its separator: a terminal is narrow, and the legend below has the words."""
    return label.replace(" · ", " ")


def _lines(answer: Answer, database: Path) -> list[tuple[str, str]]:
    """The answer as a person reads it, with styles."""
    cell = answer.cell
    settings = f"{cell.size.value}, {cell.dtype.value}, batch {cell.batch}, {cell.sequence_length} tokens"
    lines = [(f"{grid.label(cell)}: {plain(cell.model)} on {cell.target} ({settings})", f"bold {_STYLES[cell.level]}")]
    entered = [step for step in answer.steps if step.wall_ms is not None or step.ended_here]
    if entered:
        told = (f"{step.stage.value}{_ms(step.wall_ms)}{' ✗' if step.ended_here else ''}" for step in entered)
        lines.append((f"  how far:    {' → '.join(told)}", ""))
    lines += _found(cell)
    if cell.started_at is not None:
        place = f" in {cell.isolation.value}" if cell.isolation else ""
        digest = f", image {cell.image_digest.removeprefix('sha256:')[:12]}" if cell.image_digest else ""
        lines.append((f"  evidence:   executed {cell.started_at:%Y-%m-%d %H:%M} UTC{place}{plain(digest)}", ""))
    lines += [(f"  doubt:      {plain(doubt)}", "yellow") for doubt in answer.doubts]
    if answer.error is not None:
        lines.append((f"  error:      {answer.error.type} ({answer.error.severity.value}): {plain(answer.error.message)}", ""))
        lines += [(f"  what to do: {plain(each)}", "") for each in answer.error.recommendations]
    lines += [(f"    | {plain(line)}", "dim") for line in answer.log]
    lines += [
        (f"  adapted:    {plain(adapted.sentence(cell, attempt))}", "green" if attempt.status is Status.PASS else "")
        for attempt in answer.attempts
    ]
    lines += [(f"  works:      {plain(each.differs)} ({grid.label(each.cell)})", "green") for each in answer.alternatives]
    if cell.status is not Status.PASS and not answer.alternatives:
        lines.append(("  works:      nothing near it in this run", ""))
    if cell.versions:
        packages = ", ".join(f"{name} {version}" for name, version in sorted(cell.versions.items()))
        lines.append((f"  versions:   {plain(packages)}", "dim"))
    if cell.command:
        lines.append((f"  repeat it:  {plain(cell.command)}", "dim"))
    if cell.status in TRIED_AND_FAILED - {Status.FACTORY_ERROR}:
        asked = ["hwmatrix", "generate", "--reproduce", cell.model, cell.target, "--dtype", cell.dtype.value, "--size", cell.size.value]
        lines.append((f"  as script:  {plain(shlex.join([*asked, '--database', str(database)]))}", "dim"))
    return lines


def _found(cell: CellRow) -> Iterator[tuple[str, str]]:
    """What was given to a model, and what was found of it."""
    if cell.inputs:
        only = ": only the text path of a model that takes more" if cell.text_path else ""
        yield (f"  given:      {plain(', '.join(cell.inputs))}{only}", "")
    if cell.on_target is not None:
        yield (f"  placement:  {numbers.percent(cell.on_target)} on the target; {plain(cell.placement_detail or '')}", "")
    if cell.relative_error is not None:
        yield (f"  parity:     relative error {numbers.scientific(cell.relative_error)}, cosine {cell.cosine:.6f}", "")
    begins = origins.sentence(cell)
    if begins is not None:
        yield (f"  begins:     {plain(begins)}", "")
    if cell.p50_ms is not None and cell.execution is not Execution.EMULATED:
        interval = numbers.interval(cell.ci_low_ms, cell.ci_high_ms)
        yield (f"  latency:    p50 {numbers.number(cell.p50_ms)} ms ({interval}; {cell.samples} samples)", "")
    elif cell.status is Status.PASS and cell.p50_ms is None:
        yield ("  latency:    not timed", "")
    yield from _memory(cell)


def _memory(cell: CellRow) -> Iterator[tuple[str, str]]:
    """What it took of the host and of the device, and whose memory that is, or why nothing is told."""
    sizes = (("peak", cell.peak_mb), ("added", cell.delta_mb), ("on the device", cell.device_peak_mb))
    told = ", ".join(f"{what} {size:,.0f} MiB" for what, size in sizes if size is not None)
    if told or cell.memory_detail:
        yield (f"  memory:     {'; '.join(part for part in (told, plain(cell.memory_detail or '')) if part)}", "")


def _ms(value: float | None) -> str:
    return "" if value is None else f" {numbers.number(value, 2)} ms"


def _plain(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
