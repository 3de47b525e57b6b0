"""Folders for temporary files that name their process, so that a later one can remove what a killed process left."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hwmatrix.basics.processes import living, own_mark


def make_folder(prefix: str) -> Path:
    """Make an empty folder for temporary files of this process. Its name begins with ``prefix`` and says whose it is.

    Raises:
        OSError: the disk is full, or this process may not write there.
    """
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{own_mark().replace(':', '-')}-"))


def remove_leftovers(prefix: str) -> None:
    """Remove the folders that :func:`make_folder` made with this prefix in processes that have ended since."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*-*"):
        owner = folder.name.removeprefix(prefix).rpartition("-")[0]
        if living(owner.replace("-", ":")) is None:
            shutil.rmtree(folder, ignore_errors=True)
