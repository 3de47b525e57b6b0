"""``hwmatrix gate``: checks that a run meets the expectations and is no worse than another run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import pydantic
import typer
from rich.console import Console
from rich.text import Text

from hwmatrix.cli.options import DEFAULT_OUTPUT, Format, FormatOption, Matrix, known
from hwmatrix.errors import GateError
from hwmatrix.matrix.load import load
from hwmatrix.report.diff import Side, make_diff, side_of
from hwmatrix.report.gate import DEFAULT_KINDS, GATEABLE, GateRules, Violation, check
from hwmatrix.report.gate_text import GateDocument, annotation, entry, row


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("gate")(gate_command)


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
    """Pass if a run meets the expectations of matrix.yaml and is no worse than a baseline; otherwise print why, and exit with 8.

    A failing cell needs an entry under expect: in matrix.yaml, with a reason and a link. An entry that no longer holds fails too. Examples:

        hwmatrix gate

        hwmatrix gate --baseline reports/published --fail-on broken slower --require cpu openvino
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
        count = "1 violation" if len(violations) == 1 else f"{len(violations)} violations"
        raise GateError(f"the gate failed: {count} in run {side.run.run_id}")
    if output is Format.TABLE:
        typer.echo(f"the gate passed: run {side.run.run_id}, {len(side.cells)} cells, nothing unexpected")


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
