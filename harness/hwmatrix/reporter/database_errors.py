"""Recorded errors: cells of a merged database that did not pass, and rejected shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hwmatrix.faults.error_records import of_type, recognised
from hwmatrix.records import Dtype, Severity, Stage, Status
from hwmatrix.store.reading import reading, records

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hwmatrix.faults.error_records import ReportedError

_MERGE = "merge"


def errors_in(database: Path) -> tuple[ReportedError, ...]:
    """Of every cell the newest execution's error, and every shard that the merge refused.

    A type that the run left open is looked up in the catalogue. The database is not changed.

    Raises:
        StoreError: it is missing, is no merged database, or is of a version that is not read here.
    """
    with reading(database) as connection:
        cells = records(connection, "error_records")
        rejected = records(connection, "rejected_shards")
    refused = (
        of_type("shard_rejected", f"{row['file']}: {row['reason']}", component=_MERGE, timestamp=_stamp(row["rejected_at"]))
        for row in rejected
    )
    return (*(_of_cell(row) for row in cells), *refused)


def _of_cell(row: Mapping[str, Any]) -> ReportedError:
    stage = Stage(row["stage"]) if row["stage"] is not None else None
    known: dict[str, Any] = {
        "component": stage.value if stage is not None else "plan",
        "hardware": row["backend"],
        "timestamp": _stamp(row["started_at"]),
        "model_name": row["model"],
        "traceback": row["traceback"],
        "dtype": Dtype(row["dtype"]),
        "batch": row["batch"],
        "severity": Severity(row["severity"]) if row["severity"] is not None else None,
    }
    message = row["message"] or f"the cell ended as {row['status']}, and left no message"
    if row["error_type"] is not None:
        return of_type(row["error_type"], message, **known)
    return recognised(message, status=Status(row["status"]), stage=stage, **known)


def _stamp(value: Any) -> str | None:
    return None if value is None else value.isoformat()
