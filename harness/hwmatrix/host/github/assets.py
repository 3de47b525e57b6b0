"""The files of a release: reports, the database, archives of pictures, and checksums."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from hwmatrix.basics.files import sha256_of
from hwmatrix.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

SUMS: Final = "SHA256SUMS"
REQUIRED: Final = ("matrix.md", "matrix.json", "errors.md", "errors.json", "summary.md", "matrix.duckdb")
OPTIONAL: Final = ("index.html", "expected.md", "expected.json", "ops.md", "ops.json")
FOLDERS: Final = ("plots", "badges")


def make_assets(reports: Path, folder: Path) -> tuple[str, ...]:
    """Copy the files of a release from a folder of reports into a new folder, with the checksums of all. Return their names.

    A release has no folders, so plots and badges become archives.

    Raises:
        StoreError: a report that every run has is missing, or a file cannot be read or written.
    """
    lacking = [name for name in REQUIRED if not (reports / name).is_file()]
    if lacking:
        raise StoreError(f"{reports}: no {', '.join(lacking)}", advice="hwmatrix merge, then hwmatrix report write them.")
    try:
        folder.mkdir(parents=True)
        names = [name for name in (*REQUIRED, *OPTIONAL) if (reports / name).is_file()]
        for name in names:
            shutil.copyfile(reports / name, folder / name)
        for name in FOLDERS:
            if any((reports / name).glob("*")):
                shutil.make_archive(str(folder / name), "gztar", root_dir=reports, base_dir=name)
                names.append(f"{name}.tar.gz")
        (folder / SUMS).write_text("".join(f"{sha256_of(folder / name)}  {name}\n" for name in names), encoding="ascii")
    except OSError as error:
        raise StoreError(f"{folder}: the assets cannot be written: {error}", advice="Name a new folder on a disk with space.") from error
    return (*names, SUMS)
