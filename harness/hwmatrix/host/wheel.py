"""The harness as a reproducible wheel: equal files give equal bytes, so an image's last layer is rebuilt only after a change."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import hwmatrix
from hwmatrix.errors import ImageBuildError
from hwmatrix.matrix.shipped import DATA, harness_source

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGE: Final = "hwmatrix"
_UNUSED: Final = f"{_PACKAGE}/{DATA}/"
"""Files that no image needs. A change of matrix.yaml or of another target's Dockerfile must not change an image."""
_RECORD: Final = "RECORD"
_OF_INSTALLERS: Final = (_RECORD, "INSTALLER", "REQUESTED", "direct_url.json")
"""Files of metadata that installers write, and no wheel has."""
_TIME: Final = (2020, 2, 2, 0, 0, 0)
_MODE: Final = 0o100644


def build_wheel(project_root: Path, folder: Path, *, whole: bool = False) -> Path:
    """Write the wheel of the harness into ``folder``, and return its path.

    The harness is that of ``project_root`` if this is a checkout, otherwise the running one: from its checkout, or, if it was installed
    without one, the files that run. Only a ``whole`` wheel has the default matrix.yaml and images/.

    Raises:
        ImageBuildError: hatchling is missing or cannot build the checkout, or the harness runs without being installed.
    """
    source = harness_source(project_root)
    folder.mkdir(parents=True, exist_ok=True)
    return _write(_of_checkout(source) if source else _of_installation(), folder, unused=() if whole else (_UNUSED,))


def _of_checkout(root: Path) -> dict[str, bytes]:
    """The files of the wheel that hatchling builds. A PEP 517 build would need a separate process and downloads."""
    command = ("hatchling", "build", "--target", "wheel")
    what = "the harness's wheel cannot be built"
    try:
        from hatchling.builders.wheel import WheelBuilder
    except ImportError as error:
        advice = "pip install 'hwmatrix[host]'"
        raise ImageBuildError(what, command=command, code=None, output=str(error), advice=advice) from error
    with tempfile.TemporaryDirectory(prefix="hwmatrix-harness-") as folder:
        try:
            built = list(WheelBuilder(str(root)).build(directory=folder, versions=["standard"]))
        except (OSError, ValueError, TypeError) as error:  # raised by hatchling if it cannot read the project
            advice = "Fix pyproject.toml or the files that it names."
            raise ImageBuildError(what, command=command, code=None, output=str(error), advice=advice) from error
        with zipfile.ZipFile(built[0]) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def _of_installation() -> dict[str, bytes]:
    """The files of the running package, and the metadata of its installation."""
    package = Path(hwmatrix.__file__).resolve().parent
    try:
        installed = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        what, advice = "the running harness cannot be packed for images", "Run a checkout, or install it: pip install 'hwmatrix[host]'."
        raise ImageBuildError(what, command=(_PACKAGE,), code=None, output=f"{package} is not installed", advice=advice) from error
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    metadata = [path for path in installed.files or () if path.parts[0].endswith(".dist-info") and path.name not in _OF_INSTALLERS]
    return {
        **{path.relative_to(package.parent).as_posix(): path.read_bytes() for path in files},
        **{path.as_posix(): path.read_binary() for path in metadata},
    }


def _write(files: Mapping[str, bytes], folder: Path, unused: tuple[str, ...] = (_UNUSED,)) -> Path:
    """Write a wheel of these files but the ``unused`` folders, with a new RECORD, in order and with a fixed time."""
    kept = {name: data for name, data in files.items() if not name.startswith(unused) and PurePosixPath(name).name != _RECORD}
    (metadata,) = {name.partition("/")[0] for name in kept if name.endswith(".dist-info/METADATA")}
    record, of_metadata = f"{metadata}/{_RECORD}", {name for name in kept if name.startswith(metadata)}
    path = folder / f"{metadata.removesuffix('.dist-info')}-py3-none-any.whl"
    ordered = [*sorted(kept.keys() - of_metadata), *sorted(of_metadata)]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in [*((name, kept[name]) for name in ordered), (record, _record(kept, ordered, record))]:
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr, entry.compress_type = _MODE << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return path


def _record(files: Mapping[str, bytes], ordered: list[str], record: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerows((name, f"sha256={_digest(files[name])}", len(files[name])) for name in ordered)
    rows.writerow((record, "", ""))
    return text.getvalue().encode()


def _digest(data: bytes) -> str:
    """SHA-256 in the format of a RECORD."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
