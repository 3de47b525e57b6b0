"""``hwmatrix gate``: checks that a run meets the expectations and is no worse than another run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Final

import pydantic
import typer
from rich.console import Console

from hwmatrix.basics.text import plain, plural
from hwmatrix.cli.options import DEFAULT_OUTPUT, AcrossOption, Format, FormatOption, Matrix, known
from hwmatrix.cli.terminal import echo, safe_text
from hwmatrix.errors import ConfigError, GateError, Problem
from hwmatrix.matrix.load import load
from hwmatrix.report.diff import Side, make_diff, side_of
from hwmatrix.report.gate import DEFAULT_KINDS, GATEABLE, GateRules, Violation, check, unmatched_expectations, verdicts
from hwmatrix.report.gate_text import GateDocument, annotation, entry, row

_LISTED: Final = 3
"""How many expectations without a cell the text names."""


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
    across: AcrossOption = None,
    max_loss: Annotated[
        float | None, typer.Option("--max-loss", min=0, help="The largest allowed loss of a cell that passes.", metavar="LOSS")
    ] = None,
    max_p50_ratio: Annotated[
        float | None,
        typer.Option("--max-p50-ratio", min=0, help="How many times the baseline's p50 a cell may take: 1.2", metavar="RATIO"),
    ] = None,
    matrix: Matrix = Path("matrix.yaml"),
    output: FormatOption = Format.TABLE,
) -> None:
    """Pass if a run meets the expectations of matrix.yaml and is no worse than a baseline; otherwise print why, and exit with 8.

    A failing cell needs an entry under expect: in matrix.yaml, with a reason and a link. An entry that no longer holds fails too, and so
    does a cell that was planned and not run. Examples:

        hwmatrix gate

        hwmatrix gate --baseline reports/published --fail-on broken lost --require cpu openvino

        hwmatrix gate --run int8 --baseline float32 --across dtype --max-p50-ratio 1 --max-loss 0.05
    """
    loaded = load(matrix)
    kinds = {kind.value: kind for kind in GATEABLE}
    chosen = known("--fail-on", fail_on or [kind.value for kind in DEFAULT_KINDS], kinds)
    if baseline is None and (across is not None or max_p50_ratio is not None):
        what = "it compares with a baseline"
        raise ConfigError([Problem(where="--across" if across else "--max-p50-ratio", what=what, hint="add --baseline")])
    rules = GateRules(
        required=known("--require", require or (), loaded.spec.targets),
        kinds=tuple(kinds[name] for name in chosen),
        max_loss=max_loss,
        max_p50_ratio=max_p50_ratio,
    )
    side = side_of(run)
    earlier = side_of(baseline) if baseline is not None else None
    diff = make_diff(earlier, side, across_dtype=across is not None) if earlier is not None else None
    violations, unmatched = check(loaded, side, diff, rules), unmatched_expectations(loaded, side)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for violation in violations:
            echo(annotation(violation, str(matrix)), err=True)
    if output is Format.JSON:
        _print_json(side, earlier, violations, unmatched)
    else:
        _print_violations(violations, matrix)
        for note in (*(diff.notes if diff is not None and diff.pairs else ()), *_unmatched(unmatched)):
            echo(plain(note))
    count = f"{verdicts(side)} of {len(side.cells)} cells have a verdict"
    if violations:
        raise GateError(f"the gate failed: {plural(len(violations), 'violation')} in run {side.run.run_id}; {count}")
    if output is Format.TABLE:
        echo(f"the gate passed: run {side.run.run_id}; {count}, nothing unexpected")


def _unmatched(unmatched: tuple[str, ...]) -> tuple[str, ...]:
    if not unmatched:
        return ()
    listed = "; ".join(unmatched[:_LISTED]) + (f"; and {len(unmatched) - _LISTED} more" if len(unmatched) > _LISTED else "")
    return (f"expect: in matrix.yaml covers no cell of this run with {len(unmatched)} of its entries: {listed}",)


def _print_violations(violations: tuple[Violation, ...], matrix: Path) -> None:
    console = Console()
    for violation in violations:
        rule, about, what = row(violation)
        console.print(safe_text(f"✗ {rule}: {about}" if about else f"✗ {rule}", style="bold red"), soft_wrap=True)
        console.print(safe_text(f"    {what}"), soft_wrap=True)
        where = f" ({matrix}:{violation.line})" if violation.line else ""
        console.print(safe_text(f"    {violation.advice}{where}", style="dim"), soft_wrap=True)


def _print_json(side: Side, earlier: Side | None, violations: tuple[Violation, ...], unmatched: tuple[str, ...]) -> None:
    document = GateDocument(
        ok=not violations,
        run_id=side.run.run_id,
        baseline=earlier.run.run_id if earlier else None,
        cells=len(side.cells),
        verdicts=verdicts(side),
        unmatched_expectations=unmatched,
        violations=tuple(entry(violation) for violation in violations),
    )
    data = pydantic.TypeAdapter(GateDocument).dump_python(document, mode="json")
    echo(json.dumps({"schema": data.pop("schema"), **data}, indent=2, ensure_ascii=False))
