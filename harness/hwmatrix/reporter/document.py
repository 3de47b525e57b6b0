"""The error report as a document: the source of its JSON and of the published JSON Schema.

Every key is always present. A part that was not requested is null, never empty.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import pydantic
from pydantic import Field
from pydantic.dataclasses import dataclass

from hwmatrix.knowledge.on_record import Measurements
from hwmatrix.records import Basis, Execution, Family, Level, Severity
from hwmatrix.reporter.components import Checked
from hwmatrix.reporter.stack import StackResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hwmatrix.faults.error_records import ReportedError
    from hwmatrix.knowledge.compatibility_table import TableRow

ERROR_REPORT_SCHEMA: Final = "hwmatrix/error-report/1"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_STRICT = pydantic.ConfigDict(extra="forbid", ser_json_inf_nan="null")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ReportEntry:
    """One error. ``occurrences`` counts how often it occurred; ``timestamp`` is that of the first time, in UTC."""

    hardware_type: str | None
    error_type: str
    severity: Severity
    message: str
    component: str
    timestamp: dt.datetime | None
    model_name: str | None
    recommendations: tuple[str, ...]
    traceback: str | None
    occurrences: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class MatrixCell:
    """A family or architecture on one hardware: the basis, the level, the number of models at each level, what was expected."""

    basis: Basis
    level: Level | None
    compatible: bool | None
    levels: dict[Level, int]
    execution: Execution | None
    expected: tuple[str, ...]
    text: str


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class MatrixRow:
    """A family (``architecture`` is null), or one of its architectures, on every hardware."""

    family: Family
    architecture: str | None
    hardware: dict[str, MatrixCell]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ErrorReport:
    """The report. ``collected`` names what was checked; ``counts`` has all four severities; ``evidence`` is the source of the matrix."""

    schema: Literal["hwmatrix/error-report/1"]
    generated_at: dt.datetime
    hwmatrix_version: str
    collected: tuple[str, ...]
    counts: dict[Severity, int]
    errors: tuple[ReportEntry, ...]
    components: tuple[Checked, ...] | None
    stack: tuple[StackResult, ...] | None
    matrix: tuple[MatrixRow, ...] | None
    evidence: tuple[Measurements, ...] = ()


_DOCUMENT: Final = pydantic.TypeAdapter(ErrorReport)


def report_of(
    errors: Sequence[tuple[ReportedError, int]],
    *,
    generated_at: str,
    version: str,
    collected: Iterable[str],
    components: tuple[Checked, ...] | None,
    stack: tuple[StackResult, ...] | None,
    matrix: Iterable[TableRow] | None,
    evidence: Iterable[dict[str, Any]] = (),
) -> ErrorReport:
    """The document of sorted errors, each with its number of occurrences."""
    plain = {
        "schema": ERROR_REPORT_SCHEMA,
        "generated_at": generated_at,
        "hwmatrix_version": version,
        "collected": list(collected),
        "counts": {severity.value: sum(error.severity is severity for error, _ in errors) for severity in Severity},
        "errors": [{**error.to_dict(), "occurrences": count} for error, count in errors],
        "components": components,
        "stack": stack,
        "matrix": None if matrix is None else [row.as_dict() for row in matrix],
        "evidence": list(evidence),
    }
    return _DOCUMENT.validate_python(plain)


def to_json(report: ErrorReport) -> str:
    """The report as JSON."""
    return _DOCUMENT.dump_json(report, indent=2).decode() + "\n"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the report."""
    body = _DOCUMENT.json_schema(mode="serialization")
    return {"$schema": _DIALECT, "$id": ERROR_REPORT_SCHEMA, **body, "title": "hwmatrix errors of this machine"}
