"""``hwmatrix workflow``, ``pins``: GitHub workflow files, and the versions pinned in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from hwmatrix.cli.options import OwnMatrix  # noqa: TC001 - typer reads it from the annotations
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.host.github.pins import refresh
from hwmatrix.host.github.render import ACTION, render
from hwmatrix.matrix.load import load
from hwmatrix.report.write import replace

_API: Final = "https://api.github.com"


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("workflow")(workflow_command)
    app.command("pins")(pins_command)


def workflow_command(
    *,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is out of date.")] = False,
    folder: Annotated[Path, typer.Option("--output-dir", help="The folder of the workflows.", metavar="DIR")] = Path(".github/workflows"),
    matrix: OwnMatrix = Path("matrix.yaml"),
) -> None:
    """Write the workflow files of GitHub Actions from matrix.yaml: ci.yml, matrix.yml, release.yml, pins.yml.

    An action.yml beside matrix.yaml is written too, if there is one. An example of that:

        hwmatrix workflow --check
    """
    loaded = load(matrix)
    texts = render(loaded)
    action = loaded.path.parent / ACTION
    places = {(action if name == ACTION else folder / name): text for name, text in texts.items() if name != ACTION or action.exists()}
    if not check:
        for path, text in places.items():
            replace(path.parent, {path.name: text})
            typer.echo(f"wrote {path}")
        return
    problems = []
    for path, text in places.items():
        try:
            same = path.read_text(encoding="utf-8") == text
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(where=str(path), what=f"cannot be read: {error}", hint="nox -s workflow writes it"))
            continue
        if not same:
            problems.append(Problem(where=str(path), what="it does not match matrix.yaml", hint="update it with nox -s workflow"))
    if problems:
        raise ConfigError(problems)
    typer.echo(f"{len(places)} workflow files are in step with {matrix}")


def pins_command(
    *,
    matrix: OwnMatrix = Path("matrix.yaml"),
    compiled: Annotated[
        Path | None, typer.Option("--compiled", help="The output of pip-compile with the new package versions.", metavar="FILE")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only report what would change.")] = False,
) -> None:
    """Look up newer actions, package versions and the digest of the base image, and update the pins.

    GITHUB_TOKEN, if set, is used to query the releases of actions. Nothing is installed. An example of that:

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
        typer.echo("everything is the newest already")
