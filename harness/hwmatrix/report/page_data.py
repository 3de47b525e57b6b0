"""The data of the page: the matrix and every cell's evidence, by column.

It has no times of emulators, which say nothing about speed.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.text import cut, plain
from hwmatrix.records import Execution, Level, Size, Stage, Status
from hwmatrix.report import adapted, compilation, grid, numbers, origins
from hwmatrix.report.comparing import FAILING
from hwmatrix.report.failures import cell_error
from hwmatrix.report.packing import LONGEST_TEXT, fitting, rounded, table
from hwmatrix.report.tradeoffs import tradeoffs_of
from hwmatrix.report.why import NEAREST, alternatives, ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hwmatrix.report.contract import CellError
    from hwmatrix.report.page_rows import PageRows
    from hwmatrix.report.rows import CellRow, OutputRow, ReportRows

APPROXIMATE: Final = "approximate"
TEXT_PATH: Final = "text path"
"""The page's word for a cell that ran only the text path of a model that takes more. Markdown has a mark instead."""
OLDER: Final = "older run"
"""The page's word for a cell that is older than the newest run of its target; its date is among the doubts."""
PAGE_SCHEMA: Final = "hwmatrix/page/1"
LONGEST_NAME: Final = 200
LONGEST_KEY: Final = 160
_LONGEST_MESSAGE: Final = 4_000
_TRACEBACKS: Final = 2_000_000
_MESSAGES: Final = 1_000_000
"""Characters that all distinct texts of a kind may have together, so that even a run in which every cell fails differently has a page."""
_ORDER: Final = (Level.HIGH, Level.MEDIUM, Level.LOW, *(status for status in Status if status is not Status.PASS))
"""Verdicts, the best first, for sorting a column."""

_PIECED: Final = {"traceback": "\n", "command": " ", "key": "/"}
"""Columns whose texts share most of their pieces: lines, words, parts of a path."""
_SHOWN: Final[dict[str, Callable[[CellRow], Any]]] = {
    "model": lambda cell: name(cell.model),
    "hub": lambda cell: name(cell.hub_id),
    "target": lambda cell: name(cell.target),
    "backend": lambda cell: name(cell.backend),
    "family": lambda cell: cell.family.value,
    "architecture": lambda cell: name(cell.architecture),
    "size": lambda cell: cell.size.value,
    "dtype": lambda cell: cell.dtype.value,
    "precision": lambda cell: cell.precision.value if cell.precision else None,
    "batch": lambda cell: cell.batch,
    "sequence_length": lambda cell: cell.sequence_length,
    "threads": lambda cell: cell.threads,
    "new_tokens": lambda cell: cell.new_tokens,
    "execution": lambda cell: cell.execution.value,
    "status": lambda cell: cell.status.value,
    "level": lambda cell: cell.level.value if cell.level else None,
    "run": lambda cell: name(cell.run_id),
    "label": lambda cell: " · ".join(
        (
            word_of(grid.verdict(cell)),
            *([APPROXIMATE] if cell.approximate else []),
            *([TEXT_PATH] if grid.only_text(cell) else []),
            *([OLDER] if cell.older_than else []),
        )
    ),
    "rank": lambda cell: _ORDER.index(cell.level if cell.level in _ORDER else cell.status),
    "stage": lambda cell: cell.stage.value if cell.stage else None,
    "on_target": lambda cell: rounded(cell.on_target),
    "placement": lambda cell: text(cell.placement_detail),
    "relative_error": lambda cell: rounded(cell.relative_error),
    "max_error": lambda cell: rounded(cell.max_error),
    "cosine": lambda cell: rounded(cell.cosine),
    "loss": lambda cell: rounded(cell.loss),
    "excess": lambda cell: rounded(cell.excess),
    "kernel_error": lambda cell: rounded(cell.kernel_error),
    "kernel_detail": lambda cell: cell.kernel_detail,
    "allowed_error": lambda cell: rounded(cell.allowed_error),
    "ttft_ms": lambda cell: rounded(cell.ttft_ms),
    "tpot_ms": lambda cell: rounded(cell.tpot_ms),
    "ttft_interval": lambda cell: _interval(cell.ttft_low_ms, cell.ttft_high_ms),
    "tpot_interval": lambda cell: _interval(cell.tpot_low_ms, cell.tpot_high_ms),
    "itl_ms": lambda cell: None if cell.itl_ms is None else [rounded(value) for value in cell.itl_ms],
    "by_position": lambda cell: text(numbers.by_position(cell.itl_change_ms, cell.itl_change_at, cell.new_tokens)),
    "prompt_tokens": lambda cell: cell.prompt_tokens,
    "prefill_tokens_s": lambda cell: rounded(cell.prefill_tokens_s),
    "decode_tokens_s": lambda cell: rounded(cell.decode_tokens_s),
    "by_length": lambda cell: [[each.prompt_tokens, rounded(each.ttft_ms), rounded(each.tpot_ms)] for each in cell.by_length] or None,
    "cache_mb": lambda cell: rounded(cell.cache_mb),
    "cache_kb_per_token": lambda cell: rounded(cell.cache_kb_per_token),
    "growth_kb": lambda cell: rounded(cell.growth_kb),
    "cache_error": lambda cell: rounded(cell.cache_error),
    "fails_at": lambda cell: text(origins.generation(cell)),
    "task": lambda cell: name(cell.quality_metric.replace("_", " ")) if cell.quality_metric else None,
    "quality": lambda cell: rounded(cell.quality),
    "quality_low": lambda cell: rounded(cell.quality_low),
    "quality_high": lambda cell: rounded(cell.quality_high),
    "quality_reference": lambda cell: rounded(cell.quality_reference),
    "agreement": lambda cell: rounded(cell.quality_agreement),
    "held_out": lambda cell: cell.quality_inputs,
    "held_out_error": lambda cell: rounded(cell.quality_error),
    "held_out_kernel_error": lambda cell: rounded(cell.quality_kernel_error),
    "task_detail": lambda cell: text(cell.quality_detail),
    "method": lambda cell: text(cell.method),
    "preparation": lambda cell: name(", ".join(cell.preparation)) if cell.preparation else None,
    "replaced": lambda cell: name(", ".join(cell.replaced)) if cell.replaced else None,
    "compiled": lambda cell: text(compilation.sentence(cell)),
    "breaks": lambda cell: text("\n".join(cell.break_reasons)) if cell.break_reasons else None,
    "load_ms": lambda cell: rounded(cell.load_ms),
    "prepare_ms": lambda cell: rounded(cell.prepare_ms),
    "peak_mb": lambda cell: rounded(cell.peak_mb),
    "run_peak_mb": lambda cell: rounded(cell.run_peak_mb),
    "delta_mb": lambda cell: rounded(cell.delta_mb),
    "device_peak_mb": lambda cell: rounded(cell.device_peak_mb),
    "memory_of": lambda cell: text(cell.memory_detail),
    "parameters": lambda cell: cell.parameters,
    "inputs": lambda cell: name(", ".join(cell.inputs)) if cell.inputs else None,
    "path": lambda cell: None if cell.text_path is None else "text path only" if cell.text_path else "all inputs",
    "begins": lambda cell: text(origins.sentence(cell)),
    "needs": lambda cell: text(", ".join(cell.needs)) if cell.needs else None,
    "started_s": lambda cell: int(cell.started_at.timestamp()) if cell.started_at else None,
    "command": lambda cell: text(cell.command),
    "script": lambda cell: cell.has_script,
    "isolation": lambda cell: cell.column_isolation.value,
    "executed": lambda cell: cell.isolation is not None,
    "image_digest": lambda cell: text(cell.image_digest),
    "versions": lambda cell: text(", ".join(f"{package} {version}" for package, version in sorted((cell.versions or {}).items()))),
    "host": lambda cell: text(cell.host),
}
"""The fields of every cell on the page."""

_TIMES: Final = ("first_ms", "p50_ms", "p90_ms", "p99_ms", "mean_ms", "min_ms", "max_ms", "ci_low_ms", "ci_high_ms")
_TIMED: Final[dict[str, Callable[[CellRow], Any]]] = {
    "samples": lambda cell: cell.samples,
    "contended": lambda cell: cell.contended,
    "converged": lambda cell: cell.converged,
    "speed_up": lambda cell: rounded(cell.speed_up) if cell.size is Size.FULL else None,
    "own_speed_up": lambda cell: rounded(cell.own_speed_up) if cell.size is Size.FULL else None,
    "speed_differs": lambda cell: cell.speed_differs,
    "speed_contended": lambda cell: cell.speed_contended,
}
"""Further fields, which are None for emulated cells."""


def page_data(rows: ReportRows, details: PageRows) -> dict[str, Any]:
    """The document that the page's scripts read: ``columns``, ``rows`` (with the indices of their cells) and ``cells``, as tables."""
    built = grid.grid_of(rows)
    return {
        "schema": PAGE_SCHEMA,
        "run": rows.run.run_id,
        "stages": [stage.value for stage in Stage],
        "columns": _columns(built),
        "rows": _rows(built, rows.cells),
        "cells": table(_cells(rows, details), pieced=_PIECED),
        "meanings": {word_of(line.label): line.meaning for line in built.legend},
        "tradeoffs": _tradeoffs(rows),
        "words": {status.value: grid.word(status) for status in Status},
    }


def key_of(cell: CellRow) -> str:
    """A cell's name in links: its key, or a digest if the key is too long or has invisible characters."""
    short = len(cell.cell_key) <= LONGEST_KEY and plain(cell.cell_key) == cell.cell_key
    return cell.cell_key if short else hashlib.sha256(cell.cell_key.encode("utf-8", "replace")).hexdigest()[:24]


def name(value: str | None) -> str | None:
    """A name on one line, cut if it is too long."""
    if value is None:
        return None
    line = plain(value)
    return line if len(line) <= LONGEST_NAME else f"{line[: LONGEST_NAME - 1]}…"


def text(value: str | None) -> str | None:
    """A text, cut if it is too long; None if empty."""
    return cut(value, _LONGEST_MESSAGE) if value else None


def word_of(label: str) -> str:
    """A label without its symbol: the page draws a shape instead."""
    symbol, _, rest = label.partition(" ")
    return rest if rest and not symbol[0].isalnum() else label


def _columns(built: grid.Grid) -> list[dict[str, Any]]:
    """The grid's columns, each with its execution if all its cells have the same."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for column in built.columns:
        places[column.target].add(column.isolation.value)
    made = []
    for number, column in enumerate(built.columns):
        cells = [cell for section in built.sections for row in section.rows if (cell := row.cells[number]) is not None]
        words = [column.precision, column.isolation.value if len(places[column.target]) > 1 else ""]
        executions = {cell.execution for cell in cells}
        made.append(
            {
                "id": ".".join(filter(None, (name(column.target), column.isolation.value, column.dtype))),
                "target": name(column.target),
                "detail": ", ".join(filter(None, words)),
                "execution": executions.pop().value if len(executions) == 1 else None,
                "tried": any(cell.level is not None for cell in cells),
            }
        )
    return made


def _rows(built: grid.Grid, cells: Sequence[CellRow]) -> dict[str, Any]:
    place = {id(cell): number for number, cell in enumerate(cells)}
    lines = [(row, next(cell for cell in row.cells if cell is not None)) for section in built.sections for row in section.rows]
    return {
        **table(
            {
                "model": [name(row.model) for row, _ in lines],
                "hub": [name(row.hub_id) for row, _ in lines],
                "settings": [row.settings for row, _ in lines],
                "family": [cell.family.value for _, cell in lines],
                "architecture": [name(cell.architecture) for _, cell in lines],
                "size": [cell.size.value for _, cell in lines],
                "parameters": [_parameters(row.cells) for row, _ in lines],
            }
        ),
        "cells": [[-1 if cell is None else place[id(cell)] for cell in row.cells] for row, _ in lines],
    }


def _parameters(cells: Iterable[CellRow | None]) -> int | None:
    return next((cell.parameters for cell in cells if cell is not None and cell.parameters is not None), None)


def _cells(rows: ReportRows, details: PageRows) -> dict[str, list[Any]]:
    cells = rows.cells
    near = _NearestWorking(cells)
    timed = [None if cell.execution is Execution.EMULATED else cell for cell in cells]
    return {
        "key": [key_of(cell) for cell in cells],
        **{field: [show(cell) for cell in cells] for field, show in _SHOWN.items()},
        **{field: [cell and rounded(getattr(cell, field)) for cell in timed] for field in _TIMES},
        **{field: [cell and show(cell) for cell in timed] for field, show in _TIMED.items()},
        **_errors([cell_error(cell) for cell in cells]),
        "traceback": fitting([cell.traceback for cell in cells], LONGEST_TEXT, _TRACEBACKS),
        "outputs": _outputs(cells, rows.outputs),
        "steps": [_steps(cell, details.stages) for cell in cells],
        "ended": [end.value if (end := ended(cell)) is not None else None for cell in cells],
        "quantiles": [_quantiles(cell, details.quantiles) for cell in cells],
        "near": [near.of(cell) if cell.status in FAILING else None for cell in cells],
        "doubts": _doubts(cells, rows.analysis.doubts),
        "adapted": _adapted(rows),
    }


def _errors(errors: Sequence[CellError | None]) -> dict[str, list[Any]]:
    return {
        "error_type": [text(error.type) if error else None for error in errors],
        "severity": [error.severity.value if error else None for error in errors],
        "message": fitting([error.message if error else None for error in errors], _LONGEST_MESSAGE, _MESSAGES),
        "advice": ["\n".join(error.recommendations) if error else None for error in errors],
    }


def _tradeoffs(rows: ReportRows) -> list[dict[str, Any]]:
    """Comparisons with the indices of their cells: the unbeaten ones first, and for each those that beat it."""
    place = {id(cell): number for number, cell in enumerate(rows.cells)}
    return [
        {
            "title": name(each.title),
            "memory_word": each.memory_word,
            "cells": [place[id(candidate.cell)] for candidate in each.candidates],
            "memory": [rounded(candidate.memory_mb) for candidate in each.candidates],
            "loss": [rounded(candidate.loss) for candidate in each.candidates],
            "beaten_by": [[place[id(cell)] for cell in candidate.beaten_by] for candidate in each.candidates],
            "left_out": [[place[id(cell)], reason] for cell, reason in each.left_out],
        }
        for each in tradeoffs_of(rows)
    ]


def _outputs(cells: Iterable[CellRow], outputs: Iterable[OutputRow]) -> list[str | None]:
    """The outputs of each cell, one per line: ``logits [1, 16, 512] float32``."""
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for output in outputs:
        lines[output.cell_id].append(plain(f"{output.name} {list(output.shape)} {output.dtype}"))
    return [text("\n".join(lines.get(cell.cell_id or "", ()))) for cell in cells]


def _adapted(rows: ReportRows) -> list[str | None]:
    """The retries of each failed cell, one per line."""
    attempts = adapted.by_cell(rows)
    return [text("\n".join(plain(adapted.sentence(cell, attempt)) for attempt in attempts.get(cell.cell_key, ()))) for cell in rows.cells]


def _doubts(cells: Iterable[CellRow], doubts: Iterable[Mapping[str, Any]]) -> list[str | None]:
    """The reasons for low confidence in each cell, one per line."""
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for row in doubts:
        lines[row["cell_key"]].append(plain(f"{row['doubt']}: {row['detail']}"))
    return [text("\n".join(lines.get(cell.cell_key, ()))) for cell in cells]


def _interval(low: float | None, high: float | None) -> list[float | int | None] | None:
    return None if low is None or high is None else [rounded(low), rounded(high)]


def _steps(cell: CellRow, stages: Mapping[str, Mapping[Stage, float]]) -> list[float | int | None] | None:
    """Milliseconds by stage, without an emulator's times for running and measuring."""
    if cell.stage is None or cell.cell_id is None or cell.cell_id not in stages:
        return None
    silent = {Stage.RUN, Stage.PREFILL, Stage.DECODE, Stage.MEASURE} if cell.execution is Execution.EMULATED else set()
    entered = stages[cell.cell_id]
    return [None if stage in silent else rounded(entered.get(stage)) for stage in Stage]


def _quantiles(cell: CellRow, quantiles: Mapping[str, Sequence[float]]) -> list[float | int | None] | None:
    if cell.samples is None or cell.cell_id is None or cell.cell_id not in quantiles:
        return None
    return [rounded(value) for value in quantiles[cell.cell_id]]


class _NearestWorking:
    """The nearest configurations that work, for many cells: compares only those that can be among the first."""

    def __init__(self, cells: Sequence[CellRow]) -> None:
        self._places = {id(cell): number for number, cell in enumerate(cells)}
        self._by_model: defaultdict[str, list[CellRow]] = defaultdict(list)
        self._alike: defaultdict[tuple[str, str], list[CellRow]] = defaultdict(list)
        passed = [cell for cell in cells if cell.status is Status.PASS]
        for cell in passed:
            self._by_model[cell.model].append(cell)
        for cell in sorted(passed, key=lambda cell: (cell.execution is not Execution.HARDWARE, cell.p50_ms or float("inf"))):
            for kind in (f"architecture {cell.architecture}", f"family {cell.family.value}"):
                if len(group := self._alike[cell.target, kind]) < NEAREST:
                    group.append(cell)

    def of(self, asked: CellRow) -> list[list[Any]]:
        """Pairs of a cell's index and how it differs from the requested one."""
        kinds = (f"architecture {asked.architecture}", f"family {asked.family.value}")
        found = [*self._by_model[asked.model], *(cell for kind in kinds for cell in self._alike[asked.target, kind])]
        among = list({id(cell): cell for cell in found}.values())
        return [[self._places[id(each.cell)], plain(each.differs)[:LONGEST_NAME]] for each in alternatives(among, asked)]
