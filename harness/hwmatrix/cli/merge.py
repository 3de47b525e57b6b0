"""``hwmatrix merge``: from shards to a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.cli.options import DEFAULT_OUTPUT
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.host.run_folder import RUNS
from hwmatrix.store.merge import merge


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("merge")(merge_command)


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
    if report.withdrawn:
        typer.echo(f"{len(report.withdrawn)} cells are not shown: their run was planned anew without them")
    typer.echo(
        f"{len(report.merged)} shards merged ({report.rows} rows), {len(report.known)} known before, {len(report.rejected)} rejected"
    )


def _latest(output: Path) -> Path:
    runs = sorted((output / RUNS).glob("*/plan.json"))
    if not runs:
        raise ConfigError([Problem(where="hwmatrix merge", what=f"{output / RUNS} holds no run", hint="name a run's folder")])
    return runs[-1].parent
