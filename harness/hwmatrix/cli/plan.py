"""``hwmatrix plan``: plan a run that other machines execute, each with the hardware of some targets."""

from __future__ import annotations

import enum
import functools
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import plan_elsewhere
from hwmatrix.app.selecting import select
from hwmatrix.basics.text import plural
from hwmatrix.cli.options import (
    Architectures,
    Batches,
    Dtypes,
    Everything,
    Forward,
    Generation,
    Lengths,
    Matrix,
    Models,
    OwnSize,
    Suite,
    Targets,
    Threads,
    Timing,
    axes,
)
from hwmatrix.cli.tables import print_table
from hwmatrix.cli.terminal import echo
from hwmatrix.host.github.job_matrix import job_matrices, write_step_outputs
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.matrix.load import load
from hwmatrix.records import Isolation, to_json


class PlanFormat(enum.StrEnum):
    """How a plan is printed. ``github`` is the job matrix of a workflow."""

    TABLE = "table"
    JSON = "json"
    GITHUB = "github"


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("plan")(plan_command)


def plan_command(
    *,
    models: Models = None,
    suite: Suite = None,
    targets: Targets = None,
    architectures: Architectures = None,
    dtypes: Dtypes = None,
    batches: Batches = None,
    lengths: Lengths = None,
    threads: Threads = None,
    size: OwnSize = None,
    everything: Everything = False,
    timing: Timing = None,
    generation: Generation = None,
    forward: Forward = True,
    isolation: Annotated[
        Isolation, typer.Option("--isolation", help="How targets are isolated from their machines.")
    ] = Isolation.CONTAINER,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", help="A new folder to write the plan into, for hwmatrix run.", metavar="DIR")
    ] = None,
    matrix: Matrix = Path("matrix.yaml"),
    output: Annotated[PlanFormat, typer.Option("--format", help="A table, the complete plan, or a job matrix.")] = PlanFormat.TABLE,
) -> None:
    """Plan a run without executing anything, and print it. ``hwmatrix run`` executes a plan elsewhere, target by target.

    Nothing is written unless a folder is named. Each machine determines which targets are available on it. Examples:

        hwmatrix plan --suite smoke

        hwmatrix plan --targets cpu cuda --format github --output-dir planned
    """
    loaded, environment = load(matrix), read_environment()
    chosen = select(
        loaded,
        models=models or (),
        suite=suite,
        targets=targets or (),
        architectures=architectures or (),
        dtypes=dtypes or (),
        size=size,
        everything=everything,
        timing=timing,
        generation=generation,
        forward=forward,
        axes=axes(batches, lengths, threads),
        cache=environment.cache,
        say=functools.partial(echo, err=True),
    )
    plan = plan_elsewhere(loaded, chosen, isolation, environment=environment)
    if output_dir is not None:
        RunFolder.planned(output_dir.absolute(), plan)
    if output is PlanFormat.JSON:
        echo(to_json(plan, indent=1))
    elif output is PlanFormat.GITHUB:
        echo(json.dumps(job_matrices(plan, loaded)))
        if (outputs := os.environ.get("GITHUB_OUTPUT")) is not None:
            write_step_outputs(plan, loaded, Path(outputs))
    else:
        rows = [(job["target"], str(job["cells"]), ", ".join(job["runs_on"])) for job in job_matrices(plan, loaded)["include"]]
        print_table(("target", "cells", "runs on"), rows)
        counted = f"{plural(len(plan.cells), 'cell')}, {plural(len({model.name for model in plan.models}), 'model')}"
        echo(counted if output_dir is None else f"{counted}; the plan is in {output_dir}")
