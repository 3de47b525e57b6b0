"""The table ``cells`` and its records: the columns for measurements come from :class:`hwmatrix.records.Measured`."""

from __future__ import annotations

import enum
import json
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.records import measured_columns
from hwmatrix.store.domains import with_types

if TYPE_CHECKING:
    from hwmatrix.records import CellResult

SCHEMA_VERSION: Final = "15"
"""The only version of databases and shards that can be read."""
_MARKER: Final = "    -- MEASURED\n"
"""The line of schema.sql that the columns of ``Measured`` replace."""


def sql(name: str) -> str:
    """The text of one of this package's SQL files."""
    return resources.files("hwmatrix.store").joinpath(name).read_text(encoding="utf-8")


def schema(*, checked: bool = True) -> str:
    """The tables of a merged database as SQL, or of a shard (not ``checked``).

    A shard's writer checks what it is sent (``runner/messages.py``), and the merge all that it copies; constraints in the shard would only
    make each cell's INSERT slower.
    """
    columns = "".join(f"    {column.name} {column.domain},\n" for column in measured_columns())
    before, marker, after = sql("schema.sql").partition(_MARKER)
    if not marker:
        raise ValueError(f"schema.sql has no line {_MARKER.strip()!r}")
    return with_types(before + columns + after, checked=checked)


def cell_row(result: CellResult, cell_id: str, shard_id: str, run_id: str, command: str) -> dict[str, Any]:
    """A result as a row of ``cells``, by column. Values that were not measured are NULL."""
    row: dict[str, Any] = {
        "cell_id": cell_id,
        "shard_id": shard_id,
        "run_id": run_id,
        "cell_key": result.key,
        "role": result.role.value,
        "model": result.model,
        "size": result.size.value,
        "target": result.target,
        "family": result.family.value,
        "architecture": result.architecture,
        "hub_id": result.hub_id,
        "dtype": result.settings.dtype.value,
        "batch": result.settings.batch,
        "sequence_length": result.settings.sequence_length,
        "threads": result.settings.threads,
        "new_tokens": result.settings.new_tokens,
        "status": result.status.value,
        "stage": result.stage.value,
        "execution": result.execution.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "started_at": result.started_at,
        "wall_ms": result.wall_ms,
        "command": command,
    }
    row |= {column.name: _stored(getattr(result, column.name)) for column in measured_columns()}
    if result.adaptation:
        row |= {"adapted_from": result.adaptation.of, "adaptation": json.dumps(result.adaptation.change.data)}
    if result.error:
        row |= {
            "error_type": result.error.type,
            "severity": result.error.severity.value,
            "message": result.error.message,
            "traceback": result.error.traceback,
            "needs": list(result.error.needs),
        }
    return row


def _stored(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value
