"""``hwmatrix wait``: called by a job of a workflow, to wait for the jobs of the targets."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from hwmatrix.basics.github_log import annotation, harmless
from hwmatrix.cli.options import JobStates, Matrix, PlannedFolder
from hwmatrix.cli.terminal import echo
from hwmatrix.host.github.collect import write_states
from hwmatrix.host.github.jobs import Patience, RunAddress, State, ask, wait
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.matrix.load import load

_SLACK_MINUTES: Final = 10


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("wait")(wait_command)


def wait_command(
    folder: PlannedFolder,
    *,
    states: JobStates = Path("states.json"),
    matrix: Matrix = Path("matrix.yaml"),
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between polls.", metavar="S")] = 20.0,
    runner_minutes: Annotated[
        float | None, typer.Option("--runner-minutes", min=0, help="How long a job may wait for a runner. [default: matrix.yaml's]")
    ] = None,
) -> None:
    """In a workflow, wait until each target's job has ended, or no runner has picked it up for github.wait_minutes.

    It polls GitHub's API for the jobs of its own workflow run. An API failure only ends the waiting. Example:

        hwmatrix wait planned/runs/20261120T072723Z-42934e --states states.json
    """
    loaded = load(matrix)
    address = RunAddress.of(os.environ)
    github = loaded.spec.github
    plan = RunFolder(path=folder).plan()
    labels = {
        each.name: loaded.spec.targets[each.name].runs_on or github.runs_on for each in plan.targets if each.name in loaded.spec.targets
    }
    minutes = github.wait_minutes if runner_minutes is None else runner_minutes
    patience = Patience(runner_s=60 * minutes, whole_s=60 * (minutes + github.timeout_minutes + _SLACK_MINUTES), every_s=every)
    reached = wait(labels, lambda: ask(address), patience, clock=time.monotonic, sleep=time.sleep, say=lambda text: echo(harmless(text)))
    write_states(reached, states)
    for name, what in reached.items():
        if what.state in {State.UNCLAIMED, State.SKIPPED, State.UNKNOWN, State.RUNNING}:
            reason = what.reason or "the outcome of its job is not known"
            echo(annotation("warning", reason, title=f"{name}: no verdicts"))
    _output({"waiting": " ".join(name for name, what in reached.items() if what.state is State.UNCLAIMED)})


def _output(values: dict[str, str]) -> None:
    """Write the outputs of a workflow step to GITHUB_OUTPUT. No value has line breaks, because names of targets have none."""
    path = os.environ.get("GITHUB_OUTPUT")
    if path is not None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in values.items())
