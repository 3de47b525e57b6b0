"""Files that travel between the machines of a cluster: a project's inputs, and archives of bundles that are fetched by their content."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import mmap
import os
import pickle
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.cache_folder import needed_cache_folder
from hwmatrix.basics.files import sha256_of
from hwmatrix.errors import StoreError
from hwmatrix.matrix.shipped import IMAGES, MATRIX_FILE, image_files

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER: Final = "cluster"
_RUNS: Final = "runs"
_ARCHIVES: Final = "archives"
_PROJECTS: Final = "projects"
_NEVER_PICKLED: Final = 4
"""Pickle protocols up to this one copy a file's bytes twice: Dask uses protocol 5."""


def folder_of(cache: Path, run_id: str | None = None) -> Path:
    """Return the folder of what a cluster stores in a member's cache, or of one run. It can be deleted while no run is going on."""
    return cache / _FOLDER / _RUNS / run_id if run_id is not None else cache / _FOLDER


@dataclasses.dataclass(frozen=True, kw_only=True)
class Project:
    """The inputs of a run that are not in its plan: matrix.yaml and the folders of images, by their paths."""

    files: dict[str, bytes]

    @classmethod
    def of(cls, matrix: Path) -> Project:
        """Read a project: a matrix.yaml, and the images that its targets are built from.

        Raises:
            StoreError: a file cannot be read.
        """
        places = {MATRIX_FILE: matrix}
        for name, place in image_files(matrix.absolute().parent).items():
            within = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
            places |= {str(PurePosixPath(IMAGES, name, path.relative_to(place))): path for path in within}
        try:
            return cls(files={name: path.read_bytes() for name, path in places.items()})
        except OSError as error:
            raise StoreError(f"{error.filename}: cannot be read: {error}", advice="Make it readable, then run again.") from error

    @property
    def digest(self) -> str:
        """The SHA-256 of all names and contents."""
        digest = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()

    def unpacked(self, cache: Path) -> Path:
        """Return a folder in the cache with these files, which is written once for all parts.

        Raises:
            StoreError: a path leaves the folder, or the folder cannot be written.
        """
        place = folder_of(cache) / _PROJECTS / self.digest
        for name in self.files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise StoreError(f"{name!r} is not a path within a project", advice="This is a bug of hwmatrix.")
        with _writing(place), _alone(place):
            if not place.is_dir():
                with tempfile.TemporaryDirectory(dir=place.parent) as temporary:
                    for name, content in self.files.items():
                        file = Path(temporary) / "project" / name
                        file.parent.mkdir(parents=True, exist_ok=True)
                        file.write_bytes(content)
                    (Path(temporary) / "project").replace(place)
        return place


class Archive:
    """A file of a run, named by its SHA-256, of which every member that needs it keeps a copy until the run ends.

    To send one over the network is to pickle it: the receiver stores the bytes in its own cache, and refuses them if their sum is another.
    """

    def __init__(self, run_id: str, digest: str, cache: Path) -> None:
        self.run_id = run_id
        self.digest = digest
        self.path = folder_of(cache, run_id) / _ARCHIVES / f"{digest}.tar"

    @classmethod
    def keep(cls, run_id: str, file: Path, cache: Path) -> Archive:
        """Move a finished file into the cache.

        Raises:
            StoreError: the cache cannot be written.
        """
        kept = cls(run_id, sha256_of(file), cache)
        with _writing(kept.path):
            kept.path.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(file, kept.path)
        return kept

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Send the bytes: as a buffer that is read from the disk while it is sent, not copied first."""
        with self.path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        data = pickle.PickleBuffer(content) if int(protocol) > _NEVER_PICKLED else bytes(content)
        return _received, (self.run_id, self.digest, data)


def _received(run_id: str, digest: str, data: bytes | bytearray | memoryview) -> Archive:
    """Store an archive that another member sent.

    Raises:
        StoreError: the bytes have another sum, or the cache cannot be written.
    """
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise StoreError(f"the archive {digest} arrived as {found}", advice="Run again: nothing of it was used.")
    archive = Archive(run_id, digest, needed_cache_folder(os.environ))
    with _writing(archive.path):
        archive.path.parent.mkdir(parents=True, exist_ok=True)
        if not archive.path.exists():
            with tempfile.NamedTemporaryFile(dir=archive.path.parent, prefix=".", delete=False) as file:
                try:
                    file.write(data)
                    file.flush()
                    Path(file.name).replace(archive.path)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
    return archive


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Wait until no other worker of this machine makes the same folder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _writing(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{place}: cannot be written: {error}", advice="Free disk space there, or set another HWMATRIX_CACHE.") from error
