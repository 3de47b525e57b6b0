"""``hwmatrix schema``: the JSON Schema of matrix.yaml and of each JSON report."""

from __future__ import annotations

import enum
import json
from typing import Annotated

import typer

from hwmatrix.app.schemas import REPORTS
from hwmatrix.cli.terminal import echo
from hwmatrix.matrix.spec import json_schema


class Schema(enum.StrEnum):
    """The formats that have a JSON Schema."""

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


def schema_command(which: Annotated[Schema, typer.Argument(help="The format.")] = Schema.MATRIX_FILE) -> None:
    """Print the JSON Schema of matrix.yaml, or of a JSON report."""
    echo(json.dumps((json_schema if which is Schema.MATRIX_FILE else REPORTS[which.value])(), indent=2))
