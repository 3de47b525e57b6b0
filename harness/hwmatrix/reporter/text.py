"""The error report and the compatibility matrix as Markdown, rendered from the JSON document."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from hwmatrix.basics import templates
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
    groups = by_advice(report.errors, lambda entry: entry, lambda entry: entry.hardware_type or "any")
    source = str(database) if "database" in report.collected else ""
    return _render("report.md.j2", report=report, groups=groups, source=source, **_matrix_values(report, measured, level=2))


def matrix_markdown(report: ErrorReport, measured: OnRecord) -> str:
    """The compatibility matrix of a report. ``measured`` are its measurements."""
    return _render("matrix.md.j2", **_matrix_values(report, measured, level=1))


def _matrix_values(report: ErrorReport, measured: OnRecord, *, level: int) -> dict[str, Any]:
    """The variables of matrix.md.j2. ``level`` is that of its heading."""
    rows = report.matrix or ()
    cells = [cell for row in rows for cell in row.hardware.values()]
    return {
        "level": level,
        "rows": rows,
        "hardware": list(rows[0].hardware) if rows else [],
        "cells": len(cells),
        "measured": sum(cell.basis is Basis.MEASURED for cell in cells),
        "sources": measured.sources,
    }


def _render(name: str, **values: Any) -> str:
    """Render a template of ``reporter/templates``."""
    return _environment().get_template(name).render(**values).strip() + "\n"


@functools.cache
def _environment() -> jinja2.Environment:
    return templates.markdown("hwmatrix.reporter")
