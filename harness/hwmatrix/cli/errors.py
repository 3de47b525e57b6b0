"""``hwmatrix errors``: errors of this machine and of recorded runs, and what to do about them."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.cli.terminal import echo
from hwmatrix.reporter.reporter import HardwareCompatibilityReporter


class ReportFormat(enum.StrEnum):
    """How a report is written."""

    MARKDOWN = "markdown"
    JSON = "json"


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("errors")(errors_command)


def errors_command(
    *,
    collect_all: Annotated[
        bool, typer.Option("--collect-all", help="Collect errors from all components and the database (the default).")
    ] = False,
    matrix: Annotated[bool, typer.Option("--matrix", help="Add the table of models against hardware: measured, else expected.")] = False,
    test_hardware: Annotated[
        bool, typer.Option("--test-hardware", help="Run a tiny model on all available hardware, each target in its own process.")
    ] = False,
    check_model: Annotated[
        list[str] | None, typer.Option("--check-model", help="Show what prevents a model from running here. Repeatable.", metavar="M")
    ] = None,
    output: Annotated[ReportFormat, typer.Option("--format", help="Text, or JSON.")] = ReportFormat.MARKDOWN,
    file: Annotated[Path | None, typer.Option("--output", help="Write to a file instead of printing.", metavar="FILE")] = None,
    database: Annotated[
        Path | None, typer.Option("--database", help="[default: reports/latest/matrix.duckdb, if it exists]", metavar="FILE")
    ] = None,
) -> None:
    """Report errors of this machine and of recorded runs, most severe first, each with what to do.

    Without options, errors come from all components, and nothing is executed. Several options are combined into one report. Examples:

        hwmatrix errors

        hwmatrix errors --check-model bert-base-uncased --test-hardware

        hwmatrix errors --matrix --database reports/latest/matrix.duckdb

        hwmatrix errors --collect-all --format json --output errors.json
    """
    reporter = HardwareCompatibilityReporter(database)
    models = check_model or []
    if collect_all or not (matrix or test_hardware or models):
        reporter.collect_all(models)
    else:
        for model in models:
            reporter.collect_model_integration_errors(model)
    if test_hardware:
        reporter.test_full_hardware_stack()
    table = reporter.generate_compatibility_matrix() if matrix else ""
    alone = matrix and not (collect_all or test_hardware or models) and output is ReportFormat.MARKDOWN
    text = table if alone else reporter.generate_report(output.value)
    if file is None:
        echo(text, nl=False)
    else:
        echo(f"wrote {reporter.save_to_file(text, file)}")
