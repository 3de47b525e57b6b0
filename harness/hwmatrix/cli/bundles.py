"""``hwmatrix bundles``: make the bundles of a plan once, for all machines that run its targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import pack_bundles, workshop_of
from hwmatrix.basics.text import plural
from hwmatrix.cli.options import DEFAULT_OUTPUT, BaseImage, Matrix, Output, Verbose, progress
from hwmatrix.cli.run import check_planned, read_planned
from hwmatrix.matrix.load import load


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("bundles")(bundles_command)


def bundles_command(
    plan: Annotated[Path, typer.Argument(help="A plan.json, or the folder of a run that contains one.", metavar="PLAN")],
    archive: Annotated[Path, typer.Argument(help="The archive to write.", metavar="FILE")],
    *,
    output_dir: Output = DEFAULT_OUTPUT,
    matrix: Matrix = Path("matrix.yaml"),
    base_image: BaseImage = None,
    verbose: Verbose = False,
) -> None:
    """Make the bundles of a plan and the ONNX exports that its targets need, and pack them into one archive.

    With it, ``hwmatrix run --bundles`` tests the same weights on every machine, and needs no reference image. Example:

        hwmatrix bundles planned/runs/20261120T072723Z-42934e bundles.tar
    """
    loaded, environment, whole = load(matrix), read_environment(), read_planned(plan)
    check_planned(whole, loaded)
    with progress(verbose=verbose) as view:
        workshop = workshop_of(loaded, environment, base_image, view)
        count = pack_bundles(whole, archive, loaded, workshop, output=output_dir.absolute(), view=view)
        view.say(f"wrote {archive} with {plural(count, 'bundle')}")
