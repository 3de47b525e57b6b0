"""The inputs of a run that are not in its plan, as one archive: matrix.yaml and the folders of images."""

from __future__ import annotations

import io
import tarfile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from hwmatrix.errors import StoreError
from hwmatrix.matrix.shipped import IMAGES, MATRIX_FILE, image_files

if TYPE_CHECKING:
    from pathlib import Path


def pack(matrix: Path) -> bytes:
    """Return a matrix.yaml, and the images that its targets are built from, as a tar archive.

    Raises:
        StoreError: a file cannot be read.
    """
    content = io.BytesIO()
    try:
        with tarfile.open(fileobj=content, mode="w") as archive:
            archive.add(matrix, MATRIX_FILE)
            for name, place in image_files(matrix.absolute().parent).items():
                archive.add(place, str(PurePosixPath(IMAGES, name)))
    except OSError as error:
        raise StoreError(f"{error.filename}: cannot be read: {error}", advice="Make it readable, then run again.") from error
    return content.getvalue()


def unpack(project: bytes, folder: Path) -> None:
    """Write the files of a project into a folder.

    Raises:
        OSError: the folder cannot be written.
        tarfile.FilterError: a path leaves the folder.
    """
    with tarfile.open(fileobj=io.BytesIO(project)) as archive:
        archive.extractall(folder, filter="data")
