"""``hwmatrix diff``: what changed since another run."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from hwmatrix.basics.text import plain, plural
from hwmatrix.cli.options import DEFAULT_OUTPUT, AcrossOption
from hwmatrix.cli.terminal import echo, safe_text
from hwmatrix.report.diff import make_diff, side_of
from hwmatrix.report.diff_text import SYMBOLS, TITLES, diff_html, diff_json, diff_md
from hwmatrix.report.settings import short
from hwmatrix.report.write import replace

if TYPE_CHECKING:
    from hwmatrix.report.diff import Diff

_LISTED: Final = 15
"""The number of changes of each kind that the table shows."""


class DiffFormat(enum.StrEnum):
    """How a comparison is printed."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"


Old = Annotated[str, typer.Argument(metavar="OLD", help="A merged database or a folder of reports; @ID after it names a run.")]
New = Annotated[str, typer.Argument(metavar="NEW", help="The other side, in the same form.")]


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("diff")(diff_command)


def diff_command(
    old: Old,
    new: New = str(DEFAULT_OUTPUT),
    *,
    across: AcrossOption = None,
    output: Annotated[DiffFormat, typer.Option("--format", help="A table, or a document.")] = DiffFormat.TABLE,
    file: Annotated[Path | None, typer.Option("--output", help="Write to this file instead of printing.", metavar="FILE")] = None,
) -> None:
    """Show what changed between two runs: newly broken, newly works, slower, faster, memory, placement, packages.

    Speed is compared only where it can be: on hardware, on the same machine, undisturbed. With --across dtype, each cell is compared with
    the same one in other precisions. Examples:

        hwmatrix diff reports/published

        hwmatrix diff old.duckdb new.duckdb@20261120T072723Z-42934e --format markdown --output diff.md

        hwmatrix diff float32.duckdb int8.duckdb --across dtype
    """
    found = make_diff(side_of(old), side_of(new), across_dtype=across is not None)
    makers = {DiffFormat.MARKDOWN: diff_md, DiffFormat.JSON: diff_json, DiffFormat.HTML: diff_html}
    if output is DiffFormat.TABLE and file is None:
        _print_diff(found)
        return
    text = makers.get(output, diff_md)(found)
    if file is None:
        echo(text, nl=False)
    else:
        replace(file.absolute().parent, {file.name: text})
        echo(f"wrote {file}")


def _print_diff(diff: Diff) -> None:
    console = Console()
    head = f"{diff.old.run.run_id} → {diff.new.run.run_id}: {diff.compared} cells compared, the speed of {diff.timed}"
    console.print(safe_text(head if diff.changes else f"{head}; nothing changed"), soft_wrap=True)
    for note in diff.notes:
        console.print(safe_text(plain(note)), soft_wrap=True)
    for kind in diff.counts:
        changes = diff.of(kind)
        console.print(safe_text(f"\n{SYMBOLS[kind]} {TITLES[kind]} ({len(changes)})", style="bold"))
        for change in changes[:_LISTED]:
            ratio = "" if change.ratio is None else f" (x {change.ratio:.2f})"
            cell = change.cell
            console.print(
                safe_text(f"  {plain(cell.model)} on {plain(cell.target)} ({short(cell)}): {plain(change.detail)}{ratio}"), soft_wrap=True
            )
        if len(changes) > _LISTED:
            console.print(safe_text(f"  and {len(changes) - _LISTED} more: --format markdown lists them all"))
    console.print()
    for reason, count in diff.untimed.items():
        console.print(safe_text(f"speed not compared: {plural(count, 'cell')} ({reason})"), soft_wrap=True)
    changed = sorted({each.package for each in diff.packages})
    if changed:
        console.print(safe_text(f"packages that changed: {', '.join(changed)} (--format markdown lists them by target)"), soft_wrap=True)
