"""The packaged matrix.yaml and images/, from the wheel or from the checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import hwmatrix

MATRIX_FILE: Final = "matrix.yaml"
IMAGES: Final = "images"
CONSTRAINTS: Final = "constraints.txt"
"""The file of images/ that has every exact version."""
DATA: Final = "shipped"
"""The folder of the package that a wheel has these files in; pyproject.toml puts them there."""
_PACKAGE: Final = Path(hwmatrix.__file__).resolve().parent


def shipped_root() -> Path:
    """The folder that has the default matrix.yaml and images/: the checkout that this package runs from, else the package's own."""
    return harness_source() or _PACKAGE / DATA


def harness_source(project_root: Path | None = None) -> Path | None:
    """The checkout whose harness is meant: ``project_root`` if it is one, else the one that runs; None where it runs without one."""
    checkout = _PACKAGE.parents[1]
    if project_root is not None and _is_checkout(project_root):
        return project_root
    return checkout if _is_checkout(checkout) and (checkout / "harness" / "hwmatrix").resolve() == _PACKAGE else None


def image_files(project_root: Path) -> dict[str, Path]:
    """What images/ has, by name: the folder of each image, and the files of constraints.

    What lies in an images/ beside matrix.yaml takes the place of what comes with hwmatrix, entry by entry. A folder of that name without
    any Dockerfile in its folders and without constraints holds something else, such as pictures, and is not looked into.
    """
    return _entries(shipped_root() / IMAGES) | _entries(project_root / IMAGES)


def _entries(folder: Path) -> dict[str, Path]:
    if not any(folder.glob("*/Dockerfile")) and not any(folder.glob("constraints*.txt")):
        return {}
    return {entry.name: entry for entry in sorted(folder.iterdir())}


def _is_checkout(folder: Path) -> bool:
    return (folder / "pyproject.toml").is_file() and (folder / "harness" / "hwmatrix" / "__init__.py").is_file()
