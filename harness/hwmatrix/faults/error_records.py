"""The standard error record of all components, and the merging of records into one list."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Any, Final, TypedDict

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.faults.catalogue import advice_for, match, severity_of
from hwmatrix.records import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hwmatrix.records import Dtype, Stage, Status

RANK: Final = {severity: rank for rank, severity in enumerate(Severity)}
"""The most severe first."""
_ANY: Final = "any"
"""The catalogue's hardware for errors that belong to no specific hardware."""


class ErrorDict(TypedDict):
    """The standard record as plain data."""

    hardware_type: str | None
    error_type: str
    severity: str
    message: str
    component: str
    timestamp: str | None
    model_name: str | None
    recommendations: list[str]
    traceback: str | None


KEYS: Final = tuple(ErrorDict.__annotations__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportedError:
    """One error: its hardware (None: no specific one), its type in the catalogue, and what to do about it.

    ``component`` is where it occurred (``hardware_detection``, ``resource_pool``, a stage of a cell, ...), ``timestamp`` when, in UTC and
    ISO 8601; ``model_name`` is None if no model was involved.
    """

    hardware_type: str | None
    error_type: str
    severity: Severity
    message: str
    component: str
    timestamp: str | None
    model_name: str | None
    recommendations: tuple[str, ...]
    traceback: str | None

    def to_dict(self) -> ErrorDict:
        """The record as plain data, ready for JSON."""
        return ErrorDict(
            hardware_type=self.hardware_type,
            error_type=self.error_type,
            severity=self.severity.value,
            message=self.message,
            component=self.component,
            timestamp=self.timestamp,
            model_name=self.model_name,
            recommendations=list(self.recommendations),
            traceback=self.traceback,
        )

    @property
    def order(self) -> tuple[int, str, str, str, str, str]:
        """The sort key of the record: severity, then its subject. The time is not part of it."""
        subject = (self.error_type, self.hardware_type or "", self.component, self.model_name or "", self.message)
        return (RANK[self.severity], *subject)


def of_type(
    error_type: str,
    message: str,
    *,
    component: str,
    hardware: str | None = None,
    severity: Severity | None = None,
    timestamp: str | None = None,
    model_name: str | None = None,
    traceback: str | None = None,
    dtype: Dtype | None = None,
    batch: int | None = None,
) -> ReportedError:
    """An error record for a known type; severity (unless given) and recommendations come from the catalogue.

    ``dtype`` and ``batch`` are those of the cell, if there is one: recommendations that the cell already follows are left out.
    """
    return ReportedError(
        hardware_type=hardware,
        error_type=error_type,
        severity=severity or severity_of(error_type, hardware or _ANY),
        message=message,
        component=component,
        timestamp=in_utc(timestamp),
        model_name=model_name,
        recommendations=advice_for(error_type, hardware or _ANY, dtype=dtype, batch=batch),
        traceback=traceback,
    )


def recognized(
    message: str,
    *,
    component: str,
    hardware: str | None = None,
    error_type: str | None = None,
    severity: Severity | None = None,
    status: Status | None = None,
    stage: Stage | None = None,
    exception: type[BaseException] | BaseException | str | None = None,
    **details: Any,
) -> ReportedError:
    """An error record whose type, unless given, is looked up in the catalogue; ``unmatched`` if no entry matches the message.

    ``details`` are the other fields of the record, as for :func:`of_type`.
    """
    if error_type is None:
        found = match(message, hardware=hardware or _ANY, status=status, stage=stage, exception=exception)
        error_type, severity = found.type, severity or found.severity
    return of_type(error_type, message, component=component, hardware=hardware, severity=severity, **details)


def of_cell(message: str, *, status: Status, stage: Stage | None, **details: Any) -> ReportedError:
    """The error record of a recorded cell. Its component is the stage, or ``plan`` without one, or ``canary`` for a failed canary.

    ``details`` are the arguments of :func:`recognized`; ``error_type`` is None if the run did not record one.
    """
    component = stage.value if stage is not None else "plan"
    record = recognized(message, component=component, status=status, stage=stage, **details)
    return dataclasses.replace(record, component="canary") if record.error_type == "canary_failed" else record


def from_dict(record: Mapping[str, Any]) -> ReportedError:
    """The record from a mapping that a component supplied.

    Raises:
        ConfigError: a key is missing or unknown, or the severity is invalid.
    """
    problems = [Problem(where="error record", what=f"it has no {key!r}") for key in KEYS if key not in record]
    problems += [
        Problem(where="error record", what=f"it has {key!r}", hint=f"the keys are {', '.join(KEYS)}") for key in record if key not in KEYS
    ]
    words = [severity.value for severity in Severity]
    if record.get("severity", words[0]) not in words:
        problems.append(Problem(where="error record", what=f"{record['severity']!r} is not a severity", hint=f"one of {', '.join(words)}"))
    if problems:
        raise ConfigError(problems)
    changed = {"severity": Severity(record["severity"]), "timestamp": in_utc(record["timestamp"])}
    return ReportedError(**{**record, **changed, "recommendations": tuple(record["recommendations"])})


def in_utc(stamp: str | dt.datetime | None) -> str | None:
    """A time in the format of all records: UTC, whole seconds, ``2026-11-20T08:15:00Z``. A time without a zone counts as UTC.

    Raises:
        ConfigError: the text is not a time in ISO 8601.
    """
    if stamp is None:
        return None
    try:
        parsed = stamp if isinstance(stamp, dt.datetime) else dt.datetime.fromisoformat(stamp)
    except ValueError as error:
        problem = Problem(where="timestamp", what=f"{stamp!r} is not a time", hint="write it in ISO 8601: 2026-11-20T08:15:00Z")
        raise ConfigError([problem]) from error
    aware = parsed.replace(tzinfo=dt.UTC) if parsed.tzinfo is None else parsed.astimezone(dt.UTC)
    return aware.strftime("%Y-%m-%dT%H:%M:%SZ")


def merged(records: Iterable[ReportedError]) -> tuple[tuple[ReportedError, int], ...]:
    """The distinct records, most severe first, each with its number of occurrences. Of identical records the earliest is kept."""
    kept: dict[tuple[Any, ...], tuple[ReportedError, int]] = {}
    for record in records:
        first, count = kept.get(record.order, (record, 0))
        earlier = min(
            first, record, key=lambda each: (each.timestamp is None, each.timestamp or "", each.traceback is None, each.traceback or "")
        )
        kept[record.order] = (earlier, count + 1)
    return tuple(kept[order] for order in sorted(kept))
