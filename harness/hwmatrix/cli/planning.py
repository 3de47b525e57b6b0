"""``hwmatrix plan``, ``run``: plans a run in one place and executes it in others, each with the hardware of some targets."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import json
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import hwmatrix
from hwmatrix.app.selecting import fetch_weights, select
from hwmatrix.cli.options import (
    DEFAULT_OUTPUT,
    Architectures,
    BaseImage,
    Matrix,
    Models,
    Output,
    Suite,
    Targets,
    Timing,
    Verbose,
    outside,
    progress,
)
from hwmatrix.cli.running import commit_of, order_of, workshop_of
from hwmatrix.cli.schema import print_table
from hwmatrix.errors import ConfigError, NothingSelectedError, Problem
from hwmatrix.host import infrastructure
from hwmatrix.host.github.pushed import pushable
from hwmatrix.host.places import choose
from hwmatrix.host.run import run
from hwmatrix.host.runs import RunFolder, claim, release
from hwmatrix.matrix.load import LoadedMatrix, load, near_miss
from hwmatrix.matrix.plan import RunFacts, check_selection, make_plan
from hwmatrix.matrix.spec import HOSTED_PATTERN
from hwmatrix.records import Isolation, Plan, Size, Status, plan_from_json
from hwmatrix.store.shard import utc_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.host.places import Place

_UNAVAILABLE = "target_unavailable"


class PlanFormat(enum.StrEnum):
    """How a plan is told. ``github`` is the job matrix of a workflow."""

    TABLE = "table"
    JSON = "json"
    GITHUB = "github"


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("plan")(plan_command)
    app.command("run")(run_command)


def plan_command(
    *,
    models: Models = None,
    suite: Suite = None,
    targets: Targets = None,
    architectures: Architectures = None,
    size: Annotated[Size | None, typer.Option("--size", help="tiny or full; overrides the suite's size.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every model, in every size.")] = False,
    timing: Timing = None,
    isolation: Annotated[
        Isolation, typer.Option("--isolation", help="How targets are isolated from their machines.")
    ] = Isolation.CONTAINER,
    output_dir: Output = DEFAULT_OUTPUT,
    matrix: Matrix = Path("matrix.yaml"),
    output: Annotated[PlanFormat, typer.Option("--format", help="A table, the complete plan, or a job matrix.")] = PlanFormat.TABLE,
) -> None:
    """Plan a run without executing anything. ``hwmatrix run`` executes the plan elsewhere, target by target.

    Whether a target is available is determined where it runs. Examples:

        hwmatrix plan --suite smoke

        hwmatrix plan --targets cpu cuda --format github
    """
    loaded = load(matrix)
    given = outside()
    chosen = select(
        loaded,
        models=models or (),
        suite=suite,
        targets=targets or (),
        architectures=architectures or (),
        size=size,
        everything=everything,
        timing=timing,
        cache=given.cache,
        say=functools.partial(typer.echo, err=True),
    )
    check_selection(loaded, chosen)
    now = dt.datetime.now(dt.UTC)
    facts = RunFacts(
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        created_at=utc_now(),
        command=given.command,
        hwmatrix_version=hwmatrix.__version__,
        commit=commit_of(loaded.path.absolute().parent),
        isolation=isolation,
    )
    folder = RunFolder.create(output_dir.absolute(), make_plan(loaded, chosen, facts))
    _tell(folder, loaded, output)


def run_command(
    plan: Annotated[Path, typer.Argument(help="A plan.json, or the folder of a run that contains one.", metavar="PLAN")],
    *,
    targets: Annotated[list[str], typer.Option("--targets", help="Targets of the plan to run here.", metavar="T ...")],
    output_dir: Output = DEFAULT_OUTPUT,
    matrix: Matrix = Path("matrix.yaml"),
    base_image: BaseImage = None,
    verbose: Verbose = False,
) -> None:
    """Run some targets of a plan on this machine. This writes shards but no reports; merge them with ``hwmatrix merge``.

    An unavailable target writes a shard that says why; this counts as a result. Examples:

        hwmatrix run reports/latest/runs/20261120T072723Z-42934e --targets cuda
    """
    loaded = load(matrix)
    given = outside()
    whole = _read(plan)
    _check(whole, loaded, targets)
    with progress(verbose=verbose) as view:
        workshop = workshop_of(loaded, given, base_image, view)
        native = all(loaded.spec.targets[name].native for name in targets)
        place = choose(Isolation.VENV if native and whole.isolation is Isolation.CONTAINER else whole.isolation, workshop)
        mine = fetch_weights(restrict(whole, targets, place), workshop.cache_dir)
        folder = RunFolder.create(output_dir.absolute(), mine)
        claim(folder)
        try:
            for target in mine.targets:
                if target.unavailable is not None:
                    view.say(f"{target.name}: unavailable: {target.unavailable}")
                    cells = tuple(cell for cell in mine.cells if cell.target == target.name)
                    told, unavailable = target.unavailable, Status.UNAVAILABLE
                    infrastructure.record(
                        folder.shards, mine, target.name, cells, error_type=_UNAVAILABLE, message=told, status=unavailable
                    )
            here = tuple(target.name for target in mine.targets if target.unavailable is None)
            if here:
                run(order_of(loaded, folder, place, workshop, 1), view).raise_first()
        except KeyboardInterrupt:
            folder.salvage()
            raise
        finally:
            release(folder)
        view.say(f"shards lie in {folder.shards}")


def restrict(plan: Plan, targets: Sequence[str], place: Place) -> Plan:
    """The part of a plan that is about some targets, with what this machine says of them."""
    kept = tuple(
        dataclasses.replace(target, unavailable=place.unavailable(target.name)) for target in plan.targets if target.name in targets
    )
    cells = tuple(cell for cell in plan.cells if cell.target in targets)
    if not cells:
        raise NothingSelectedError("the plan has no cell on these targets", advice="Name other --targets.")
    return dataclasses.replace(plan, targets=kept, cells=cells)


def jobs(plan: Plan, loaded: LoadedMatrix) -> dict[str, Any]:
    """The plan as job matrices: one job a target, on the runners that it needs. ``hosted`` and ``own`` are the parts of ``include``.

    ``images`` are those of hosted targets that a release builds anew and pushes, if the repository names a registry.
    """
    github = loaded.spec.github
    include = []
    for target in plan.targets:
        spec = loaded.spec.targets[target.name]
        labels = spec.runs_on or github.runs_on
        include.append(
            {
                "target": target.name,
                "runs_on": list(labels),
                "hosted": len(labels) == 1 and re.fullmatch(HOSTED_PATTERN, labels[0]) is not None,
                "cells": sum(cell.target == target.name for cell in plan.cells),
                "timeout_minutes": github.timeout_minutes,
            }
        )
    parts = {name: [job for job in include if job["hosted"] is hosted] for name, hosted in (("hosted", True), ("own", False))}
    images = [{"target": name} for name in pushable(loaded, [str(job["target"]) for job in parts["hosted"]])]
    return {"run_id": plan.run_id, "include": include, "images": images, **parts}


def _step_outputs(plan: Plan, loaded: LoadedMatrix, path: Path) -> None:
    """The job matrices as outputs of a workflow's step; one without jobs is empty, since GitHub takes no empty matrix."""
    told = jobs(plan, loaded)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"run-id={plan.run_id}\n")
        for name in ("hosted", "images", "own"):
            file.write(f"{name}={json.dumps({'include': told[name]}) if told[name] else ''}\n")


def _read(place: Path) -> Plan:
    path = place / "plan.json" if place.is_dir() else place
    try:
        return plan_from_json(path.read_bytes(), where=str(path))
    except OSError as error:
        raise ConfigError([Problem(where=str(path), what=f"cannot be read: {error}", hint="name what hwmatrix plan wrote")]) from error


def _check(plan: Plan, loaded: LoadedMatrix, targets: Sequence[str]) -> None:
    """Refuse targets that the plan has not, and a plan that was made from another matrix.yaml or by another version.

    Raises:
        ConfigError: for each of them.
    """
    known = [target.name for target in plan.targets]
    problems = [
        Problem(where="--targets", what=f"the plan has no target {name!r}", hint=near_miss(name, known))
        for name in targets
        if name not in known
    ]
    if plan.matrix_sha256 != loaded.sha256:
        hint = "check out the commit that the plan was made from"
        problems.append(Problem(where=str(loaded.path), what="it is not the one that the plan was made from", hint=hint))
    if plan.hwmatrix_version != hwmatrix.__version__:
        what = f"the plan was made by hwmatrix {plan.hwmatrix_version}, this is {hwmatrix.__version__}"
        problems.append(Problem(where="PLAN", what=what, hint="use the same version everywhere"))
    if problems:
        raise ConfigError(problems)


def _tell(folder: RunFolder, loaded: LoadedMatrix, output: PlanFormat) -> None:
    plan = folder.plan()
    if output is PlanFormat.JSON:
        typer.echo((folder.path / "plan.json").read_text(encoding="utf-8"), nl=False)
    elif output is PlanFormat.GITHUB:
        typer.echo(json.dumps(jobs(plan, loaded)))
        if (outputs := os.environ.get("GITHUB_OUTPUT")) is not None:
            _step_outputs(plan, loaded, Path(outputs))
    else:
        rows = [(job["target"], str(job["cells"]), ", ".join(job["runs_on"])) for job in jobs(plan, loaded)["include"]]
        print_table(("target", "cells", "runs on"), rows)
        typer.echo(f"{len(plan.cells)} cells, {len(plan.models)} models; the plan lies in {folder.path}")
