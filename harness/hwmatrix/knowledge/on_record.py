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
from typing import TYPE_CHECKING, Final, TypedDict

from hwmatrix import __version__
from hwmatrix.basics.text import plural
from hwmatrix.knowledge.evidence import DATABASE, Evidence, default_database, folded, read_evidence
from hwmatrix.knowledge.measured_memory import MemoryOnRecord, memory_on_record
from hwmatrix.knowledge.snapshot import FORMAT, Executed, Snapshot, checksum, collect, executed_of, read
from hwmatrix.records import Backend
from hwmatrix.store.reading import database_at, reading, records

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


class EvidenceAnswer(TypedDict):
    """A source of measurements: where it is, how many executed cells it has, when they were executed, and with which package versions."""

    place: str
    where: str
    cells: int
    first: str | None
    last: str | None
    versions: dict[str, list[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The measurements of one source: the cells, the memory peaks, and when and with which packages they were executed."""

    place: Place
    where: str
    evidence: tuple[Evidence, ...]
    memory: tuple[MemoryOnRecord, ...]
    executed: Executed

    def __str__(self) -> str:
        """The source in one line, for people."""
        return sentence(self.answer())

    def answer(self) -> EvidenceAnswer:
        """The source as plain data."""
        return EvidenceAnswer(
            place=self.place.value,
            where=self.where,
            cells=len({record.cell for record in self.evidence if record.level is not None}),
            first=self.executed.first,
            last=self.executed.last,
            versions={package: list(found) for package, found in self.executed.versions.items()},
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnRecord:
    """The joined measurements of all sources: each cell from the first source that has it."""

    sources: tuple[Source, ...]
    evidence: tuple[Evidence, ...]
    memory: tuple[MemoryOnRecord, ...]

    @property
    def own(self) -> tuple[Evidence, ...]:
        """The cells of the named database or of the working folder's own runs, without the published ones."""
        return tuple(record for source in self.sources if source.place in {Place.NAMED, Place.LATEST} for record in source.evidence)

    @property
    def own_memory(self) -> tuple[MemoryOnRecord, ...]:
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

    def answer(self) -> list[EvidenceAnswer]:
        """The sources as plain data, in order of precedence."""
        return [source.answer() for source in self.sources]


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
    return _cached_sources(tuple(files.items()), tuple(_state(path) for paths in files.values() for path in paths))


def sentence(asked: EvidenceAnswer) -> str:
    """One source of measurements in words: ``reports/latest/matrix.duckdb: 27 cells, executed 2026-11-20, with torch 2.13.0``."""
    if asked["first"] is None or asked["last"] is None:
        return f"{asked['where']}: no cell was executed"
    days = dict.fromkeys((asked["first"][:10], asked["last"][:10]))
    told = ", ".join(f"{package} {' and '.join(versions)}" for package, versions in asked["versions"].items())
    return f"{asked['where']}: {plural(asked['cells'], 'cell')}, executed {' to '.join(days)}, with {told}"


def published_databases(folder: Path) -> dict[str, Path]:
    """The databases of a folder of published results, by relative path: its own one, or that of each publication."""
    if (folder / DATABASE).is_file():
        return {DATABASE: folder / DATABASE}
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.glob(f"*/{DATABASE}"))}


def in_step(databases: Mapping[str, Path], snapshot: Snapshot) -> bool:
    """Whether a snapshot was made from exactly these databases."""
    if snapshot.format != FORMAT or databases.keys() != snapshot.made_of.keys():
        return False
    return all(checksum(path) == snapshot.made_of[at] for at, path in databases.items())


def _files(named: Path | None, latest: Path) -> dict[Place, tuple[Path, ...]]:
    """The files of each kind of source that has any, in order of precedence."""
    if named is not None:
        return {Place.NAMED: (database_at(named).absolute(),)}
    newest = default_database(latest.absolute())
    found = {
        Place.LATEST: (newest,) if newest is not None else (),
        Place.PUBLISHED: tuple(published_databases(PUBLISHED.absolute()).values()),
        Place.SNAPSHOT: (SNAPSHOT,),
    }
    return {place: paths for place, paths in found.items() if paths}


def _state(path: Path) -> tuple[int, int]:
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
            sources.append(_of_cells(shipped if same else collect(databases), place, SNAPSHOT if same else PUBLISHED, str(PUBLISHED)))
            if same:
                break
        elif place is Place.SNAPSHOT:
            sources.append(_of_cells(read(SNAPSHOT), place, SNAPSHOT, f"the results that are published with hwmatrix {__version__}"))
        else:
            sources.append(_of_database(paths[0], place))
    return _joined([source for source in sources if source.evidence or source.place is Place.NAMED])


def _joined(sources: list[Source]) -> OnRecord:
    """Every cell, with the rows of the first source that has it."""
    evidence: list[Evidence] = []
    known: set[tuple[object, ...]] = set()
    for source in sources:
        new = [record for record in source.evidence if _key(record) not in known]
        evidence += new
        known |= {_key(record) for record in new}
    return OnRecord(sources=tuple(sources), evidence=tuple(evidence), memory=tuple(_first_peaks(sources)))


def _first_peaks(sources: list[Source]) -> Iterable[MemoryOnRecord]:
    known: set[tuple[object, ...]] = set()
    for source in sources:
        new = [record for record in source.memory if _key(record) not in known]
        yield from new
        known |= {_key(record) for record in new}


def _key(record: Evidence | MemoryOnRecord) -> tuple[object, ...]:
    """The identity of a cell, regardless of the machine."""
    settings = (record.size, record.target, record.backend, record.dtype, record.batch, record.sequence_length, record.threads)
    generated = record.new_tokens if isinstance(record, Evidence) else 0  # memory is that of forward passes
    return (folded(record.model), folded(record.hub_id), *settings, generated)


def _of_cells(cells: Snapshot, place: Place, file: Path, where: str) -> Source:
    return Source(place=place, where=where, evidence=cells.evidence(file), memory=cells.memory(file), executed=cells.executed)


def _of_database(path: Path, place: Place) -> Source:
    evidence, memory = read_evidence(path), memory_on_record(path)
    with reading(path) as connection:
        executed = executed_of(records(connection, "executions"))
    return Source(place=place, where=_relative_to_here(path), evidence=evidence, memory=memory, executed=executed)


def _relative_to_here(path: Path) -> str:
    """A path, relative to the working folder if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
