"""Retries of failed cells with changed settings: as text, and as entries of reports."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING

from hwmatrix.faults.catalogue import advice_for, severity_of
from hwmatrix.records import Status, in_words
from hwmatrix.report.contract import AttemptEntry, CellError, Evidence, ParityEntry, PlacementEntry

if TYPE_CHECKING:
    from hwmatrix.report.rows import AttemptRow, CellRow, ReportRows


def changed(cell: CellRow) -> str | None:
    """The change that made a failed cell pass, such as ``batch 4 instead of 8``; None if none did."""
    return None if cell.adaptation is None else in_words(cell.adaptation, batch=cell.batch, dtype=cell.dtype.value)


def tried(cell: CellRow, attempt: AttemptRow) -> str:
    """What an attempt changed in the cell, in words, with the operators that were replaced."""
    words = in_words(attempt.adaptation, batch=cell.batch, dtype=cell.dtype.value)
    return f"{words} ({', '.join(attempt.replaced)})" if attempt.replaced else words


@functools.lru_cache(maxsize=1)
def by_cell(rows: ReportRows) -> dict[str, tuple[AttemptRow, ...]]:
    """The attempts of each cell that had any, by its key, in the order in which they were made."""
    found: defaultdict[str, list[AttemptRow]] = defaultdict(list)
    for attempt in rows.attempts:
        found[attempt.cell_key].append(attempt)
    return {key: tuple(attempts) for key, attempts in found.items()}


def paired(rows: ReportRows) -> tuple[tuple[CellRow, AttemptRow], ...]:
    """Every attempt with the cell that had failed, in the order of the report's cells."""
    attempts = by_cell(rows)
    return tuple((cell, attempt) for cell in rows.cells for attempt in attempts.get(cell.cell_key, ()))


def sentence(cell: CellRow, attempt: AttemptRow) -> str:
    """An attempt on one line: ``batch 4 instead of 8: pass``."""
    message = f": {attempt.message.splitlines()[0]}" if attempt.message and attempt.status is not Status.PASS else ""
    return f"{tried(cell, attempt)}: {attempt.status.value}{message}"


def entry(cell: CellRow, attempt: AttemptRow, run_id: str) -> AttemptEntry:
    """An attempt as an entry of matrix.json."""
    placed = attempt.on_target is not None or attempt.placement_detail is not None
    compared = attempt.relative_error is not None or attempt.cosine is not None
    return AttemptEntry(
        changed=attempt.adaptation,
        words=tried(cell, attempt),
        preparation=attempt.preparation,
        replaced=attempt.replaced,
        status=attempt.status,
        stage=attempt.stage,
        placement=PlacementEntry(on_target=attempt.on_target, detail=attempt.placement_detail) if placed else None,
        parity=ParityEntry(relative_error=attempt.relative_error, max_error=attempt.max_error, cosine=attempt.cosine) if compared else None,
        peak_mb=attempt.peak_mb,
        error=_error(cell, attempt),
        evidence=Evidence(
            run_id=run_id,
            isolation=attempt.isolation,
            image_digest=attempt.image_digest,
            versions=attempt.versions,
            command=attempt.command,
        ),
    )


def _error(cell: CellRow, attempt: AttemptRow) -> CellError | None:
    if attempt.error_type is None:
        return None
    return CellError(
        type=attempt.error_type,
        severity=attempt.severity or severity_of(attempt.error_type, cell.backend),
        message=attempt.message or "",
        recommendations=advice_for(attempt.error_type, cell.backend),
    )
