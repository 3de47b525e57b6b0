"""``hwmatrix summary``: the matrix and its failures in the summary of a workflow's job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.cli.options import DEFAULT_OUTPUT, Matrix, Output, RunId
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import StoreError
from hwmatrix.host.github.collect import PROBLEMS
from hwmatrix.matrix.load import load
from hwmatrix.report.rows import read
from hwmatrix.report.step_summary import SUMMARY_BYTES, failure_annotations, step_summary
from hwmatrix.store.reading import DATABASE


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("summary")(summary_command)


def summary_command(
    *,
    output_dir: Output = DEFAULT_OUTPUT,
    run: RunId = None,
    collected: Annotated[
        Path | None, typer.Option("--collected", help="The folder of the run in which hwmatrix collect recorded problems.", metavar="RUN")
    ] = None,
    matrix: Matrix = Path("matrix.yaml"),
    annotate_as: Annotated[
        str | None, typer.Option("--annotate-as", help="The path of matrix.yaml in the repository. [default: --matrix]", metavar="FILE")
    ] = None,
) -> None:
    """Append the matrix and the failures to the job summary ($GITHUB_STEP_SUMMARY), or print them.

    In a workflow, failures also become annotations on the lines of their models in matrix.yaml. Example:

        hwmatrix summary --output-dir reports/latest
    """
    rows = read(output_dir / DATABASE, run)
    problems = (collected / PROBLEMS).read_text(encoding="utf-8").splitlines() if collected and (collected / PROBLEMS).is_file() else []
    where = os.environ.get("GITHUB_STEP_SUMMARY")
    if where is None:
        echo(step_summary(rows, problems), nl=False)
    else:
        path = Path(where)
        try:
            room = SUMMARY_BYTES - (path.stat().st_size if path.exists() else 0)
            with path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(step_summary(rows, problems, room=room))
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error}") from error
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in failure_annotations(rows, load(matrix), annotate_as or str(matrix)):
            echo(line, err=True)
