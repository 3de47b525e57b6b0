"""All failures of a run as error records, each with recommendations."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Final

from hwmatrix.faults.catalogue import advice_for, match, severity_of
from hwmatrix.records import Severity, Status
from hwmatrix.report.contract import CellError, ErrorEntry
from hwmatrix.report.rows import CellRow

if TYPE_CHECKING:
    from hwmatrix.report.rows import RejectedRow, ReportRows

_RANK: Final = {severity: rank for rank, severity in enumerate(Severity)}
_NO_ERROR: Final = frozenset({Status.PASS, Status.NOT_RUN})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """One error, and the cell in which it happened (None: outside all cells)."""

    entry: ErrorEntry
    cell: CellRow | None


def cell_error(cell: CellRow) -> CellError | None:
    """Why a cell did not pass; None for one that passed or was not run.

    If the run did not record a type, the catalogue finds it, or returns ``unmatched``.
    """
    if cell.status in _NO_ERROR:
        return None
    message = cell.message or ""
    if cell.error_type is not None:
        kind, severity = cell.error_type, cell.severity or severity_of(cell.error_type, cell.backend)
    else:
        found = match(message, hardware=cell.backend, status=cell.status, stage=cell.stage)
        kind, severity = found.type, cell.severity or found.severity
    return CellError(
        type=kind, severity=severity, message=message, recommendations=advice_for(kind, cell.backend, dtype=cell.dtype, batch=cell.batch)
    )


@functools.lru_cache(maxsize=1)
def failures(rows: ReportRows) -> tuple[Failure, ...]:
    """All errors of a run, most severe first, then by type and in the order of matrix.yaml."""
    found = [_rejection(row) for row in rows.rejected]
    for cell in rows.cells:
        error = cell_error(cell)
        if error is not None:
            found.append(_cell_failure(cell, error))
    return tuple(sorted(found, key=lambda failure: (_RANK[failure.entry.severity], failure.entry.error_type)))


def _cell_failure(cell: CellRow, error: CellError) -> Failure:
    stage = cell.stage.value if cell.stage is not None else "plan"
    entry = ErrorEntry(
        hardware_type=cell.target,
        error_type=error.type,
        severity=error.severity,
        message=error.message,
        component="canary" if error.type == "canary_failed" else stage,
        timestamp=cell.started_at,
        model_name=cell.model,
        recommendations=error.recommendations,
        traceback=cell.traceback,
    )
    return Failure(entry=entry, cell=cell)


def _rejection(row: RejectedRow) -> Failure:
    kind = "shard_rejected"
    entry = ErrorEntry(
        hardware_type=None,
        error_type=kind,
        severity=severity_of(kind, "any"),
        message=f"{row.file}: {row.reason}",
        component="merge",
        timestamp=row.rejected_at,
        model_name=None,
        recommendations=advice_for(kind, "any"),
        traceback=None,
    )
    return Failure(entry=entry, cell=None)
