"""Recorded measurements and their sources: the one place that decides which measurements an answer uses.

If a database is named, only that one is used. Otherwise each cell comes from the first source that has it: reports/latest of the working
folder, the published results of the working folder, and the packaged snapshot.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pydantic
from pydantic.dataclasses import dataclass

from hwmatrix import __version__
from hwmatrix.basics.text import plural
from hwmatrix.knowledge.evidence import Evidence, newest, read_evidence, with_peaks
from hwmatrix.knowledge.snapshot import Executed, Snapshot, cell_key, checksum, collect, executed_in, read
from hwmatrix.records import Backend, Size
from hwmatrix.store.reading import DATABASE, database_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hwmatrix.records import ModelPlan

LATEST: Final = Path("reports/latest")
PUBLISHED: Final = Path("reports/published")
SNAPSHOT: Final = Path(str(importlib.resources.files("hwmatrix.knowledge") / "published.json.gz"))
"""The packaged snapshot, made from the databases that hwmatrix's own repository publishes."""


class Place(enum.StrEnum):
    """Kinds of sources, in order of precedence."""

    NAMED = "named"
    LATEST = "latest"
    PUBLISHED = "published"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, kw_only=True, config=pydantic.ConfigDict(extra="forbid"))
class Measurements:
    """One source of measurements: where it is, how many cells, executed when, and with which versions of which packages."""

    place: str
    where: str
    cells: int
    first: str | None
    last: str | None
    versions: dict[str, list[str]]

    def __str__(self) -> str:
        """In words: ``reports/latest/matrix.duckdb: 27 cells, executed 2026-11-20, with torch 2.13.0``."""
        if self.first is None or self.last is None:
            return f"{self.where}: no cell was executed"
        days = dict.fromkeys((self.first[:10], self.last[:10]))
        packages = ", ".join(f"{package} {' and '.join(versions)}" for package, versions in self.versions.items())
        return f"{self.where}: {plural(self.cells, 'cell')}, executed {' to '.join(days)}, with {packages}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The measurements of one source: the cells, and those with a peak of memory."""

    place: Place
    measurements: Measurements
    evidence: tuple[Evidence, ...]
    memory: tuple[Evidence, ...]

    def __str__(self) -> str:
        """The source in one line, for people."""
        return str(self.measurements)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnRecord:
    """The joined measurements of all sources: each cell from the first source that has it."""

    sources: tuple[Source, ...]
    evidence: tuple[Evidence, ...]
    memory: tuple[Evidence, ...]

    @property
    def own(self) -> tuple[Evidence, ...]:
        """The cells of the named database or of the working folder's own runs, without the published ones."""
        return tuple(record for source in self.sources if source.place in {Place.NAMED, Place.LATEST} for record in source.evidence)

    @property
    def own_memory(self) -> tuple[Evidence, ...]:
        """The peaks of :attr:`own`."""
        return tuple(cell for source in self.sources if source.place in {Place.NAMED, Place.LATEST} for cell in source.memory)

    def generates(self, plan: ModelPlan | None, model_name: str) -> bool:
        """Whether a model generated text somewhere, or was tried to."""
        return any(record.is_same_model(plan, model_name) for record in self._generating)

    @functools.cached_property
    def _generating(self) -> tuple[Evidence, ...]:
        return tuple(record for record in self.evidence if record.new_tokens)

    @functools.cached_property
    def _by_hardware(self) -> dict[Backend, tuple[Evidence, ...]]:
        return {backend: tuple(record for record in self.evidence if record.backend is backend) for backend in Backend}

    def on(self, hardware: Backend) -> tuple[Evidence, ...]:
        """The records of one kind of hardware."""
        return self._by_hardware[hardware]

    def answer(self) -> list[dict[str, Any]]:
        """The sources as plain data, in order of precedence."""
        return [dataclasses.asdict(source.measurements) for source in self.sources]


NOTHING: Final = OnRecord(sources=(), evidence=(), memory=())
"""No measurements."""


def on_record(named: Path | None = None, *, latest: Path = LATEST) -> OnRecord:
    """The measurements that answers are based on.

    Args:
        named: a merged database, or a folder of reports with one: the only source. None: the default sources.
        latest: the folder of the latest reports.

    The result is cached until one of the files changes.

    Raises:
        StoreError: the named database is missing, or an existing one cannot be read.
    """
    files = _files(named, latest)
    return _cached_sources(tuple(files.items()), tuple(state_of(path) for paths in files.values() for path in paths))


def published_databases(folder: Path) -> dict[str, Path]:
    """The databases of a folder of published results, by relative path: its own one, or that of each publication."""
    if (folder / DATABASE).is_file():
        return {DATABASE: folder / DATABASE}
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.glob(f"*/{DATABASE}"))}


def in_step(databases: Mapping[str, Path], snapshot: Snapshot) -> bool:
    """Whether a snapshot was made from exactly these databases."""
    if databases.keys() != snapshot.made_of.keys():
        return False
    return all(checksum(path) == snapshot.made_of[at] for at, path in databases.items())


def _files(named: Path | None, latest: Path) -> dict[Place, tuple[Path, ...]]:
    """The files of each kind of source that has any, in order of precedence."""
    if named is not None:
        return {Place.NAMED: (database_at(named).absolute(),)}
    own = latest.absolute() / DATABASE
    found = {
        Place.LATEST: (own,) if own.is_file() else (),
        Place.PUBLISHED: tuple(published_databases(PUBLISHED.absolute()).values()),
        Place.SNAPSHOT: (SNAPSHOT,),
    }
    return {place: paths for place, paths in found.items() if paths}


def state_of(path: Path) -> tuple[int, int]:
    """A fingerprint of a file for caching. A missing file gets a constant one: reading it later raises the error."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


@functools.lru_cache(maxsize=8)
def _cached_sources(
    files: tuple[tuple[Place, tuple[Path, ...]], ...],
    state: tuple[tuple[int, int], ...],  # noqa: ARG001 - a changed file is read again
) -> OnRecord:
    """Read the sources, cached. If the snapshot matches the published results, it is read instead, which is faster."""
    sources: list[Source] = []
    for place, paths in files:
        if place is Place.PUBLISHED:
            databases, shipped = published_databases(PUBLISHED.absolute()), read(SNAPSHOT)
            same = in_step(databases, shipped)
            sources.append(_of_cells(shipped if same else collect(databases), place, str(PUBLISHED)))
            if same:
                break
        elif place is Place.SNAPSHOT:
            sources.append(_of_cells(read(SNAPSHOT), place, f"the results that are published with hwmatrix {__version__}"))
        else:
            sources.append(_of_database(paths[0], place))
    used = [source for source in sources if source.evidence or source.place is Place.NAMED]
    evidence, memory = _first([source.evidence for source in used]), _first([source.memory for source in used])
    return OnRecord(sources=tuple(used), evidence=evidence, memory=memory)


def _first(sources: Iterable[tuple[Evidence, ...]]) -> tuple[Evidence, ...]:
    """Every cell, with the records of the first source that has it."""
    joined: list[Evidence] = []
    known: set[tuple[object, ...]] = set()
    for records in sources:
        new = [record for record in records if cell_key(record) not in known]
        joined += new
        known |= {cell_key(record) for record in new}
    return tuple(joined)


def _of_cells(cells: Snapshot, place: Place, where: str) -> Source:
    """Published cells. Peaks of tiny models say nothing about the real model of that name."""
    memory = with_peaks(record for record in cells.cells if record.size is Size.FULL)
    return _source(place, where, cells.cells, memory, cells.executed)


def _of_database(path: Path, place: Place) -> Source:
    executions = read_evidence(path)
    return _source(place, _relative_to_here(path), newest(executions), with_peaks(executions), executed_in([path]))


def _source(place: Place, where: str, evidence: tuple[Evidence, ...], memory: tuple[Evidence, ...], executed: Executed) -> Source:
    cells = len({record.cell for record in evidence if record.level is not None})
    measurements = Measurements(place=place.value, where=where, cells=cells, **dataclasses.asdict(executed))
    return Source(place=place, measurements=measurements, evidence=evidence, memory=memory)


def _relative_to_here(path: Path) -> str:
    """A path, relative to the working folder if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
