"""``hwmatrix pins``: newer versions of what the project pins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from hwmatrix.cli.options import OwnMatrix
from hwmatrix.host.github.pins import refresh
from hwmatrix.matrix.load import load

_API: Final = "https://api.github.com"


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("pins")(pins_command)


def pins_command(
    *,
    matrix: OwnMatrix = Path("matrix.yaml"),
    compiled: Annotated[
        Path | None, typer.Option("--compiled", help="The output of pip-compile with the new package versions.", metavar="FILE")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only report what would change.")] = False,
) -> None:
    """Look up newer actions, package versions and the digest of the base image, and update the pins.

    GITHUB_TOKEN, if set, is used to ask for releases of actions. Nothing is installed. Example:

        hwmatrix pins --check
    """
    loaded = load(matrix)
    changes = refresh(
        loaded,
        loaded.path.absolute().parent,
        api=os.environ.get("GITHUB_API_URL", _API),
        token=os.environ.get("GITHUB_TOKEN"),
        compiled=compiled,
        write=not check,
    )
    for change in changes:
        typer.echo(f"{change.file}: {change.name} {change.old} -> {change.new}")
    if not changes:
        typer.echo("everything is up to date")
