"""``hwmatrix classify``, ``schema``, and what ``detect`` prints of this machine: what is here, what models are, what files may say."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hwmatrix.cli.options import Format, FormatOption, Matrix, Models, outside
from hwmatrix.cli.selecting import select
from hwmatrix.errors import CellFailure
from hwmatrix.hardware.detector import detect_all
from hwmatrix.matrix.load import load
from hwmatrix.matrix.spec import json_schema
from hwmatrix.models.families import family_of
from hwmatrix.records import to_json
from hwmatrix.report.schemas import errors_schema, matrix_schema

if TYPE_CHECKING:
    from collections.abc import Iterable


class Schema(enum.StrEnum):
    """Formats of ours that have a JSON Schema."""

    MATRIX_FILE = "matrix-file"
    MATRIX = "matrix"
    ERRORS = "errors"


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("classify")(classify_command)
    app.command("schema")(schema_command)


def tell_detections(output: Format) -> None:
    """Print what hardware and runtimes are here, and why others are not."""
    found = detect_all()
    if output is Format.JSON:
        typer.echo(json.dumps([json.loads(to_json(detection)) for detection in found], indent=2))
        return
    rows = []
    for detection in found:
        text = facts(detection.features) if detection.available else detection.reason or ""
        rows.append((detection.hardware_type, "yes" if detection.available else "no", detection.name or "", text))
    print_table(("hardware", "here", "name", "facts"), rows)


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


def schema_command(which: Annotated[Schema, typer.Argument(help="Which format.")] = Schema.MATRIX_FILE) -> None:
    """Print the JSON Schema of matrix.yaml, matrix.json or errors.json."""
    schemas = {Schema.MATRIX_FILE: json_schema, Schema.MATRIX: matrix_schema, Schema.ERRORS: errors_schema}
    typer.echo(json.dumps(schemas[which](), indent=2))


def print_table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows with lines between them."""
    table = Table(*columns, show_lines=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def facts(features: dict[str, Any]) -> str:
    """Facts by name, one a line; what is not known is left out."""
    return "\n".join(f"{name}: {_fact(value)}" for name, value in features.items() if value is not None)


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
