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
from hwmatrix.knowledge.evidence import Evidence, evidence_of, folded, stamp
from hwmatrix.knowledge.measured_memory import MemoryOnRecord, memory_of
from hwmatrix.store.reading import reading, records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

FORMAT: Final = "hwmatrix/evidence/3"
_OLDER: Final = "hwmatrix/evidence/2"
"""Without cells that generate, and without the columns that were added with these."""
_EVIDENCE: Final = tuple(field.name for field in dataclasses.fields(Evidence))
_MEMORY: Final = tuple(field.name for field in dataclasses.fields(MemoryOnRecord))
_COLUMNS: Final = tuple(dict.fromkeys((*_EVIDENCE, *_MEMORY)))
_KEY: Final = ("size", "target", "backend", "dtype", "batch", "sequence_length", "threads", "new_tokens")
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
    """Cells with their latest verdicts, one mapping of plain values per cell, the newest first.

    ``made_of`` maps the path of each source database to the checksum of its file.
    """

    made_of: dict[str, str]
    executed: Executed
    cells: tuple[dict[str, Any], ...]
    format: str = FORMAT

    def evidence(self, where: Path) -> tuple[Evidence, ...]:
        """The cells as evidence. ``where`` is the file that they come from.

        Raises:
            StoreError: it holds a word that this version does not know.
        """
        return tuple(evidence_of({name: cell[name] for name in _EVIDENCE}, where) for cell in self.cells)

    def memory(self, where: Path) -> tuple[MemoryOnRecord, ...]:
        """The measured peaks of full-size models: those of tiny ones do not generalize.

        Raises:
            StoreError: it holds a word that this version does not know.
        """
        full = (cell for cell in self.cells if cell["size"] == "full" and not cell["new_tokens"] and cell["status"] in {"pass", "mismatch"})
        measured = (cell for cell in full if cell["peak_mb"] is not None or cell["device_peak_mb"] is not None)
        return tuple(memory_of({name: cell[name] for name in _MEMORY}, where) for cell in measured)


def cell_key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """The identity of a cell, regardless of the machine."""
    return (folded(cell["model"]), folded(cell["hub_id"]), *(cell[name] for name in _KEY))


def collect(databases: Mapping[str, Path]) -> Snapshot:
    """The latest verdict of every cell of merged databases, which are given by path.

    If the latest execution of a cell passed without timing, the latest that passed with timing is kept too.

    Raises:
        StoreError: one of them cannot be read.
    """
    rows: list[dict[str, Any]] = []
    executions: list[dict[str, Any]] = []
    for path in databases.values():
        with reading(path) as connection:
            rows += [row | {"started_at": stamp(row["started_at"])} for row in records(connection, "published_cells")]
            executions += records(connection, "executions")
    made_of = {place: checksum(path) for place, path in sorted(databases.items())}
    return Snapshot(made_of=made_of, executed=executed_of(executions), cells=tuple(_latest(rows)))


def executed_of(rows: Iterable[Mapping[str, Any]]) -> Executed:
    """Summarize the rows of ``queries/executions.sql`` of one or several databases."""
    versions: dict[str, set[str]] = {}
    first, last = None, None
    for row in rows:
        begin, end = str(stamp(row["first"])), str(stamp(row["last"]))
        first, last = min(first or begin, begin), max(last or end, end)
        for package, version in json.loads(row["versions"]).items():
            versions.setdefault(package, set()).add(version)
    return Executed(first=first, last=last, versions={package: tuple(sorted(found)) for package, found in sorted(versions.items())})


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
        "cells": {name: _packed([cell[name] for cell in snapshot.cells]) for name in _COLUMNS},
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
        found = document.get("format")
        if found not in {FORMAT, _OLDER}:
            raise StoreError(f"{path}: its format is {found}, this hwmatrix reads {FORMAT}", advice=advice)
        packed = document["cells"]
        if found == _OLDER:
            count = len(_unpacked(packed["model"]))
            packed = {name: {"values": [0 if name == "new_tokens" else None] * count} for name in _COLUMNS} | packed
        columns = {name: _unpacked(packed[name]) for name in _COLUMNS}
        cells = tuple(dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        versions = {package: tuple(each) for package, each in document["versions"].items()}
        executed = Executed(first=document["first"], last=document["last"], versions=versions)
        return Snapshot(made_of=document["made_of"], executed=executed, cells=cells, format=found)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise StoreError(f"{path}: cannot be read as published evidence: {type(error).__name__}: {error}", advice=advice) from error


def _latest(rows: Sequence[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    ordered = sorted(rows, key=lambda row: str(row["started_at"]), reverse=True)
    latest: dict[tuple[Any, ...], dict[str, Any]] = {}
    timed: set[tuple[Any, ...]] = set()
    for row in ordered:
        key = cell_key(row)
        first = latest.setdefault(key, row)
        if row["timed"] and first["status"] == row["status"] == "pass" and key not in timed:
            timed.add(key)
        elif row is not first:
            continue
        yield {name: _rounded(row[name]) for name in _COLUMNS}


def _rounded(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


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
