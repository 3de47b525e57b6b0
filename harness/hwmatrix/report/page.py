"""index.html: the whole run as one page that opens from disk, makes no requests, and runs only its own scripts.

``page_files`` has its parts: templates for static content, scripts for the matrix and a cell's evidence, and styles. The scripts are
classic scripts, concatenated in the order of :data:`SCRIPTS`; each defines one name. The page's content security policy has the digest
of each script, so that no other script can run.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from hwmatrix.basics.escape import short
from hwmatrix.basics.templates import environment
from hwmatrix.basics.text import plain, plural
from hwmatrix.records import Level, Severity, Size, Status, threads_in_words
from hwmatrix.report import grid, numbers
from hwmatrix.report.causes import causes
from hwmatrix.report.charts import comparison
from hwmatrix.report.drawing import chart_library
from hwmatrix.report.expected import expected_document
from hwmatrix.report.failures import failures
from hwmatrix.report.groups import Scope, blocked_of, groups_of
from hwmatrix.report.markdown import NOT_TIMED, facts_of, findings_of, machines_of, statuses_by_target
from hwmatrix.report.missing import missing
from hwmatrix.report.packing import digest, listed, script_json, script_text
from hwmatrix.report.page_data import APPROXIMATE, OLDER, TEXT_PATH, key_of, name, page_data, word_of
from hwmatrix.report.totals import totals_of
from hwmatrix.report.tradeoffs import tradeoffs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import jinja2

    from hwmatrix.report.expected_contract import PriorEntry
    from hwmatrix.report.groups import FailureGroup
    from hwmatrix.report.page_history import PageHistory
    from hwmatrix.report.page_rows import PageRows
    from hwmatrix.report.plots import Chart
    from hwmatrix.report.rows import ReportRows

_CAUSES: Final = 8
"""How many causes of errors the overview shows."""
EARLY: Final = ("theme.js",)
"""Runs before anything is drawn."""
SCRIPTS: Final = (
    *(
        "dom.js",
        "text.js",
        "data.js",
        "links.js",
        "selection.js",
        "filters.js",
        "marks.js",
        "grid.js",
        "tooltip.js",
        "charts.js",
        "tradeoffs.js",
    ),
    *("funnel.js", "distribution.js", "evidence.js", "cell_lists.js", "examples.js", "printing.js", "main.js"),
)
STYLES: Final = ("base.css", "views.css", "grid.css", "evidence.css", "print.css")
VIEWS: Final = {
    "overview": ("Overview", "Overview"),
    "matrix": ("Matrix", "Matrix"),
    "performance": ("Performance", "Performance"),
    "memory": ("Memory", "Memory"),
    "tradeoffs": ("Trade-offs", "Speed, memory and loss"),
    "errors": ("Errors", "Errors by cause"),
    "hardware": ("Hardware", "Hardware and packages"),
    "expected": ("Expected", "Expected against measured"),
    "history": ("History", "History"),
}
"""The page's views: name in links, tab label, and title."""


def index_html(rows: ReportRows, details: PageRows, *, charts: Sequence[Chart], history: PageHistory, cache: Path | None) -> str:
    """The text of index.html. ``cache`` is the cache folder; None: the drawing library is not cached.

    Raises:
        StoreError: the drawing library cannot be bundled.
    """
    early, main, drawing = _concatenated(EARLY), _concatenated(SCRIPTS), chart_library(cache)
    drawn = {chart.name: chart for chart in (*charts, *history.charts)}
    if tradeoffs_of(rows):
        drawn["tradeoffs"] = comparison()  # its scripts fill it from the table of cells
    text = (
        _environment()
        .get_template("page.html.j2")
        .render(
            **_template_values(rows, details),
            history=history,
            drawn=drawn,
            views=VIEWS,
            policy=_policy(early, main, drawing),
            styles=Markup("\n".join(map(_file, STYLES))),  # noqa: S704 - our own files
            early=Markup(early),  # noqa: S704 - our own files
            main=Markup(main),  # noqa: S704 - our own files
            drawing=Markup(drawing),  # noqa: S704 - escaped so that nothing in it ends the script
            data=Markup(script_json(page_data(rows, details))),  # noqa: S704 - escaped so that nothing in it ends the script
            specs=Markup(script_json(_specs(drawn))),  # noqa: S704 - as above
        )
    )
    return text.strip() + "\n"


def _template_values(rows: ReportRows, details: PageRows) -> dict[str, Any]:
    """The variables of the templates."""
    counts = Counter(cell.status for cell in rows.cells)
    built = grid.grid_of(rows)
    found = failures(rows)
    told = causes(found)
    scopes: dict[Scope, list[FailureGroup]] = {}
    for group in groups_of(rows):
        scopes.setdefault(group.scope, []).append(group)
    expected = expected_document(rows)
    titles = tuple(dict.fromkeys(prior.document for each in expected.expectations for prior in each.priors))
    places = {cell.cell_key: number for number, cell in enumerate(rows.cells)}
    return {
        "run": rows.run,
        "parts": rows.parts,
        "total": len(rows.cells),
        "models": totals_of(rows).models,
        "targets": len({cell.target for cell in rows.cells}),
        "counts": {status: counts[status] for status in Status if counts[status]},
        "by_target": statuses_by_target(rows),
        "grid": built,
        "legend": [_legend_line(line) for line in built.legend],
        "totals": totals_of(rows),
        "blocked": blocked_of(groups_of(rows)),
        "apart": [(scope, members) for scope, members in scopes.items() if scope is not Scope.TARGET],
        "timed": any(cell.p50_ms is not None for cell in rows.cells),
        "not_timed": NOT_TIMED,
        "machines": machines_of(rows),
        "findings": findings_of(rows),
        "packages": details.packages,
        "analysis": rows.analysis,
        "tradeoffs": tradeoffs_of(rows),
        "only_tiny": all(cell.size is Size.TINY for cell in rows.cells),
        "expected": expected,
        "errors": len(found),
        "severe": sum(failure.entry.severity is not Severity.INFO for failure in found),
        "causes": told,
        "obstacles": sorted(scopes.get(Scope.TARGET, ()), key=lambda group: -len(group.models))[:_CAUSES],
        "missing": missing(rows),
        "contended": sum(cell.contended is True for cell in rows.cells),
        "places": lambda keys: listed(places[key] for key in keys if key in places),
        "named": {cell.cell_key: (key_of(cell), f"{name(cell.model)} on {name(cell.target)}") for cell in rows.cells},
        "said": functools.partial(_prior_groups, titles),
        "titles": titles,
    }


def _prior_groups(titles: Sequence[str], priors: Iterable[PriorEntry]) -> list[tuple[str, str, str]]:
    """The documents' expectations, equal ones merged: ``("Low, refused", "1, 2", "better than expected")``."""
    numbers: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for prior in priors:
        words = f"{prior.expectation.value}{', refused' if prior.refused else ''}"
        numbers[words, prior.verdict.value if prior.verdict else ""].append(str(titles.index(prior.document) + 1))
    return [(words, ", ".join(documents), verdict) for (words, verdict), documents in numbers.items()]


def _legend_line(line: grid.LegendLine) -> tuple[str | None, str, str]:
    """The shape of a line of the legend, its word, and what it means."""
    shown = {grid.APPROXIMATE: APPROXIMATE, grid.TEXT_PATH: TEXT_PATH, grid.OLDER: OLDER}.get(line.label) or word_of(line.label)
    return _mark_of(line.label), shown, line.meaning


def _mark_of(label: str) -> str | None:
    """The shape of a line of the legend; None for a line that explains a number."""
    word = word_of(label)
    if word in {level.value for level in Level}:
        return word
    status = next((status for status in Status if grid.word(status) == word), None)
    if status is None:
        return None
    return status.value if status in {Status.UNAVAILABLE, Status.NOT_RUN, Status.FACTORY_ERROR, Status.INFRA_ERROR} else Level.NONE.value


def _specs(drawn: dict[str, Chart]) -> dict[str, Any]:
    """The specifications by name, with their common config once."""
    specs = {name: {key: value for key, value in chart.spec.items() if key != "config"} for name, chart in drawn.items()}
    return {"config": next((chart.spec["config"] for chart in drawn.values()), {}), "charts": specs}


def _policy(*scripts: str) -> str:
    """The content security policy: the page loads and sends nothing, and runs only these scripts."""
    return (
        f"default-src 'none'; script-src {' '.join(map(digest, scripts))}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )


@functools.cache
def _concatenated(names: Iterable[str]) -> str:
    files = "\n".join(f"// {name}\n{_file(name)}" for name in names)
    return script_text(f'"use strict";\n{files}')


@functools.cache
def _file(name: str) -> str:
    return (importlib.resources.files("hwmatrix.report") / "page_files" / name).read_text(encoding="utf-8")


def _finalize(value: Any) -> Any:
    """What templates print: on one line, without invisible characters, limited in length. Autoescape does the rest."""
    if isinstance(value, Markup):
        return value
    return short(value, 2_000)


@functools.cache
def _environment() -> jinja2.Environment:
    filters = {
        "plain": plain,
        "name": name,
        "short": short,
        "facts": facts_of,
        "threads": threads_in_words,
        "number": numbers.number,
        "whole": numbers.whole,
        "times": numbers.times,
        "percent": numbers.percent,
        "scientific": numbers.scientific,
        "speed": grid.speed,
        "word": grid.word,
        "json": json.dumps,
    }
    functions = {
        "plural": plural,
        "interval": numbers.interval,
        "over_cpu": numbers.over_cpu,
        "over_own": numbers.over_own,
        "describe": grid.describe,
    }
    return environment(
        "hwmatrix.report",
        "page_files",
        autoescape=True,
        filters=filters,
        functions=functions,
        finalize=_finalize,
        keep_trailing_newline=False,
    )
