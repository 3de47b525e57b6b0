"""``hwmatrix merge``, ``report``: from shards to a database, from a database to reports."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads it from the annotations
from typing import Annotated

import typer

from hwmatrix.cli.options import DEFAULT_OUTPUT, Output
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.host.runs import RUNS
from hwmatrix.report.operators import write_operators
from hwmatrix.report.write import write_reports
from hwmatrix.store.merge import merge


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("merge")(merge_command)
    app.command("report")(report_command)


def merge_command(
    *,
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of runs (plan.json, shards/). [default: the latest run's]", metavar="RUN")
    ] = None,
    database: Annotated[Path, typer.Option("--database", help="What to merge into; made if missing.", metavar="FILE")] = DEFAULT_OUTPUT
    / "matrix.duckdb",
) -> None:
    """Merge the shards of runs into a database. Merging again changes nothing; broken shards are listed, and left out."""
    report = merge(folders or [_latest(database.parent)], database)
    for rejection in report.rejected:
        typer.echo(f"rejected {rejection.file}: {rejection.reason}")
    typer.echo(
        f"{len(report.merged)} shards merged ({report.rows} rows), {len(report.known)} known before, {len(report.rejected)} rejected"
    )


def report_command(
    *,
    database: Annotated[Path | None, typer.Option("--database", help="[default: matrix.duckdb in --output-dir]", metavar="FILE")] = None,
    run: Annotated[str | None, typer.Option("--run", help="A run's id. [default: the latest in the database]", metavar="ID")] = None,
    output_dir: Output = DEFAULT_OUTPUT,
) -> None:
    """Write the reports of a merged database."""
    database = database or output_dir / "matrix.duckdb"
    for path in [*write_reports(database, output_dir, run_id=run), *write_operators(database, output_dir)]:
        typer.echo(f"wrote {path}")


def _latest(output: Path) -> Path:
    runs = sorted((output / RUNS).glob("*/plan.json"))
    if not runs:
        raise ConfigError([Problem(where="hwmatrix merge", what=f"{output / RUNS} holds no run", hint="name a run's folder")])
    return runs[-1].parent
