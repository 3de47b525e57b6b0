"""``hwmatrix schema``, what ``detect`` prints of this machine, and how commands print tables."""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hwmatrix.app.schemas import REPORTS
from hwmatrix.cli.options import Format
from hwmatrix.hardware.detector import detect_all
from hwmatrix.matrix.spec import json_schema
from hwmatrix.records import to_json
from hwmatrix.report.escape import visible

if TYPE_CHECKING:
    from collections.abc import Iterable


class Schema(enum.StrEnum):
    """Formats of ours that have a JSON Schema."""

    MATRIX_FILE = "matrix-file"
    MATRIX = "matrix"
    ERRORS = "errors"
    GROUPS = "groups"
    EXPECTED = "expected"
    DIFF = "diff"
    GATE = "gate"
    HISTORY = "history"
    WHY = "why"
    FIT = "fit"
    HARDWARE_ERRORS = "hardware-errors"
    TEST = "test"
    TYPES = "types"


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
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


def schema_command(which: Annotated[Schema, typer.Argument(help="Which format.")] = Schema.MATRIX_FILE) -> None:
    """Print the JSON Schema of matrix.yaml, or of a JSON report."""
    typer.echo(json.dumps((json_schema if which is Schema.MATRIX_FILE else REPORTS[which.value])(), indent=2))


def print_table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows with lines between them. A word that is too long for its column is folded, never cut."""
    table = Table(show_lines=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell, keep="\n")) for cell in row))
    Console().print(table)


def facts(features: dict[str, Any]) -> str:
    """Facts by name, one a line; what is not known is left out."""
    return "\n".join(f"{name}: {_fact(value)}" for name, value in features.items() if value is not None)


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
