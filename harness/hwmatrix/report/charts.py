"""Charts of a run as Vega-Lite specifications, shared by the pictures and the page.

Charts of speed and memory leave out emulated and software targets.

Each specification is in ``chart_specs/<name>.vl.json``; this module makes its data. Colors are those of Okabe and Ito
(https://jfly.uni-koeln.de/color/), which color-blind people can distinguish; a shape or a word has the same meaning.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.resources
import json
import logging
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.text import plain, plural
from hwmatrix.records import Dtype, Execution, Level, Size, Status
from hwmatrix.report import grid
from hwmatrix.report.numbers import times
from hwmatrix.report.plots import Chart
from hwmatrix.report.scaling import lines_of
from hwmatrix.report.totals import totals_of
from hwmatrix.report.tradeoffs import precision, short_name, tradeoffs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hwmatrix.records import Isolation
    from hwmatrix.report.history import RunSummary, Trend
    from hwmatrix.report.rows import CellRow, ReportRows

_LOG: Final = logging.getLogger(__name__)
VEGA_LITE: Final = "https://vega.github.io/schema/vega-lite/v6.json"
"""The schema's name. Nothing is loaded from there."""
_WIDEST: Final = 15
"""Columns of the matrix chart beside each other. A page shows more of them too small to read: they continue below."""
LARGEST_MATRIX: Final = 120
"""Models that a heat map shows one by one; larger matrices are shown by family alone."""
LARGEST_LIST: Final = 60
"""Models whose values are shown one by one; more are shown as box plots by family."""
LARGEST_CURVES: Final = 24
"""Models whose curves by position are shown."""
MOST_VALUES: Final = 30_000
"""Values of a chart. With 240,000, the memory of the JavaScript engine is full."""
_NO_VERDICT: Final = "no verdict"
_LABEL: Final = 60
_MARKING: Final = frozenset({"color", "fill", "stroke", "shape", "yOffset"})
"""Channels that distinguish columns."""
_SHAPES: Final = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
_SETTINGS: Final = ("size", "batch", "sequence_length", "threads", "new_tokens")
"""The settings, besides the precision, that distinguish cells of one model on one target."""
_Row = dict[str, Any]


def charts(rows: ReportRows) -> tuple[Chart, ...]:
    """The charts of a run, without empty ones, and without those of more values than can be drawn: each is named in a warning."""
    timed = [cell for cell in rows.cells if _is_timed(cell)]
    made = [
        _matrix(grid.grid_of(rows)),
        _families(rows),
        _latency(timed),
        _speed_up(timed),
        _memory(rows.cells),
        _tradeoffs(rows),
        _scaling(timed),
        _lengths(timed),
        _positions(timed),
    ]
    found = tuple(chart for chart in made if chart is not None and _can_be_drawn(chart))
    order = _in_order(dict.fromkeys(row["column"] for chart in found for row in chart.spec["datasets"]["rows"] if "column" in row))
    for chart in found:
        _unify_marks(chart.spec, chart.spec["datasets"]["rows"], order)
    return found


def _can_be_drawn(chart: Chart) -> bool:
    """Whether a chart has few enough values: the JavaScript engine that draws them ends the whole process if its memory is full."""
    count = len(chart.spec["datasets"]["rows"])
    if count > MOST_VALUES:
        _LOG.warning(
            "the chart %s is left out: it has %s values, and at most %s can be drawn", chart.name, f"{count:,}", f"{MOST_VALUES:,}"
        )
    return count <= MOST_VALUES


def history_charts(runs: Sequence[RunSummary], trends: Sequence[Trend]) -> tuple[Chart, ...]:
    """The charts of a history of at least two runs."""
    names = {run.run_id: run.release or f"{run.created_at:%Y-%m-%d %H:%M}" for run in runs}
    if len(names) < 2:  # noqa: PLR2004 - one run is no trend
        return ()
    states = [
        {"run": names[run.run_id], "state": state, "cells": count, "order": order}
        for run in runs
        for order, (state, count) in enumerate((("pass", run.passed), ("fail", run.failed), (_NO_VERDICT, run.no_verdict)))
    ]
    made = [_chart("status_trend", states, f"Passing, failing and missing cells over {len(names)} runs")]
    moved = [row for trend in trends for row in _trend_rows(trend, names)]
    if moved:
        made.append(_chart("trend", moved, f"Median latencies over {len(names)} runs, relative to the first"))
    return tuple(made)


def _matrix(built: grid.Grid) -> Chart | None:
    lines = [(row, section) for section in built.sections for row in section.rows]
    which = ""
    if len(lines) > LARGEST_MATRIX:
        named = [cell for row, _ in lines for cell in row.cells if cell is not None and cell.matrix_line is not None]
        sizes = {cell.size for cell in named}
        built = grid.build(cell for cell in named if len(sizes) == 1 or cell.size is Size.TINY)
        lines = [(row, section) for section in built.sections for row in section.rows]
        which = "the tiny models" if len(sizes) > 1 else "the models"
        which = f", {which} that matrix.yaml names"
    if not lines or len(lines) > LARGEST_MATRIX:
        return None
    headings = _headings(built)
    shown = [heading for heading in headings if heading is not None]
    wide = math.ceil(len(shown) / math.ceil(len(shown) / _WIDEST)) if shown else 1
    rows = [
        {
            "model": _short(f"{row.model} ({row.settings})" if row.settings else row.model),
            "column": heading,
            "part": shown.index(heading) // wide,
            "state": _state(cell),
            "short": _word(cell),
            "told": grid.label(cell),
        }
        for row, _ in lines
        for heading, cell in zip(headings, row.cells, strict=True)
        if cell is not None and heading is not None
    ]
    models = {row.model for row, _ in lines}
    generating = {row.model for row, _ in lines for cell in row.cells if cell is not None and cell.new_tokens}
    shows = (
        f"{plural(len(models), 'model')}{f', {len(generating)} of them also generating text,' if generating else ''} on "
        f"{plural(len({column.target for column in built.columns}), 'target')} in {plural(len(shown), 'column')}{which}"
    )
    chart = _chart("matrix", rows, shows)
    return dataclasses.replace(chart, spec=_in_parts(chart.spec)) if len(shown) > wide else chart


def _in_parts(spec: dict[str, Any]) -> dict[str, Any]:
    """The same chart, its columns divided among parts below each other."""
    inner = {key: spec[key] for key in ("width", "height", "encoding", "layer")}
    facet = {"row": {"field": "part", "type": "ordinal", "title": None, "header": None}}
    outer = {key: value for key, value in spec.items() if key not in inner}
    return {**outer, "facet": facet, "spec": inner, "resolve": {"scale": {"x": "independent"}}}


def _headings(built: grid.Grid) -> list[str | None]:
    """The heading of each column. Of those that would have the same one, they name the isolation, and columns without a verdict have none.

    For example, cuda may have run on one machine without isolation, while another had no GPU for its container.
    """
    same: defaultdict[str, list[int]] = defaultdict(list)
    for number, column in enumerate(built.columns):
        same[_heading(column)].append(number)
    cells = [[row.cells[number] for section in built.sections for row in section.rows] for number in range(len(built.columns))]
    judged = {number for number, found in enumerate(cells) if any(cell and _state(cell) != _NO_VERDICT for cell in found)}
    headings: list[str | None] = [None] * len(built.columns)
    for heading, numbers in same.items():
        kept = [number for number in numbers if number in judged] or numbers[:1]
        for number in kept:
            headings[number] = heading if len(kept) == 1 else f"{heading} ({built.columns[number].isolation})"
    return headings


def _families(rows: ReportRows) -> Chart | None:
    found = totals_of(rows)
    lines = {line.column.target: line for line in reversed(found.lines)}  # each target's first precision, which most models have
    values = [
        {
            "family": family.value.replace("_", " "),
            "column": plain(target if line.column.dtype == Dtype.FLOAT32 else f"{target} {line.column.dtype}"),
            "passed": total.passed,
            "tested": total.tried,
            "share": total.passed / total.tried,
            "label": f"{total.passed} of {total.tried}",
        }
        for target, line in reversed(lines.items())
        for family, total in zip(found.families, line.by_family, strict=True)
        if total is not None
    ]
    return (
        _chart("families", values, "For each family and target, how many of the models that were tried pass, in one forward pass")
        if values
        else None
    )


def _latency(timed: Sequence[CellRow]) -> Chart | None:
    timed = _few(timed)
    if _are_many(timed):
        return _boxes(
            "latency",
            "Latency on hardware, one forward pass",
            "median of each model in milliseconds (logarithmic)",
            timed,
            lambda cell: cell.p50_ms,
        )
    names = _CellNames(timed)
    rows = [
        {"model": names.model(cell), "column": names.column(cell)}
        | {name: getattr(cell, name) for name in ("p50_ms", "min_ms", "p99_ms", "samples")}
        for cell in timed
    ]
    return _chart("latency", rows, f"Median latency of {plural(len(rows), 'cell')} on hardware") if rows else None


def _speed_up(timed: Sequence[CellRow]) -> Chart | None:
    compared = [cell for cell in timed if cell.speed_up is not None and cell.size is Size.FULL and cell.workload is not None]
    compared = list(_few(compared))
    if _are_many(compared):
        return _boxes(
            "speedup",
            "Speed over cpu, one forward pass",
            "times as fast as cpu in float32 (logarithmic)",
            compared,
            lambda cell: cell.speed_up,
        )
    names = _CellNames(compared)
    rows = [
        {
            "model": names.model(cell),
            "column": names.column(cell),
            "speed_up": cell.speed_up,
            "speed_differs": cell.speed_differs,
        }
        for cell in compared
    ]
    return _chart("speedup", rows, f"Speed of {plural(len(rows), 'workload')} over cpu in float32") if rows else None


def _memory(cells: Sequence[CellRow]) -> Chart | None:
    passed = [cell for cell in cells if cell.status is Status.PASS and cell.execution is Execution.HARDWARE]
    measured = [cell for cell in passed if cell.device_peak_mb is not None or cell.delta_mb is not None]
    measured = list(_few(measured))
    if _are_many(measured):
        return _boxes("memory", "Memory that a cell adds to its process", "MiB (logarithmic)", measured, lambda cell: cell.delta_mb)
    names = _CellNames(measured)
    rows = [
        {
            "model": names.model(cell),
            "column": names.column(cell),
            "memory_mb": cell.device_peak_mb if cell.device_peak_mb is not None else cell.delta_mb,
            "kind": "device peak" if cell.device_peak_mb is not None else "added to the process",
        }
        for cell in measured
    ]
    return _chart("memory", rows, f"Memory of {plural(len(rows), 'cell')}") if rows else None


def _tradeoffs(rows: ReportRows) -> Chart | None:
    """Latency and memory against loss, for each model: of full-size ones if there are any."""
    found = tradeoffs_of(rows)
    shown = [each for each in found if each.candidates[0].cell.size is Size.FULL] or found
    if not shown or len(shown) > LARGEST_CURVES:
        return None
    values: list[_Row] = [
        {
            "panel": f"{of}: {each.title}",
            "value": value,
            "target": _target(candidate.cell),
            "precision": precision(candidate.cell),
            "loss": candidate.loss,
            "ms": candidate.cell.p50_ms,
            "MiB": candidate.memory_mb,
            "unbeaten": not candidate.beaten_by,
            "beaten by": ", ".join(map(short_name, candidate.beaten_by)),
        }
        for each in shown
        for candidate in each.candidates
        for of, value in (("p50 ms", candidate.cell.p50_ms), (each.memory_word, candidate.memory_mb))
    ]
    return _chart("tradeoffs", values, f"Latency, memory and loss of {plural(len(shown), 'comparison')}")


def comparison() -> Chart:
    """The same chart without rows, for a page whose reader chooses the model."""
    return _chart("tradeoffs", [], "Latency, memory and loss of the chosen model, which the table below lists")


def _scaling(timed: Sequence[CellRow]) -> Chart | None:
    """Latency and throughput of cells that differ in only one setting."""
    names = _CellNames(timed)
    values: list[_Row] = [
        {
            "model": _short(cell.model),
            "of": of,
            "column": names.column(cell),
            "setting": line.setting.replace("_", " "),
            "value": line.value(cell),
            "amount": amount,
            "line": f"{number}",
            "settings": grid.describe(cell, line.others),
        }
        for number, line in enumerate(lines_of(timed))
        for cell in line.cells
        for of, amount in (("p50 ms", cell.p50_ms), ("inputs/s", cell.inputs_s), ("tokens/s", cell.tokens_s))
        if amount is not None
    ]
    return _chart("scaling", values, "How latency and throughput change with batch, sequence length and threads") if values else None


def _lengths(timed: Sequence[CellRow]) -> Chart | None:
    """How generation slows down with the length of the prompt."""
    generated = [cell for cell in timed if cell.by_length]
    names = _CellNames(generated)
    rows = [
        {"model": names.model(cell), "column": names.column(cell), "of": of, "tokens": each.prompt_tokens, "ms": ms}
        for cell in generated
        for each in cell.by_length
        for of, ms in (("first token", each.ttft_ms), ("per output token", each.tpot_ms))
        if ms
    ]
    return _chart("lengths", rows, "How the time to the first token, and per output token, grows with the prompt") if rows else None


def _positions(timed: Sequence[CellRow]) -> Chart | None:
    """The time from one token to the next, by the position of the latter: a step or a slope shows what a mean hides."""
    generated = [cell for cell in timed if cell.itl_ms and len(cell.itl_ms) > 1]
    if len({cell.model for cell in generated}) > LARGEST_CURVES:
        return None
    names = _CellNames(generated)
    rows = [
        {"model": names.model(cell), "column": names.column(cell), "position": position, "ms": ms}
        for cell in generated
        for position, ms in enumerate(cell.itl_ms or (), start=2)
        if ms > 0
    ]
    return _chart("positions", rows, "Median time between tokens by position in the output") if rows else None


def _trend_rows(trend: Trend, names: dict[str, str]) -> list[_Row]:
    timed = [
        moment
        for moment in trend.moments
        if moment.status is Status.PASS and moment.p50_ms and moment.execution is Execution.HARDWARE and moment.run_id in names
    ]
    first: dict[str | None, float] = {}
    rows = []
    for moment in timed:
        base = first.setdefault(moment.host, moment.p50_ms or 1.0)
        cell = f"{_short(moment.model)} {moment.size.value} {moment.target} {moment.dtype.value}"
        rows.append(
            {
                "run": names[moment.run_id],
                "cell": cell,
                "column": moment.target,
                "p50_ms": moment.p50_ms,
                "ratio": (moment.p50_ms or 0) / base,
            }
        )
    return rows if len(rows) > 1 else []


def _are_many(cells: Sequence[CellRow]) -> bool:
    return len({(cell.model, cell.size) for cell in cells}) > LARGEST_LIST


def _boxes(name: str, title: str, axis: str, cells: Sequence[CellRow], of: Callable[[CellRow], float | None]) -> Chart:
    """Box plots of very many models by family and target. Values of 0 are left out, because the axis is logarithmic."""
    names = _CellNames(cells)
    rows = [
        {"family": cell.family.value.replace("_", " "), "column": names.column(cell), "value": value}
        for cell in cells
        if (value := of(cell)) is not None and value > 0
    ]
    chart = _chart("boxes", rows, f"Box plots of {plural(len(rows), 'workload')} by family and target")
    spec = chart.spec
    spec["title"]["text"], spec["encoding"]["x"]["title"] = title, axis
    return Chart(name=name, title=title, alt=chart.alt, spec=spec | {"description": f"{title}: {chart.alt}"})


def _few(cells: Sequence[CellRow]) -> Sequence[CellRow]:
    """The cells or, of very many models, those that can be shown together: one forward pass in one size, full size if there is any."""
    if not _are_many(cells):
        return cells
    workloads = [cell for cell in cells if cell.workload == "forward"]
    return [cell for cell in workloads if cell.size is Size.FULL] or workloads


def _is_timed(cell: CellRow) -> bool:
    return cell.status is Status.PASS and cell.execution is Execution.HARDWARE and cell.p50_ms is not None


def _state(cell: CellRow) -> str:
    """What the color says: right or wrong, and how sound. How fast is a number beside it."""
    if cell.level is None:
        return _NO_VERDICT
    if cell.status is Status.PASS and cell.level is not Level.LOW:
        return "right" if cell.level_reason in {None, "slower than cpu"} else "right, with a reservation"
    return "works another way" if cell.level is Level.LOW else "fails"


def _word(cell: CellRow) -> str:
    """The text of a small rectangle: why a cell that passed is not High, the speed over cpu, or the status."""
    if cell.status is Status.PASS:
        return (cell.level_reason or "").partition(",")[0].removesuffix(" than cpu") or (
            times(cell.speed) if cell.speed is not None else "High"
        )
    return "Low" if cell.level is Level.LOW else cell.status.value.replace("_", " ")


def _heading(column: grid.Column) -> str:
    return f"{column.target} {column.dtype}".strip()


def _target(cell: CellRow) -> str:
    return plain(cell.target)


class _CellNames:
    """Names of cells in a chart, with the settings that distinguish them."""

    def __init__(self, among: Sequence[CellRow]) -> None:
        self._columns: defaultdict[str, tuple[set[Dtype], set[Isolation]]] = defaultdict(lambda: (set(), set()))
        self._settings: defaultdict[str, dict[str, set[Any]]] = defaultdict(lambda: {name: set() for name in _SETTINGS})
        for cell in among:
            dtypes, isolations = self._columns[cell.target]
            dtypes.add(cell.dtype)
            isolations.add(cell.column_isolation)
            for name, values in self._settings[cell.model].items():
                values.add(getattr(cell, name))

    def column(self, cell: CellRow) -> str:
        """The target, with precision and isolation if they distinguish its cells."""
        dtypes, isolations = self._columns[cell.target]
        words = [
            cell.target,
            *([cell.dtype.value] if len(dtypes) > 1 else []),
            *([cell.column_isolation.value] if len(isolations) > 1 else []),
        ]
        return plain(" ".join(words))

    def model(self, cell: CellRow) -> str:
        """The model, with the settings that distinguish its cells, on whatever target: cells of one name are comparable."""
        settings = grid.describe(cell, [name for name, values in self._settings[cell.model].items() if len(values) > 1])
        return _short(f"{cell.model} ({settings})" if settings else cell.model)


def _in_order(columns: Iterable[str]) -> list[str]:
    """The columns of all charts: by target, as they first appear, then by precision, which a chart may leave out."""
    named = [(column, column.split()) for column in columns]
    targets = list(dict.fromkeys(words[0] for _, words in named))
    precisions = {dtype.value: place for place, dtype in enumerate(Dtype)}
    return [column for column, _ in sorted(named, key=lambda each: (targets.index(each[1][0]), precisions.get("".join(each[1][1:2]), -1)))]


def _unify_marks(part: Any, rows: Sequence[_Row], order: Sequence[str]) -> None:
    """Give a column the same color, shape and place in every chart of a run."""
    if isinstance(part, list):
        for each in part:
            _unify_marks(each, rows, order)
    elif isinstance(part, dict):
        for name, each in part.items():
            if name in _MARKING and isinstance(each, dict) and each.get("field") == "column":
                present = {row["column"] for row in rows}
                shown = [column for column in order if column in present]
                marks = _SHAPES if name == "shape" else _config()["range"]["category"]
                places = [order.index(column) for column in shown]
                if name == "shape":  # beyond the last color, the same ones come with other shapes
                    places = [place + place // len(marks) for place in places]
                ranged = {} if name == "yOffset" else {"range": [marks[place % len(marks)] for place in places]}
                each["scale"] = {"domain": shown, **ranged}
                each.pop("legend", None)  # channels of the same domain share one legend, which this would remove for all of them
            elif name != "datasets":
                _unify_marks(each, rows, order)


def _short(text: str) -> str:
    text = plain(text)
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def _chart(name: str, rows: list[_Row], alt: str) -> Chart:
    spec = copy.deepcopy(_template(name))
    title = spec["title"]["text"] if isinstance(spec["title"], dict) else spec["title"]
    spec = {"$schema": VEGA_LITE, "description": f"{title}: {alt}", **spec, "config": _config(), "datasets": {"rows": rows}}
    return Chart(name=name, title=title, alt=alt, spec=spec)


@functools.cache
def _template(name: str) -> dict[str, Any]:
    return _read(f"{name}.vl.json")


@functools.cache
def _config() -> dict[str, Any]:
    return _read("config.json")


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((importlib.resources.files("hwmatrix.report") / "chart_specs" / name).read_text(encoding="utf-8"))
    return found
