"""``hwmatrix wait``, ``collect``, ``summary``, ``assets``: called by the jobs of a workflow after the targets."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from hwmatrix.cli.options import DEFAULT_OUTPUT, Matrix, Output
from hwmatrix.errors import ConfigError, HwmatrixError, Problem, StoreError
from hwmatrix.host.github.assets import make_assets
from hwmatrix.host.github.collect import collect, read_states, write_states
from hwmatrix.host.github.jobs import Patience, RunAddress, State, ask, wait
from hwmatrix.host.github.log import annotation, harmless
from hwmatrix.host.runs import RunFolder
from hwmatrix.matrix.load import load
from hwmatrix.report.diff import make_diff, read_side
from hwmatrix.report.rows import read
from hwmatrix.report.step_summary import SUMMARY_BYTES, failure_annotations, release_notes, step_summary
from hwmatrix.report.write import replace

DATABASE: Final = "matrix.duckdb"
PROBLEMS: Final = "collected.txt"
_SLACK_MINUTES: Final = 10

Run = Annotated[Path, typer.Argument(help="The folder of the planned run, with plan.json.", metavar="RUN")]
States = Annotated[Path, typer.Option("--states", help="The state of the targets' jobs.", metavar="FILE")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("wait")(wait_command)
    app.command("collect")(collect_command)
    app.command("summary")(summary_command)
    app.command("assets")(assets_command)


def wait_command(
    folder: Run,
    *,
    states: States = Path("states.json"),
    matrix: Matrix = Path("matrix.yaml"),
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between polls.", metavar="S")] = 20.0,
    runner_minutes: Annotated[
        float | None, typer.Option("--runner-minutes", min=0, help="How long a job may wait for a runner. [default: matrix.yaml's]")
    ] = None,
) -> None:
    """In a workflow, wait until each target's job has ended, or no runner has picked it up for github.wait_minutes.

    It polls GitHub's API for the jobs of its own workflow run. An API failure only ends the waiting. An example of that:

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
    reached = wait(
        labels, lambda: ask(address), patience, clock=time.monotonic, sleep=time.sleep, say=lambda text: typer.echo(harmless(text))
    )
    write_states(reached, states)
    for name, what in reached.items():
        if what.state in {State.UNCLAIMED, State.SKIPPED, State.UNKNOWN, State.RUNNING}:
            told = what.reason or "it is not known what became of its job"
            typer.echo(annotation("warning", told, title=f"{name}: no verdicts"))
    _output({"waiting": " ".join(name for name, what in reached.items() if what.state is State.UNCLAIMED)})


def collect_command(
    folder: Run,
    *,
    arrived: Annotated[Path, typer.Option("--arrived", help="The downloaded artifacts, one folder each.", metavar="DIR")],
    states: States = Path("states.json"),
) -> None:
    """Validate the targets' artifacts, and add them to the planned run; a target without a runner becomes unavailable.

    Rejected artifacts are named (exit code 7); the others are still used. An example of that:

        hwmatrix collect planned/runs/20261120T072723Z-42934e --arrived arrived
    """
    run = RunFolder(path=folder)
    found = collect(run, arrived, read_states(states))
    for target, shards in found.shards.items():
        typer.echo(f"{target}: {len(shards)} shards")
    for target, reason in found.unavailable.items():
        typer.echo(harmless(f"{target}: unavailable: {reason}"))
    problems = [*found.refused, *(f"{target}: {reason}" for target, reason in found.missing.items())]
    for problem in problems:
        typer.echo(annotation("error", problem, title="shards"))
    replace(folder, {PROBLEMS: "".join(problem.replace("\n", " ") + "\n" for problem in problems)})
    if found.refused:
        what = f"{len(found.refused)} artifacts were refused" if len(found.refused) > 1 else "an artifact was refused"
        raise StoreError(harmless(f"{what}: {'; '.join(found.refused)}"), advice="Their cells have no verdict.")


def summary_command(
    *,
    output_dir: Output = DEFAULT_OUTPUT,
    run: Annotated[str | None, typer.Option("--run", help="A run's id. [default: the latest in the database]", metavar="ID")] = None,
    collected: Annotated[
        Path | None, typer.Option("--collected", help="The folder of the run in which hwmatrix collect recorded problems.", metavar="RUN")
    ] = None,
    matrix: Matrix = Path("matrix.yaml"),
    annotate_as: Annotated[
        str | None, typer.Option("--annotate-as", help="The path of matrix.yaml in the repository. [default: --matrix]", metavar="FILE")
    ] = None,
) -> None:
    """Append the matrix and the failures to the job summary ($GITHUB_STEP_SUMMARY), or print them.

    In a workflow, failures also become annotations on the lines of matrix.yaml that have their models. An example of that:

        hwmatrix summary --output-dir reports/latest
    """
    rows = read(output_dir / DATABASE, run)
    problems = (collected / PROBLEMS).read_text(encoding="utf-8").splitlines() if collected and (collected / PROBLEMS).is_file() else []
    where = os.environ.get("GITHUB_STEP_SUMMARY")
    if where is None:
        typer.echo(step_summary(rows, problems), nl=False)
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
            typer.echo(line, err=True)


def assets_command(
    reports: Annotated[Path, typer.Argument(help="A folder of reports.", metavar="REPORTS")],
    folder: Annotated[Path, typer.Argument(help="The folder for the release files; created if missing.", metavar="DIR")],
    *,
    images: Annotated[
        Path | None, typer.Option("--images", help="Artifacts of the jobs that pushed images, one folder each.", metavar="DIR")
    ] = None,
    last: Annotated[
        Path | None, typer.Option("--last", help="The database of the previous release, if there is one.", metavar="FILE")
    ] = None,
    body: Annotated[Path | None, typer.Option("--body", help="The current text of the release.", metavar="FILE")] = None,
    notes: Annotated[Path | None, typer.Option("--notes", help="Write the new release text to this file.", metavar="FILE")] = None,
) -> None:
    """Create the files of a release from reports, with checksums, and its text: the matrix and the changes since the last release.

    An example of that:

        hwmatrix assets reports/latest assets --last last/matrix.duckdb --body body.md --notes notes.md
    """
    if body is not None and notes is None:
        raise ConfigError([Problem(where="--body", what="it is for the release's new text", hint="add --notes FILE")])
    made = make_assets(reports, folder, images=images)
    typer.echo(f"wrote {len(made.names)} files into {folder}: {', '.join(made.names)}")
    if made.missing:
        typer.echo(f"not there: {', '.join(made.missing)}")
    for reason in made.refused:  # an image that is not told of must not hold the release up
        typer.echo(annotation("error", reason, title="images"))
    if notes is None:
        return
    diff = None
    if last is not None and last.exists():
        try:
            diff = make_diff(read_side(last), read_side(reports / DATABASE))
        except HwmatrixError as error:  # another version's database must not hold the release up
            typer.echo(annotation("warning", f"the last release cannot be compared with: {error}"))
    text = release_notes(body.read_text(encoding="utf-8") if body else "", read(reports / DATABASE), diff)
    replace(notes.absolute().parent, {notes.name: text})
    typer.echo(f"wrote {notes}")


def _output(values: dict[str, str]) -> None:
    """Outputs of a workflow's step: what GITHUB_OUTPUT takes. None has line breaks, since names of targets have none."""
    path = os.environ.get("GITHUB_OUTPUT")
    if path is not None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in values.items())
