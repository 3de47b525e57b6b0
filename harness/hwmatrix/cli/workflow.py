"""``hwmatrix workflow``: the workflow files for GitHub, generated from matrix.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.cli.options import OwnMatrix
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import GateError
from hwmatrix.host.github.render import ACTION, render
from hwmatrix.matrix.load import load
from hwmatrix.report.write import replace


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("workflow")(workflow_command)


def workflow_command(
    *,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 8 if a file is out of date.")] = False,
    folder: Annotated[Path, typer.Option("--output-dir", help="The folder of the workflows.", metavar="DIR")] = Path(".github/workflows"),
    matrix: OwnMatrix = Path("matrix.yaml"),
) -> None:
    """Write the workflow files of GitHub Actions from matrix.yaml: ci.yml, matrix.yml, release.yml.

    An action.yml beside matrix.yaml is written too, if there is one. Example:

        hwmatrix workflow --check
    """
    loaded = load(matrix)
    texts = render(loaded)
    action = loaded.path.parent / ACTION
    places = {(action if name == ACTION else folder / name): text for name, text in texts.items() if name != ACTION or action.exists()}
    if not check:
        for path, text in places.items():
            replace(path.parent, {path.name: text})
            echo(f"wrote {path}")
        return
    problems = []
    for path, text in places.items():
        try:
            same = path.read_text(encoding="utf-8") == text
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: cannot be read: {error} (nox -s workflow writes it)")
            continue
        if not same:
            problems.append(f"{path}: it does not match matrix.yaml (update it with nox -s workflow)")
    if problems:
        raise GateError("\n".join(problems))
    echo(f"{len(places)} workflow files match {matrix}")
