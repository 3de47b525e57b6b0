"""The error report and the compatibility matrix as Markdown, rendered from the JSON document."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from hwmatrix.basics.templates import environment
from hwmatrix.faults.grouping import by_advice
from hwmatrix.records import Basis, Severity
from hwmatrix.reporter.document import ReportEntry

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import jinja2

    from hwmatrix.knowledge.on_record import OnRecord
    from hwmatrix.reporter.document import ErrorReport


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alike:
    """Errors with the same message, traceback, hardware and component. ``entry`` is the first of them."""

    entry: ReportEntry
    models: tuple[str, ...]
    occurrences: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Errors of one type with the same recommendations. ``hardware`` lists where they occurred, if on specific hardware."""

    type: str
    hardware: tuple[str, ...]
    severity: Severity
    summary: str
    recommendations: tuple[str, ...]
    count: int
    alike: tuple[Alike, ...]


def report_markdown(report: ErrorReport, database: Path | None, measured: OnRecord) -> str:
    """The whole report. Messages and tracebacks are complete, in blocks of their own.

    ``database`` is the source of its records, ``measured`` that of its matrix.
    """
    matrix = matrix_markdown(report, measured, level=2) if report.matrix is not None else ""
    source = str(database) if "database" in report.collected else ""
    return render("report.md.j2", report=report, groups=groups(report.errors), source=source, matrix=matrix)


def matrix_markdown(report: ErrorReport, measured: OnRecord, *, level: int = 1) -> str:
    """The compatibility matrix of a report, under a heading of this level. ``measured`` are its measurements."""
    rows = report.matrix or ()
    cells = [cell for row in rows for cell in row.hardware.values()]
    return render(
        "matrix.md.j2",
        level=level,
        rows=rows,
        hardware=list(rows[0].hardware) if rows else [],
        cells=len(cells),
        measured=sum(cell.basis is Basis.MEASURED for cell in cells),
        sources=measured.sources,
    )


def groups(entries: Iterable[ReportEntry]) -> tuple[Group, ...]:
    """Entries grouped by type, severity and advice, in the order of the first entry of each group."""
    return tuple(
        Group(
            type=group.type,
            hardware=tuple(dict.fromkeys(entry.hardware_type for entry in group.members if entry.hardware_type is not None)),
            severity=group.severity,
            summary=group.summary,
            recommendations=group.recommendations,
            count=len(group.members),
            alike=_alike(group.members),
        )
        for group in by_advice(entries, lambda entry: entry, lambda entry: entry.hardware_type or "any")
    )


def _alike(entries: Iterable[ReportEntry]) -> tuple[Alike, ...]:
    found: dict[tuple[str | None, ...], list[ReportEntry]] = {}
    for entry in entries:
        found.setdefault((entry.hardware_type, entry.component, entry.message, entry.traceback), []).append(entry)
    return tuple(
        Alike(
            entry=same[0],
            models=tuple(dict.fromkeys(entry.model_name for entry in same if entry.model_name is not None)),
            occurrences=sum(entry.occurrences for entry in same),
        )
        for same in found.values()
    )


def render(name: str, **values: Any) -> str:
    """Render a template of ``reporter/templates``.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    return _environment().get_template(name).render(**values).strip() + "\n"


@functools.cache
def _environment() -> jinja2.Environment:
    # The output is Markdown; everything printed is a number or goes through one of our filters.
    hint = "pip install 'hwmatrix[host]', or choose json"
    made = environment("hwmatrix.reporter", autoescape=False, finalize=_refuse_none, hint=hint)

    from hwmatrix.basics import escape

    made.filters |= {"text": escape.md, "code": escape.code, "fence": functools.partial(escape.fence, language="text")}
    return made


def _refuse_none(value: Any) -> Any:
    if value is None:
        raise TypeError("a template printed a missing value")
    return value
