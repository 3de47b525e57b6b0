"""``hwmatrix diff``, ``gate``: what changed since another run, and whether that is acceptable."""

from __future__ import annotations

import enum
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import pydantic
import typer
from rich.console import Console
from rich.text import Text

from hwmatrix.cli.options import DEFAULT_OUTPUT, Format, FormatOption, Matrix, known
from hwmatrix.errors import GateError
from hwmatrix.matrix.load import load
from hwmatrix.report.diff import Side, make_diff, read_side
from hwmatrix.report.diff_text import SYMBOLS, TITLES, diff_html, diff_json, diff_md, settings
from hwmatrix.report.escape import plain
from hwmatrix.report.gate import DEFAULT_KINDS, GATEABLE, GateRules, Violation, check
from hwmatrix.report.gate_text import GateDocument, annotation, entry, row
from hwmatrix.report.write import replace

if TYPE_CHECKING:
    from hwmatrix.report.diff import Diff

_RUN_MARK: Final = "@"
_LISTED: Final = 15
"""Changes of a kind that a terminal shows."""


class DiffFormat(enum.StrEnum):
    """How a comparison is told."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"


Old = Annotated[str, typer.Argument(metavar="OLD", help="A merged database or a folder of reports; @ID after it names a run.")]
New = Annotated[str, typer.Argument(metavar="NEW", help="The other side, in the same form.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("diff")(diff_command)
    app.command("gate")(gate_command)


def diff_command(
    old: Old,
    new: New = str(DEFAULT_OUTPUT),
    *,
    output: Annotated[DiffFormat, typer.Option("--format", help="A table, or a document.")] = DiffFormat.TABLE,
    file: Annotated[Path | None, typer.Option("--output", help="Write to this file instead of printing.", metavar="FILE")] = None,
) -> None:
    """Show what changed between two runs: newly broken, newly works, slower, faster, memory, placement, packages.

    Speed is compared only for hardware execution, on the same machine, without contention. Examples:

        hwmatrix diff reports/published/2026-11-20-default

        hwmatrix diff old.duckdb new.duckdb@20261120T072723Z-42934e --format markdown --output diff.md
    """
    found = make_diff(side_of(old), side_of(new))
    makers = {DiffFormat.MARKDOWN: diff_md, DiffFormat.JSON: diff_json, DiffFormat.HTML: diff_html}
    if output is DiffFormat.TABLE and file is None:
        _print_diff(found)
        return
    text = makers.get(output, diff_md)(found)
    if file is None:
        typer.echo(text, nl=False)
    else:
        replace(file.absolute().parent, {file.name: text})
        typer.echo(f"wrote {file}")


def gate_command(
    *,
    run: Annotated[str, typer.Option("--run", help="The run to judge, as for diff.", metavar="RUN")] = str(DEFAULT_OUTPUT),
    baseline: Annotated[str | None, typer.Option("--baseline", help="The run to compare with, as for diff.", metavar="RUN")] = None,
    require: Annotated[
        list[str] | None, typer.Option("--require", help="Targets that must have verdicts: --require cpu cuda", metavar="T ...")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on", help=f"Changes since the baseline that fail the gate. [default: {' '.join(DEFAULT_KINDS)}]", metavar="KIND ..."
        ),
    ] = None,
    matrix: Matrix = Path("matrix.yaml"),
    output: FormatOption = Format.TABLE,
) -> None:
    """Pass if a run meets the expectations of matrix.yaml and is no worse than a baseline; otherwise exit with 8 and say why.

    A failing cell needs an entry under expect: in matrix.yaml, with a reason and a link. An entry that no longer holds fails too. Examples:

        hwmatrix gate

        hwmatrix gate --baseline reports/published/2026-11-20-default --fail-on broken slower --require cpu openvino
    """
    loaded = load(matrix)
    kinds = {kind.value: kind for kind in GATEABLE}
    chosen = known("--fail-on", fail_on or [kind.value for kind in DEFAULT_KINDS], kinds)
    rules = GateRules(required=known("--require", require or (), loaded.spec.targets), kinds=tuple(kinds[name] for name in chosen))
    side = side_of(run)
    earlier = side_of(baseline) if baseline is not None else None
    diff = make_diff(earlier, side) if earlier is not None else None
    violations = check(loaded, side, diff, rules)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for violation in violations:
            typer.echo(annotation(violation, str(matrix)), err=True)
    if output is Format.JSON:
        _print_json(side, earlier, violations)
    elif violations:
        _print_violations(violations, matrix)
    if violations:
        things = "one thing does" if len(violations) == 1 else f"{len(violations)} things do"
        raise GateError(f"the gate failed: {things} not hold in run {side.run.run_id}")
    if output is Format.TABLE:
        typer.echo(f"the gate is open: run {side.run.run_id}, {len(side.cells)} cells, nothing unexpected")


def side_of(text: str) -> Side:
    """A side from what somebody typed: ``PATH`` or ``PATH@RUN``.

    Raises:
        StoreError: there is no such database or run.
    """
    place, mark, run_id = text.rpartition(_RUN_MARK)
    if not mark or Path(text).exists():
        return read_side(Path(text))
    return read_side(Path(place), run_id)


def _print_diff(diff: Diff) -> None:
    console = Console()
    head = f"{diff.old.run.run_id} → {diff.new.run.run_id}: {diff.compared} cells compared, the speed of {diff.timed}"
    console.print(Text(head if diff.changes else f"{head}; nothing changed"), soft_wrap=True)
    if not diff.compared:
        console.print(Text("no cell is in both: other models, sizes, targets or isolation"))
    for kind in diff.counts:
        changes = diff.of(kind)
        console.print(Text(f"\n{SYMBOLS[kind]} {TITLES[kind]} ({len(changes)})", style="bold"))
        for change in changes[:_LISTED]:
            ratio = "" if change.ratio is None else f" (x {change.ratio:.2f})"
            cell = change.cell
            console.print(
                Text(f"  {plain(cell.model)} on {plain(cell.target)} ({settings(cell)}): {plain(change.detail)}{ratio}"), soft_wrap=True
            )
        if len(changes) > _LISTED:
            console.print(Text(f"  and {len(changes) - _LISTED} more: --format markdown lists them all"))
    console.print()
    for reason, count in diff.untimed.items():
        console.print(Text(f"speed not compared: {count} cells ({reason})"), soft_wrap=True)
    changed = sorted({each.package for each in diff.packages})
    if changed:
        console.print(Text(f"packages that changed: {', '.join(changed)} (--format markdown lists them by target)"), soft_wrap=True)


def _print_violations(violations: tuple[Violation, ...], matrix: Path) -> None:
    console = Console()
    for violation in violations:
        rule, about, what = row(violation)
        console.print(Text(f"✗ {rule}: {about}" if about else f"✗ {rule}", style="bold red"), soft_wrap=True)
        console.print(Text(f"    {what}"), soft_wrap=True)
        where = f" ({matrix}:{violation.line})" if violation.line else ""
        console.print(Text(f"    {violation.advice}{where}", style="dim"), soft_wrap=True)


def _print_json(side: Side, earlier: Side | None, violations: tuple[Violation, ...]) -> None:
    document = GateDocument(
        ok=not violations,
        run_id=side.run.run_id,
        baseline=earlier.run.run_id if earlier else None,
        cells=len(side.cells),
        violations=tuple(entry(violation) for violation in violations),
    )
    data = pydantic.TypeAdapter(GateDocument).dump_python(document, mode="json")
    typer.echo(json.dumps({"schema": data.pop("schema"), **data}, indent=2, ensure_ascii=False))
