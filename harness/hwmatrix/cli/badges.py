"""``hwmatrix badges``: a badge for each model, target and family."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.basics.text import plural
from hwmatrix.cli.options import DEFAULT_OUTPUT, Output, RunId
from hwmatrix.cli.terminal import echo
from hwmatrix.report.badges import files
from hwmatrix.report.rows import read
from hwmatrix.report.write import replace


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("badges")(badges_command)


def badges_command(
    *,
    database: Annotated[Path | None, typer.Option("--database", help="[default: matrix.duckdb in --output-dir]", metavar="FILE")] = None,
    run: RunId = None,
    output_dir: Output = DEFAULT_OUTPUT,
) -> None:
    """Write a badge for each model, target and family into badges/, as JSON for the endpoint badges of shields.io.

    For example:

        hwmatrix badges --output-dir reports/latest
    """
    written = replace(output_dir / "badges", files(read(database or output_dir / "matrix.duckdb", run)))
    echo(f"wrote {plural(len(written), 'file')} into {output_dir / 'badges'}")
