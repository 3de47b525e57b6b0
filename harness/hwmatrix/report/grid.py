"""The matrix as a grid: rows of models, columns of targets, short words in the cells."""

# ruff: noqa: RUF001 - typographic signs are meant
from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hwmatrix.records import Dtype, Execution, Family, Isolation, Level, Size, Status, in_words, threads_in_words
from hwmatrix.report.numbers import percent, times
from hwmatrix.report.rows import CellRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwmatrix.report.rows import ReportRows

_LEVEL_SYMBOLS: Final = {Level.HIGH: "✅", Level.MEDIUM: "🟡", Level.LOW: "🟠", Level.NONE: "❌"}
_STATUS_SYMBOLS: Final = {Status.UNAVAILABLE: "➖", Status.NOT_RUN: "⬜", Status.FACTORY_ERROR: "🔧", Status.INFRA_ERROR: "🛑"}
_LEVEL_MEANINGS: Final = {
    Level.HIGH: "agrees with the reference, runs entirely on the target, and was not measured slower than cpu on the same machine",
    Level.MEDIUM: "agrees with the reference, with a reservation that the cell names",
    Level.LOW: "works only with an adaptation (shown after the original failure), with changes to the model, or on another device",
}
_STATUS_MEANINGS: Final = {
    Status.MISMATCH: "ran, and its numbers are wrong",
    Status.UNSUPPORTED: "the target lacks an operator or a feature that the model needs",
    Status.ERROR: "stopped with an error",
    Status.OOM: "needed more memory than its limit",
    Status.TIMEOUT: "did not finish in time",
    Status.CRASH: "the process crashed",
    Status.UNAVAILABLE: "no such hardware, driver or runtime here",
    Status.NOT_RUN: "planned, but there is no result",
    Status.FACTORY_ERROR: "the model could not be made: says nothing about the hardware",
    Status.INFRA_ERROR: "the image, the container or a canary failed: says nothing about the model",
}

_NOT_TIMED: Final = "not timed"
_EXECUTION_MEANINGS: Final = {
    Execution.EMULATED: "ran in an emulator of the hardware: shows what works, not how fast",
    Execution.SOFTWARE: "ran in software on the processor instead of the hardware: its time says nothing about the hardware",
}


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Column:
    """A target in one isolation: host and container rows never share a column.

    ``dtype`` is empty for the grid's usual precision. Other precisions are columns of their own, so that a model has one row. ``chosen``
    are the precisions that the runtime chose, if the choice was its own.
    """

    target: str
    isolation: Isolation
    dtype: str = ""
    chosen: tuple[str, ...] = ()

    @property
    def precision(self) -> str:
        """The precision in words: ``bfloat16 by default`` if the runtime chose it; empty for the grid's usual one."""
        return f"{' and '.join(self.chosen)} by default" if self.chosen else self.dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridRow:
    """One model with one choice of settings; ``settings`` names only those that differ within the grid."""

    model: str
    hub_id: str | None
    settings: str
    cells: tuple[CellRow | None, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """The rows of one family."""

    family: Family
    rows: tuple[GridRow, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LegendLine:
    """A symbol with its word, and what it means."""

    label: str
    meaning: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """The whole matrix. ``common`` are the settings that all its cells share, in words; ``varying`` names the others.

    ``by_row`` are those of them that distinguish rows. ``stand_ins``: some models stand for one of the hub.
    """

    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    common: str
    varying: tuple[str, ...]
    by_row: tuple[str, ...]
    stand_ins: bool
    legend: tuple[LegendLine, ...]


APPROXIMATE: Final = "≈"
"""Marks a pass that the task decided, because the error exceeds the allowed multiple of the noise floor."""
TEXT_PATH: Final = "†"
"""Marks a cell that ran only the text path of a model that takes more than text."""
OLDER: Final = "‡"
"""Marks a cell from before the day of its target's newest run, which had other versions or another image; its date follows."""
_Key = tuple[str, Size, int, int, int, int]


def label(cell: CellRow) -> str:
    """The text of a cell in the matrix: its verdict and marks."""
    marks = [mark for mark, found in ((APPROXIMATE, cell.approximate), (TEXT_PATH, only_text(cell))) if found]
    if cell.older_than is not None and cell.started_at is not None:
        marks.append(f"{OLDER} {cell.started_at:%Y-%m-%d}")
    return " ".join((verdict(cell), *marks))


def only_text(cell: CellRow) -> bool:
    """Whether a cell's verdict covers only the text path of a model that takes more."""
    return cell.level is not None and cell.text_path is True


def verdict(cell: CellRow) -> str:
    """A symbol, the level or status, and a detail."""
    if cell.level is None:
        return f"{_STATUS_SYMBOLS[cell.status]} {word(cell.status)}"
    if cell.level is Level.NONE:
        return f"{_LEVEL_SYMBOLS[cell.level]} {word(cell.status)}"
    detail = _detail(cell)
    return f"{_LEVEL_SYMBOLS[cell.level]} {cell.level.value}" + (f" · {detail}" if detail else "")


def speed(ratio: float | None, *, contended: bool) -> str:
    """A speedup; ``≈`` says that one of the two times was disturbed."""
    about = "≈" if contended and ratio is not None else ""
    return f"{about}{times(ratio)}"


@functools.lru_cache(maxsize=1)
def grid_of(rows: ReportRows) -> Grid:
    """The grid of a run, cached for several reports."""
    return build(rows.cells)


def build(cells: Iterable[CellRow]) -> Grid:
    """Arrange cells into a grid, in the order of matrix.yaml within each family."""
    cells = tuple(cells)
    column_of = _columns(cells)
    targets = list(dict.fromkeys((cell.target, cell.column_isolation) for cell in cells))
    found = dict.fromkeys(column_of[_column_key(cell)] for cell in cells)
    columns = tuple(sorted(found, key=lambda column: targets.index((column.target, column.isolation))))
    places: dict[Family, dict[_Key, dict[Column, CellRow]]] = {}
    for cell in cells:
        places.setdefault(cell.family, {}).setdefault(_row_key(cell), {}).setdefault(column_of[_column_key(cell)], cell)
    common, varying = _settings(cells)
    by_row = tuple(name for name in varying if name != "dtype")
    sections = tuple(
        Section(
            family=family,
            rows=tuple(
                GridRow(model=first.model, hub_id=first.hub_id, settings=describe(first, by_row), cells=tuple(map(place.get, columns)))
                for place in places[family].values()
                for first in (next(iter(place.values())),)
            ),
        )
        for family in Family
        if family in places
    )
    return Grid(
        columns=columns,
        sections=sections,
        common=common,
        varying=varying,
        by_row=by_row,
        stand_ins=any(cell.hub_id for cell in cells),
        legend=_legend(cells),
    )


def _column_key(cell: CellRow) -> tuple[str, Isolation, Dtype]:
    return cell.target, cell.column_isolation, cell.dtype


def _columns(cells: tuple[CellRow, ...]) -> dict[tuple[str, Isolation, Dtype], Column]:
    """The column of every target, isolation and precision. A target that is not here at all needs only one."""
    here = {(cell.target, cell.column_isolation) for cell in cells if cell.status not in {Status.UNAVAILABLE, Status.FACTORY_ERROR}}
    own = _default_dtype(cells)
    chosen: defaultdict[tuple[str, Isolation, Dtype], set[str]] = defaultdict(set)
    for cell in cells:
        chosen[_column_key(cell)] |= {cell.precision.value} if cell.dtype is Dtype.DEFAULT and cell.precision is not None else set()
    return {
        (target, isolation, dtype): Column(
            target=target,
            isolation=isolation,
            dtype=dtype.value if (target, isolation) in here and dtype is not own else "",
            chosen=tuple(sorted(found)),
        )
        for (target, isolation, dtype), found in chosen.items()
    }


def _default_dtype(cells: tuple[CellRow, ...]) -> Dtype | None:
    """The precision of columns that name none: that of the reference, if any cell has it."""
    dtypes = list(dict.fromkeys(cell.dtype for cell in cells))
    return Dtype.FLOAT32 if Dtype.FLOAT32 in dtypes or not dtypes else dtypes[0]


def describe(cell: CellRow, names: Iterable[str]) -> str:
    """Some settings of a cell in words: ``tiny, float32, batch 1, 16 tokens, 1 thread``, and ``generates 8`` if it does."""
    words = {
        "size": cell.size.value,
        "dtype": cell.dtype.value,
        "batch": f"batch {cell.batch}",
        "sequence_length": f"{cell.sequence_length} tokens",
        "new_tokens": f"generates {cell.new_tokens}" if cell.new_tokens else "",
        "threads": threads_in_words(cell.threads),
    }
    return ", ".join(words[name] for name in names if words[name])


def _settings(cells: tuple[CellRow, ...]) -> tuple[str, tuple[str, ...]]:
    """The settings that all cells share, in words, and the names of the others."""
    generated = ("new_tokens",) if any(cell.new_tokens for cell in cells) else ()
    names = ("size", "dtype", "batch", "sequence_length", *generated, "threads")
    varying = tuple(name for name in names if len({getattr(cell, name) for cell in cells}) > 1)
    shared = tuple(name for name in names if name not in varying)
    own = _default_dtype(cells)
    words = [describe(cells[0], shared)] if cells and shared else []
    if "dtype" in varying and own is not None:
        words.append(f"{own.value} unless the column names another precision")
    return ", ".join(words), varying


def _row_key(cell: CellRow) -> _Key:
    return cell.model, cell.size, cell.batch, cell.sequence_length, cell.threads, cell.new_tokens


def word(status: Status) -> str:
    """A status in words."""
    return "out of memory" if status is Status.OOM else status.value.replace("_", " ")


def _detail(cell: CellRow) -> str:
    if cell.level is Level.LOW and cell.status is not Status.PASS:
        return _low_detail(cell)
    words = [cell.level_reason or "", *speeds(cell)]
    if cell.on_target is not None:
        words[0] = words[0].replace("partly placed", f"{percent(cell.on_target)} on the target")
    if _lacks_time(cell):
        words.append(_NOT_TIMED)
    return ", ".join(filter(None, words))


def speeds(cell: CellRow) -> list[str]:
    """How fast a full-size cell is, over cpu in float32 and over its own target's: as far as the differences are real."""
    over_cpu = [f"{speed(cell.speed, contended=cell.speed_contended)} cpu"] if cell.speed is not None else []
    return over_cpu + ([f"{times(cell.own_speed_up)} own"] if cell.own_speed_up is not None and cell.size is Size.FULL else [])


def _low_detail(cell: CellRow) -> str:
    """How a cell failed as planned, and the adaptation that works; or that it fell back to another device."""
    if cell.adaptation is None:
        return word(cell.status)
    return f"{word(cell.status)}; works with {in_words(cell.adaptation, batch=cell.batch, dtype=cell.dtype.value)}"


def _lacks_time(cell: CellRow) -> bool:
    """Whether a cell passed on hardware other than cpu, but has no latency."""
    return cell.status is Status.PASS and cell.execution is Execution.HARDWARE and cell.backend != "cpu" and cell.p50_ms is None


def _legend(cells: tuple[CellRow, ...]) -> tuple[LegendLine, ...]:
    """The lines for what occurs, best first."""
    levels = {cell.level for cell in cells}
    statuses = {cell.status for cell in cells}
    lines = [
        LegendLine(label=f"{_LEVEL_SYMBOLS[level]} {level.value}", meaning=meaning)
        for level, meaning in _LEVEL_MEANINGS.items()
        if level in levels
    ]
    for status, meaning in _STATUS_MEANINGS.items():
        if status in statuses:
            symbol = _STATUS_SYMBOLS.get(status, _LEVEL_SYMBOLS[Level.NONE])
            lines.append(LegendLine(label=f"{symbol} {word(status)}", meaning=meaning))
    shown = {cell.execution for cell in cells if cell.level in _LEVEL_MEANINGS}
    lines += [
        LegendLine(label=execution.value, meaning=meaning) for execution, meaning in _EXECUTION_MEANINGS.items() if execution in shown
    ]
    if any(_lacks_time(cell) for cell in cells):
        lines.append(LegendLine(label=_NOT_TIMED, meaning="there is no latency, and nothing is said about speed"))
    if any(cell.approximate for cell in cells):
        lines.append(LegendLine(label=APPROXIMATE, meaning="approximate: errors beyond the noise floor, but it does its task as well"))
    if any(only_text(cell) for cell in cells):
        lines.append(LegendLine(label=TEXT_PATH, meaning="only the text path of a model that also takes images, sound or video"))
    if any(cell.older_than for cell in cells):
        meaning = "executed on that day, before the newest run of its target, which had other versions or another image"
        lines.append(LegendLine(label=OLDER, meaning=meaning))
    full = [cell for cell in cells if cell.level in {Level.HIGH, Level.MEDIUM} and cell.size is Size.FULL]
    if any(cell.speed is not None for cell in full):
        meaning = "times as fast as cpu in float32, in full size, where the 95 % intervals of the medians do not overlap"
        lines.append(LegendLine(label="1.9× cpu", meaning=meaning))
    if any(cell.own_speed_up is not None for cell in full):
        lines.append(LegendLine(label="1.3× own", meaning="times as fast as the same target in float32"))
    if any(cell.speed is not None and cell.speed_contended for cell in full):
        lines.append(LegendLine(label="≈1.9×", meaning="inexact: one of the two was contended while timed"))
    return tuple(lines)
