"""``hwmatrix merge``, ``report``, ``badges``: from shards to a database, from a database to reports."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads it from the annotations
from typing import Annotated

import typer

from hwmatrix.cli.options import DEFAULT_OUTPUT, Output
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.host.runs import RUNS
from hwmatrix.report.badges import files
from hwmatrix.report.custom import OURS, as_json, ask, render
from hwmatrix.report.operators import write_operators
from hwmatrix.report.plots import undrawn
from hwmatrix.report.rows import read
from hwmatrix.report.write import replace, write_reports
from hwmatrix.store.merge import merge


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("merge")(merge_command)
    app.command("report")(report_command)
    app.command("badges")(badges_command)


def merge_command(
    *,
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of runs (plan.json, shards/). [default: the latest run's]", metavar="RUN")
    ] = None,
    database: Annotated[
        Path, typer.Option("--database", help="The database to merge into; created if missing.", metavar="FILE")
    ] = DEFAULT_OUTPUT / "matrix.duckdb",
) -> None:
    """Merge the shards of runs into a database. Merging again changes nothing; broken shards are listed and skipped."""
    report = merge(folders or [_latest(database.parent)], database)
    for rejection in report.rejected:
        typer.echo(f"rejected {rejection.file}: {rejection.reason}")
    if report.withdrawn:
        typer.echo(f"{len(report.withdrawn)} cells are not shown: their run was planned anew without them")
    typer.echo(
        f"{len(report.merged)} shards merged ({report.rows} rows), {len(report.known)} known before, {len(report.rejected)} rejected"
    )


def report_command(
    *,
    database: Annotated[Path | None, typer.Option("--database", help="[default: matrix.duckdb in --output-dir]", metavar="FILE")] = None,
    run: Annotated[str | None, typer.Option("--run", help="A run's id. [default: the latest in the database]", metavar="ID")] = None,
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
    output_dir: Output = DEFAULT_OUTPUT,
) -> None:
    """Write the reports of a merged database, or your own report: a query with a template for its rows (without one, JSON).

    Examples of that:

        hwmatrix report

        hwmatrix report --query slow.sql --template slow.md.j2 --output slow.md

        hwmatrix report --query best_hardware_by_model_type
    """
    database = database or output_dir / "matrix.duckdb"
    if asked is not None:
        found = ask(database, asked, run_id=run)
        _tell(as_json(found) if template is None else render(found, template), file)
        return
    if template is not None or file is not None:
        raise ConfigError([Problem(where="--template, --output", what="they belong to a query", hint="add --query")])
    for path in [*write_reports(database, output_dir, run_id=run, history=history), *write_operators(database, output_dir)]:
        typer.echo(f"wrote {path}")
    if (reason := undrawn()) is not None:
        typer.echo(reason)


def badges_command(
    *,
    database: Annotated[Path | None, typer.Option("--database", help="[default: matrix.duckdb in --output-dir]", metavar="FILE")] = None,
    run: Annotated[str | None, typer.Option("--run", help="A run's id. [default: the latest in the database]", metavar="ID")] = None,
    output_dir: Output = DEFAULT_OUTPUT,
) -> None:
    """Write a badge for each model, target and family into badges/: JSON for the endpoint badges of shields.io.

    An example of that:

        hwmatrix badges --output-dir reports/latest
    """
    written = replace(output_dir / "badges", files(read(database or output_dir / "matrix.duckdb", run)))
    typer.echo(f"wrote {len(written)} files into {output_dir / 'badges'}")


def _tell(text: str, file: Path | None) -> None:
    if file is None:
        typer.echo(text, nl=False)
    else:
        replace(file.absolute().parent, {file.name: text})
        typer.echo(f"wrote {file}")


def _latest(output: Path) -> Path:
    runs = sorted((output / RUNS).glob("*/plan.json"))
    if not runs:
        raise ConfigError([Problem(where="hwmatrix merge", what=f"{output / RUNS} contains no run", hint="name a run's folder")])
    return runs[-1].parent
