"""``hwmatrix errors``: what is wrong on this machine and on record, and what to do about it."""

from __future__ import annotations

import enum
from pathlib import Path  # noqa: TC003 - typer reads it from the annotations
from typing import Annotated

import typer

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
    collect_all: Annotated[bool, typer.Option("--collect-all", help="Ask every component, and the database; this is the default.")] = False,
    matrix: Annotated[bool, typer.Option("--matrix", help="Add the table of models against hardware: measured, else expected.")] = False,
    test_hardware: Annotated[
        bool, typer.Option("--test-hardware", help="Use every runtime on everything that is here, each in a process of its own.")
    ] = False,
    check_model: Annotated[
        list[str] | None, typer.Option("--check-model", help="Say what stands in the way of a model here. May be repeated.", metavar="M")
    ] = None,
    output: Annotated[ReportFormat, typer.Option("--format", help="Text to read, or JSON to process.")] = ReportFormat.MARKDOWN,
    file: Annotated[Path | None, typer.Option("--output", help="Write into a file instead of printing.", metavar="FILE")] = None,
    database: Annotated[
        Path | None, typer.Option("--database", help="[default: reports/latest/matrix.duckdb, if it is there]", metavar="FILE")
    ] = None,
) -> None:
    """Report errors of this machine and of what is on record, most severe first, each with what to do.

    Without an option: all components are asked, and nothing is executed. Several options make one report. Examples:

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
        typer.echo(text, nl=False)
    else:
        typer.echo(f"wrote {reporter.save_to_file(text, file)}")
