"""``hwmatrix report``: writes reports from a database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.basics.cache_folder import cache_folder
from hwmatrix.cli.options import DEFAULT_OUTPUT, Output, RunId
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.knowledge.on_record import PUBLISHED
from hwmatrix.report.custom import OURS, as_json, ask, render
from hwmatrix.report.operator_report import write_operators
from hwmatrix.report.plots import undrawn
from hwmatrix.report.write import replace, write_reports
from hwmatrix.store.reading import DATABASE


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("report")(report_command)


def report_command(
    *,
    database: Annotated[Path | None, typer.Option("--database", help="[default: matrix.duckdb in --output-dir]", metavar="FILE")] = None,
    run: RunId = None,
    asked: Annotated[
        str | None, typer.Option("--query", help=f"Your own report: an SQL file, or one of: {', '.join(OURS)}", metavar="SQL")
    ] = None,
    template: Annotated[Path | None, typer.Option("--template", help="A Jinja2 template for its rows.", metavar="FILE")] = None,
    file: Annotated[
        Path | None, typer.Option("--output", help="Write your own report to this file instead of printing it.", metavar="FILE")
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option("--history", help="Earlier runs for index.html. [default: ../history.duckdb, if it exists]", metavar="FILE"),
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Use the published database (reports/published); write there unless --output-dir is given.")
    ] = False,
    context: typer.Context,
    output_dir: Output = DEFAULT_OUTPUT,
) -> None:
    """Write the reports of a merged database, or your own report: a query with a template for its rows (without one, JSON).

    For example:

        hwmatrix report

        hwmatrix report --published

        hwmatrix report --query slow.sql --template slow.md.j2 --output slow.md

        hwmatrix report --query best_hardware_by_model_type
    """
    if published:
        database = database or PUBLISHED / DATABASE
        output_dir = output_dir if _was_given(context, "output_dir") else PUBLISHED
    database = database or output_dir / DATABASE
    if asked is not None:
        found = ask(database, asked, run_id=run)
        _print_or_write(as_json(found) if template is None else render(found, template), file)
        return
    if template is not None or file is not None:
        raise ConfigError([Problem(where="--template, --output", what="they need a query", hint="add --query")])
    write_all(database, output_dir, run=run, history=history, beside=not published)


def write_all(database: Path, output_dir: Path, *, run: str | None = None, history: Path | None = None, beside: bool = True) -> None:
    """Write all reports, and print their names. ``beside``: the page shows the history beside the folder, if there is one."""
    reports = write_reports(database, output_dir, run_id=run, history=history, beside=beside, cache=cache_folder(os.environ))
    for path in [*reports, *write_operators(database, output_dir)]:
        echo(f"wrote {path}")
    if (reason := undrawn()) is not None:
        echo(reason)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _print_or_write(text: str, file: Path | None) -> None:
    if file is None:
        echo(text, nl=False)
    else:
        replace(file.absolute().parent, {file.name: text})
        echo(f"wrote {file}")
