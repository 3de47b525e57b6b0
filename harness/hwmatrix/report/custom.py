"""Your own reports: a query, and a template for its rows."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Final

import duckdb
import jinja2

from hwmatrix.basics import templates
from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.report.markdown import markdown_environment
from hwmatrix.report.rows import RunRow, read_run
from hwmatrix.store.reading import query, reading

RUN_PARAMETER: Final = "run_id"
_HTML: Final = frozenset({".html", ".htm", ".xml", ".svg"})
OURS: Final = ("average_time_by_hardware", "best_hardware_by_model_type", "top_memory")
"""Built-in queries, also as examples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CustomRows:
    """The result of a query: the names of its columns, its rows by column, and the run that ``$run_id`` stood for."""

    run: RunRow
    columns: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]


def ask(database: Path, asked: str, *, run_id: str | None = None) -> CustomRows:
    """Run a query: a file with SQL, or the name of a built-in one. It may use ``$run_id``; it cannot change or read files.

    Raises:
        ConfigError: there is no such query, or it fails; the error has the database's message.
        StoreError: the database cannot be read, or holds no such run.
    """
    text, where = _query(asked)
    with reading(database) as connection:
        run = read_run(connection, database, run_id)
        parameters = {RUN_PARAMETER: run.run_id} if f"${RUN_PARAMETER}" in text else None
        try:
            cursor = connection.execute(text, parameters)
            columns = tuple(column[0] for column in cursor.description or ())
            rows = tuple(dict(zip(columns, row, strict=True)) for row in cursor.fetchall())
        except duckdb.Error as error:
            raise ConfigError([_query_problem(where, error)]) from error
    return CustomRows(run=run, columns=columns, rows=rows)


def render(found: CustomRows, template: Path) -> str:
    """Fill a Jinja2 template with ``rows``, ``columns`` and ``run``.

    In a template for HTML (its name ends in .html, .xml or .svg, with or without .j2) text is escaped for HTML; in any other it is
    escaped for Markdown, with the filters of the built-in reports (``code``, ``fence``, ``number``, ...).

    Raises:
        ConfigError: the template cannot be read, or is invalid; with the line.
    """
    try:
        text = template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem(where=str(template), what=f"cannot be read: {error}", hint="name a Jinja2 template")]) from error
    stem = Path(template.name.removesuffix(".j2"))
    ours = markdown_environment()
    chosen = (
        templates.environment(autoescape=True, trim_blocks=False, lstrip_blocks=False, keep_trailing_newline=False)
        if stem.suffix.lower() in _HTML
        else ours
    )
    try:
        return chosen.from_string(text).render(rows=found.rows, columns=found.columns, run=found.run).strip() + "\n"
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError([Problem(where=f"{template}:{error.lineno}", what=f"not a template: {error.message}")]) from error
    except (jinja2.UndefinedError, jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
        hint = f"it has rows (columns: {', '.join(found.columns)}), columns and run"
        raise ConfigError([Problem(where=str(template), what=f"cannot be rendered: {error}", hint=hint)]) from error


def as_json(found: CustomRows) -> str:
    """The rows as JSON. Values that JSON cannot express become text, NaN and infinity null."""
    return json.dumps([_finite(row) for row in found.rows], indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _query_problem(where: str, error: duckdb.Error) -> Problem:
    if "pytz" in str(error):  # DuckDB's client needs that package for values with a time zone
        what, hint = "the query returns a time with a time zone, which is not supported", "convert it: now()::TIMESTAMP"
        return Problem(where=where, what=what, hint=hint)
    hint = "docs/reports.md lists the views; a query cannot read files, and has no parameter other than $run_id"
    return Problem(where=where, what=f"the query fails: {error}", hint=hint)


def _query(asked: str) -> tuple[str, str]:
    path = Path(asked)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), asked
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([Problem(where=asked, what=f"cannot be read: {error}", hint="name a file with SQL")]) from error
    if asked in OURS:
        return query(asked), asked
    hint = f"name a file with SQL, or a built-in query: {near_miss(asked, OURS)}"
    raise ConfigError([Problem(where="--query", what=f"{asked!r} is neither a file nor a built-in query", hint=hint)])
