"""All failures of a run as error records, each with recommendations."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Final

from hwmatrix.faults.error_records import RANK, of_cell, of_type
from hwmatrix.records import Status
from hwmatrix.report.contract import CellError, ErrorEntry
from hwmatrix.report.rows import CellRow

if TYPE_CHECKING:
    from hwmatrix.faults.error_records import ReportedError
    from hwmatrix.report.rows import RejectedRow, ReportRows

_NO_ERROR: Final = frozenset({Status.PASS, Status.NOT_RUN})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """One error, and the cell in which it happened (None: outside all cells)."""

    entry: ErrorEntry
    cell: CellRow | None


def cell_error(cell: CellRow) -> CellError | None:
    """Why a cell did not pass; None for one that passed or was not run."""
    record = _record(cell)
    if record is None:
        return None
    return CellError(type=record.error_type, severity=record.severity, message=record.message, recommendations=record.recommendations)


@functools.lru_cache(maxsize=1)
def failures(rows: ReportRows) -> tuple[Failure, ...]:
    """All errors of a run, most severe first, then by type and in the order of matrix.yaml."""
    found = [_rejection(row) for row in rows.rejected]
    found += [_cell_failure(cell, record) for cell in rows.cells if (record := _record(cell)) is not None]
    return tuple(sorted(found, key=lambda failure: (RANK[failure.entry.severity], failure.entry.error_type)))


def _record(cell: CellRow) -> ReportedError | None:
    """The error of a cell; None for one that passed or was not run."""
    if cell.status in _NO_ERROR:
        return None
    return of_cell(
        cell.message or "",
        hardware=cell.backend,
        error_type=cell.error_type,
        severity=cell.severity,
        status=cell.status,
        stage=cell.stage,
        model_name=cell.model,
        traceback=cell.traceback,
        dtype=cell.dtype,
        batch=cell.batch,
    )


def _cell_failure(cell: CellRow, record: ReportedError) -> Failure:
    return Failure(entry=ErrorEntry(**vars(record) | {"hardware_type": cell.target, "timestamp": cell.started_at}), cell=cell)


def _rejection(row: RejectedRow) -> Failure:
    record = of_type("shard_rejected", f"{row.file}: {row.reason}", component="merge")
    return Failure(entry=ErrorEntry(**vars(record) | {"timestamp": row.rejected_at}), cell=None)
