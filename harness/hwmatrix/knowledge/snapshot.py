"""Published evidence in compact form: the latest verdict of every cell, from databases or from the file in the package.

The file is compressed JSON, stored by column, with words as indexes into a list. It holds no samples, no outputs and no
tracebacks; those are in the databases that it names.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.files import write_atomically
from hwmatrix.errors import StoreError
from hwmatrix.knowledge.evidence import Evidence, evidence_of, folded, read_evidence, stamp
from hwmatrix.records import Size, Status
from hwmatrix.store.reading import reading, records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

FORMAT: Final = "hwmatrix/evidence/3"
_COLUMNS: Final = tuple(field.name for field in dataclasses.fields(Evidence))
_DIGITS: Final = 5
"""Significant digits kept of a measured number: more than any measurement here reproduces."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executed:
    """When and with which packages cells were executed: the first and the last time (None: no cell), and versions by package."""

    first: str | None
    last: str | None
    versions: dict[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Cells with their latest verdicts, the newest first. ``made_of`` maps the path of each source database to the checksum of its file."""

    made_of: dict[str, str]
    executed: Executed
    cells: tuple[Evidence, ...]


def cell_key(cell: Evidence) -> tuple[object, ...]:
    """The identity of a cell, regardless of the machine and its isolation."""
    settings = (cell.size, cell.target, cell.backend, cell.dtype, cell.batch, cell.sequence_length, cell.threads, cell.new_tokens)
    return (folded(cell.model), folded(cell.hub_id), *settings)


def collect(databases: Mapping[str, Path]) -> Snapshot:
    """The latest verdict of every cell of merged databases, which are given by path.

    If the latest execution of a cell passed without timing, the latest that passed with timing is kept too. What was not executed is not
    evidence for other machines.

    Raises:
        StoreError: one of them cannot be read.
    """
    executed = [record for path in databases.values() for record in read_evidence(path, by_start=True) if record.level is not None]
    made_of = {place: checksum(path) for place, path in sorted(databases.items())}
    return Snapshot(made_of=made_of, executed=executed_in(databases.values()), cells=tuple(_latest(executed)))


def executed_in(databases: Iterable[Path]) -> Executed:
    """When and with which packages the cells of databases were executed.

    Raises:
        StoreError: one of them cannot be read.
    """
    versions: dict[str, set[str]] = {}
    moments: list[str] = []
    for path in databases:
        with reading(path) as connection:
            rows = records(connection, "executions")
        for row in rows:
            moments += [str(stamp(row["first"])), str(stamp(row["last"]))]
            for package, version in json.loads(row["versions"]).items():
                versions.setdefault(package, set()).add(version)
    by_package = {package: tuple(sorted(each)) for package, each in sorted(versions.items())}
    return Executed(first=min(moments, default=None), last=max(moments, default=None), versions=by_package)


def checksum(path: Path) -> str:
    """The CRC-32 of a file, to check whether a snapshot was made from it.

    Raises:
        StoreError: it cannot be read.
    """
    value = 0
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                value = zlib.crc32(block, value)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error}", advice="Name another database.") from error
    return f"{value:08x}"


def write(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot. The same snapshot always gives the same content.

    Raises:
        StoreError: the file cannot be written.
    """
    document = {
        "format": FORMAT,
        "made_of": snapshot.made_of,
        **dataclasses.asdict(snapshot.executed),
        "cells": {name: _packed([getattr(cell, name) for cell in snapshot.cells]) for name in _COLUMNS},
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    try:
        write_atomically(path, gzip.compress(text.encode("utf-8"), compresslevel=9, mtime=0))
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error}", advice="Free space, or name another file.") from error


def read(path: Path) -> Snapshot:
    """Read a snapshot.

    Raises:
        StoreError: it is missing, damaged, or of an unsupported format.
    """
    advice = "Install hwmatrix again, or write it again: hwmatrix evidence --write."
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
        if document.get("format") != FORMAT:
            raise StoreError(f"{path}: its format is {document.get('format')}, this hwmatrix reads {FORMAT}", advice=advice)
        columns = [_unpacked(document["cells"][name]) for name in _COLUMNS]
        cells = evidence_of((dict(zip(_COLUMNS, values, strict=True)) for values in zip(*columns, strict=True)), path)
        versions = {package: tuple(each) for package, each in document["versions"].items()}
        executed = Executed(first=document["first"], last=document["last"], versions=versions)
        return Snapshot(made_of=document["made_of"], executed=executed, cells=cells)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise StoreError(f"{path}: cannot be read as published evidence: {type(error).__name__}: {error}", advice=advice) from error


def _latest(executed: Sequence[Evidence]) -> Iterable[Evidence]:
    """The latest execution of each cell, and the latest timed one. Tiny models stay without their plans: their peaks are not published."""
    latest: dict[tuple[object, ...], Evidence] = {}
    timed: set[tuple[object, ...]] = set()
    for record in sorted(executed, key=lambda record: record.started_at or "", reverse=True):
        key = cell_key(record)
        first = latest.setdefault(key, record)
        if record.ci_low_ms is not None and first.status is record.status is Status.PASS and key not in timed:
            timed.add(key)
        elif record is not first:
            continue
        changes: dict[str, Any] = {name: float(f"{value:.{_DIGITS}g}") for name, value in vars(record).items() if isinstance(value, float)}
        yield dataclasses.replace(record, **changes, plan=record.plan if record.size is Size.FULL else None)


def _packed(values: list[Any]) -> dict[str, Any]:
    """A column: as it is, or, if it has text, the distinct words and each cell's index into them."""
    if not any(isinstance(value, str) for value in values):
        return {"values": values}
    words = {value: place for place, value in enumerate(dict.fromkeys(value for value in values if value is not None))}
    return {"words": list(words), "at": [None if value is None else words[value] for value in values]}


def _unpacked(column: Mapping[str, Any]) -> list[Any]:
    if "values" in column:
        return list(column["values"])
    words = column["words"]
    return [None if place is None else words[place] for place in column["at"]]
