"""``hwmatrix detect``: the hardware of this machine, or what every target's image sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import workshop_of
from hwmatrix.app.survey import SurveyRequest, survey_images
from hwmatrix.cli.options import (
    DEFAULT_OUTPUT,
    BaseImage,
    Format,
    FormatOption,
    Images,
    Isolating,
    IsolationChoice,
    Matrix,
    Output,
    Targets,
    Verbose,
    progress,
)
from hwmatrix.cli.tables import facts, print_table
from hwmatrix.cli.terminal import echo
from hwmatrix.hardware.detector import detect_all
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import Selection
from hwmatrix.records import to_json

if TYPE_CHECKING:
    import typer


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("detect")(detect_command)


def detect_command(
    *,
    images: Images = False,
    targets: Targets = None,
    isolation: Isolating = IsolationChoice.AUTO,
    output: FormatOption = Format.TABLE,
    output_dir: Output = DEFAULT_OUTPUT,
    matrix: Matrix = Path("matrix.yaml"),
    base_image: BaseImage = None,
    verbose: Verbose = False,
) -> None:
    """Show which hardware and runtimes are available, and why others are not.

    With --images, detection runs inside every target's image, and the results are stored in shards and in the database. Examples:

        hwmatrix detect

        hwmatrix detect --images --targets cpu openvino --format json
    """
    if not images:
        print_detections(output)
        return
    environment, loaded = read_environment(), load(matrix)
    request = SurveyRequest(
        loaded=loaded, selection=Selection(targets=tuple(targets or ())), isolation=isolation.value, output=output_dir.absolute()
    )
    with progress(verbose=verbose) as view:
        survey = survey_images(request, workshop_of(loaded, environment, base_image, view), environment, view)
    _print_survey(survey.detections(), output)


def print_detections(output: Format) -> None:
    """Print the available hardware and runtimes, and why others are not available."""
    found = detect_all()
    if output is Format.JSON:
        echo(json.dumps([json.loads(to_json(detection)) for detection in found], indent=2))
        return
    rows = []
    for detection in found:
        text = facts(detection.features) if detection.available else detection.reason or ""
        rows.append((detection.hardware_type, "yes" if detection.available else "no", detection.name or "", text))
    print_table(("hardware", "here", "name", "facts"), rows)


def _print_survey(rows: list[dict[str, Any]], output: Format) -> None:
    """Print the hardware that each image detects. Missing hardware is only in JSON: every image lacks most runtimes."""
    if output is Format.JSON:
        echo(json.dumps([row | {"detected_at": row["detected_at"].isoformat()} for row in rows], indent=2))
        return
    seen = [(row["target"], row["hardware_type"], row["name"] or "", facts(row["features"])) for row in rows if row["available"]]
    print_table(("image of", "sees", "name", "facts"), seen)
