"""The harness as a wheel: equal sources give equal bytes, so that an image's last layer is rebuilt only for a reason."""

from __future__ import annotations

from pathlib import Path

from hwmatrix.errors import ImageBuildError


def build_wheel(project_root: Path, folder: Path) -> Path:
    """Build the wheel of the project at ``project_root`` into ``folder``, and return its path.

    hatchling gives every file of a wheel one fixed time (PEP 517 builds would start a process and download for it).

    Raises:
        ImageBuildError: hatchling is missing, or cannot build the project.
    """
    command = ("hatchling", "build", "--target", "wheel")
    try:
        from hatchling.builders.wheel import WheelBuilder  # noqa: PLC0415 - only where images are built
    except ImportError as error:
        advice = "pip install 'hwmatrix[host]'"
        raise ImageBuildError(
            "the harness's wheel cannot be built", command=command, code=None, output=str(error), advice=advice
        ) from error
    try:
        built = list(WheelBuilder(str(project_root)).build(directory=str(folder), versions=["standard"]))
    except (OSError, ValueError, TypeError) as error:  # what hatchling raises for a project that it cannot read
        advice = "Mend pyproject.toml or the files that it names."
        raise ImageBuildError(
            "the harness's wheel cannot be built", command=command, code=None, output=str(error), advice=advice
        ) from error
    return Path(built[0])
