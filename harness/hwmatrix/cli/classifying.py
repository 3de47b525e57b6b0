"""``hwmatrix classify``: what models are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from hwmatrix.cli.inspecting import print_table
from hwmatrix.cli.options import Format, FormatOption, Matrix, Models, outside
from hwmatrix.cli.selecting import select
from hwmatrix.errors import CellFailure
from hwmatrix.matrix.load import load
from hwmatrix.models.families import family_of


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("classify")(classify_command)


def classify_command(
    *,
    models: Models = None,
    matrix: Matrix = Path("matrix.yaml"),
    output: FormatOption = Format.TABLE,
) -> None:
    """Say what models are: family and architecture, what that was read from, and how sure it is."""
    loaded = load(matrix)
    selection = select(loaded, models=models or (), cache=outside().cache)
    known = {name: (spec.architecture, spec.model_class) for name, spec in loaded.spec.models.items() if not models or name in models}
    known |= {model.name: (model.architecture, model.model_class) for model in selection.extra}
    rows: list[dict[str, Any]] = []
    for name, (architecture, model_class) in known.items():
        row: dict[str, Any] = {"model": name, "architecture": architecture, "class": model_class}
        try:
            verdict = family_of(architecture, model_class)
        except CellFailure as failure:
            row |= {"family": None, "confidence": None, "source": str(failure)}
        else:
            row |= {"family": verdict.family.value, "confidence": verdict.confidence, "source": verdict.source}
        rows.append(row)
    if output is Format.JSON:
        typer.echo(json.dumps(rows, indent=2))
    else:
        print_table(tuple(rows[0]), [tuple(str(value or "") for value in row.values()) for row in rows])
