"""``hwmatrix run``: execute some targets of a plan that was made elsewhere."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import hwmatrix
from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import check_cores, run_part, workshop_of
from hwmatrix.basics.near_miss import near_miss
from hwmatrix.cli.options import DEFAULT_OUTPUT, BaseImage, Matrix, Output, Verbose, progress
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.matrix.load import load
from hwmatrix.records import Plan, plan_from_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.matrix.load import LoadedMatrix


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("run")(run_command)


def run_command(
    plan: Annotated[Path, typer.Argument(help="A plan.json, or the folder of a run that contains one.", metavar="PLAN")],
    *,
    targets: Annotated[list[str], typer.Option("--targets", help="Targets of the plan to run here.", metavar="T ...")],
    bundles: Annotated[
        Path | None, typer.Option("--bundles", help="Use the bundles in this archive by hwmatrix bundles.", metavar="FILE")
    ] = None,
    output_dir: Output = DEFAULT_OUTPUT,
    matrix: Matrix = Path("matrix.yaml"),
    base_image: BaseImage = None,
    verbose: Verbose = False,
) -> None:
    """Run some targets of a plan on this machine. This writes shards but no reports; merge them with ``hwmatrix merge``.

    For a target that is not available here, the shard contains the reason: that is a result, too. Example:

        hwmatrix run reports/latest/runs/20261120T072723Z-42934e --targets cuda

        hwmatrix run planned/runs/20261120T072723Z-42934e --targets cuda --bundles bundles.tar
    """
    loaded, environment, whole = load(matrix), read_environment(), read_planned(plan)
    check_planned(whole, loaded, targets)
    check_cores(dataclasses.replace(whole, cells=tuple(cell for cell in whole.cells if cell.target in targets)))
    with progress(verbose=verbose) as view:
        workshop = workshop_of(loaded, environment, base_image, view)
        folder = run_part(whole, targets, loaded, workshop, output=output_dir.absolute(), view=view, bundles=bundles)
        view.say(f"shards are in {folder.shards}")


def read_planned(place: Path) -> Plan:
    """Read a plan by hwmatrix plan: its file, or the folder of its run.

    Raises:
        ConfigError: there is none.
    """
    path = place / "plan.json" if place.is_dir() else place
    try:
        return plan_from_json(path.read_bytes(), where=str(path))
    except OSError as error:
        raise ConfigError([Problem(where=str(path), what=f"cannot be read: {error}", hint="name a plan by hwmatrix plan")]) from error


def check_planned(plan: Plan, loaded: LoadedMatrix, targets: Sequence[str] = ()) -> None:
    """Check that the plan has the targets, and was made from this matrix.yaml and by this version.

    Raises:
        ConfigError: lists every problem.
    """
    known = [target.name for target in plan.targets]
    problems = [
        Problem(where="--targets", what=f"the plan has no target {name!r}", hint=near_miss(name, known))
        for name in targets
        if name not in known
    ]
    if plan.matrix_sha256 != loaded.sha256:
        hint = "check out the commit that the plan was made from"
        problems.append(Problem(where=str(loaded.path), what="it differs from the one that the plan was made from", hint=hint))
    if plan.hwmatrix_version != hwmatrix.__version__:
        what = f"the plan was made by hwmatrix {plan.hwmatrix_version}, this is {hwmatrix.__version__}"
        problems.append(Problem(where="PLAN", what=what, hint="use the same version everywhere"))
    if problems:
        raise ConfigError(problems)
