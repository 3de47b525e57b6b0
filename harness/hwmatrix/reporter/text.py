"""The error report and the compatibility matrix as Markdown, rendered from the JSON document."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from hwmatrix.basics.templates import environment
from hwmatrix.faults.grouping import by_advice
from hwmatrix.records import Basis

if TYPE_CHECKING:
    from pathlib import Path

    import jinja2

    from hwmatrix.knowledge.on_record import OnRecord
    from hwmatrix.reporter.document import ErrorReport


def report_markdown(report: ErrorReport, database: Path | None, measured: OnRecord) -> str:
    """The whole report. Messages and tracebacks are complete, in blocks of their own.

    ``database`` is the source of its records, ``measured`` that of its matrix.
    """
    matrix = matrix_markdown(report, measured, level=2) if report.matrix is not None else ""
    groups = by_advice(report.errors, lambda entry: entry, lambda entry: entry.hardware_type or "any")
    source = str(database) if "database" in report.collected else ""
    return render("report.md.j2", report=report, groups=groups, source=source, matrix=matrix)


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
