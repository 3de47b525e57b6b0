"""The packaged matrix.yaml and images/, from the wheel or from the checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import hwmatrix

MATRIX_FILE: Final = "matrix.yaml"
IMAGES: Final = "images"
CONSTRAINTS: Final = "constraints.txt"
"""The file in images/ with all exact versions."""
DATA: Final = "shipped"
"""The folder of the package in which a wheel has these files. pyproject.toml puts them there."""
_PACKAGE: Final = Path(hwmatrix.__file__).resolve().parent


def shipped_root() -> Path:
    """Return the folder with the default matrix.yaml and images/: the checkout that this package runs from, or else the package's own."""
    return harness_source() or _PACKAGE / DATA


def harness_source(project_root: Path | None = None) -> Path | None:
    """Return ``project_root`` if it is a checkout, or else the checkout of the running package; None if there is none."""
    checkout = _PACKAGE.parents[1]
    if project_root is not None and _is_checkout(project_root):
        return project_root
    return checkout if _is_checkout(checkout) and (checkout / "harness" / "hwmatrix").resolve() == _PACKAGE else None


def image_files(project_root: Path) -> dict[str, Path]:
    """Return the entries of images/ by name: the folder of each image, and the constraints files.

    An images/ folder beside matrix.yaml overrides the one that comes with hwmatrix, entry by entry. It is ignored if it has neither a
    Dockerfile in its subfolders nor constraints files, because then it contains something else, such as pictures.
    """
    return _entries(shipped_root() / IMAGES) | _entries(project_root / IMAGES)


def _entries(folder: Path) -> dict[str, Path]:
    if not any(folder.glob("*/Dockerfile")) and not any(folder.glob("constraints*.txt")):
        return {}
    return {entry.name: entry for entry in sorted(folder.iterdir())}


def _is_checkout(folder: Path) -> bool:
    return (folder / "pyproject.toml").is_file() and (folder / "harness" / "hwmatrix" / "__init__.py").is_file()
