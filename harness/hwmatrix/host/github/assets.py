"""The files of a release: reports, the database, archives of pictures, and checksums."""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assets:
    """The names of a release's files, and the optional files that were missing."""

    names: tuple[str, ...]
    missing: tuple[str, ...]


def make_assets(reports: Path, folder: Path) -> Assets:
    """Copy the files of a release from a folder of reports into a new folder, and write the checksums of all.

    A release has no folders, so plots and badges become archives.

    Raises:
        StoreError: a report that every run has is missing, or a file cannot be read or written.
    """
    lacking = [name for name in REQUIRED if not (reports / name).is_file()]
    if lacking:
        raise StoreError(f"{reports}: no {', '.join(lacking)}", advice="hwmatrix merge, then hwmatrix report write them.")
    try:
        folder.mkdir(parents=True)
        names = [*REQUIRED, *(name for name in OPTIONAL if (reports / name).is_file())]
        for name in names:
            shutil.copyfile(reports / name, folder / name)
        for name in FOLDERS:
            if any((reports / name).glob("*")):
                shutil.make_archive(str(folder / name), "gztar", root_dir=reports, base_dir=name)
                names.append(f"{name}.tar.gz")
        sums = "".join(f"{sha256_of(folder / name)}  {name}\n" for name in names)
        (folder / SUMS).write_text(sums, encoding="ascii")
    except FileExistsError as error:
        raise StoreError(
            f"{folder}: it already exists", advice="Use a new folder, because old assets must not be mixed with new ones."
        ) from error
    except OSError as error:
        raise StoreError(f"{folder}: the assets cannot be written: {error}", advice="Free space, or name another folder.") from error
    missing = (*(name for name in OPTIONAL if name not in names), *(name for name in FOLDERS if f"{name}.tar.gz" not in names))
    return Assets(names=(*names, SUMS), missing=missing)
