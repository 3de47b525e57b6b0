"""``hwmatrix collect``: checks the artifacts of a workflow's jobs and adds them to the planned run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.basics.github_log import annotation, harmless
from hwmatrix.basics.text import plural
from hwmatrix.cli.options import JobStates, PlannedFolder
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import StoreError
from hwmatrix.host.github.collect import PROBLEMS, collect, read_states
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.report.write import replace


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("collect")(collect_command)


def collect_command(
    folder: PlannedFolder,
    *,
    arrived: Annotated[Path, typer.Option("--arrived", help="The downloaded artifacts, one folder each.", metavar="DIR")],
    states: JobStates = Path("states.json"),
) -> None:
    """Validate the targets' artifacts, and add them to the planned run; a target without a runner becomes unavailable.

    Invalid artifacts are listed (exit code 7), and the others are used. Example:

        hwmatrix collect planned/runs/20261120T072723Z-42934e --arrived arrived
    """
    run = RunFolder(path=folder)
    found = collect(run, arrived, read_states(states))
    for target, shards in found.shards.items():
        echo(f"{target}: {plural(len(shards), 'shard')}")
    for target, reason in found.unavailable.items():
        echo(harmless(f"{target}: unavailable: {reason}"))
    problems = [*found.refused, *(f"{target}: {reason}" for target, reason in found.missing.items())]
    for problem in problems:
        echo(annotation("error", problem, title="shards"))
    replace(folder, {PROBLEMS: "".join(problem.replace("\n", " ") + "\n" for problem in problems)})
    if found.refused:
        what = f"{len(found.refused)} artifacts were refused" if len(found.refused) > 1 else "an artifact was refused"
        raise StoreError(harmless(f"{what}: {'; '.join(found.refused)}"), advice="Their cells have no verdict.")
