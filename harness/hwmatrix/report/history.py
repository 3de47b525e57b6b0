"""The content of a history: its runs, and how single cells changed over time. As records, Markdown and JSON."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.records import Dtype, Execution, Isolation, Level, Size, Status
from hwmatrix.report.rows import build
from hwmatrix.store.reading import narrow, reading, records

if TYPE_CHECKING:
    from pathlib import Path

HISTORY_SCHEMA: Final = "hwmatrix/history/1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run: its names, and how its cells ended."""

    run_id: str
    release: str | None
    created_at: dt.datetime
    hwmatrix_version: str
    commit_id: str | None
    isolation: Isolation
    cells: int
    passed: int
    failed: int
    no_verdict: int
    targets: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moment:
    """One cell in one run. Milliseconds and MiB; None: not measured."""

    run_id: str
    release: str | None
    created_at: dt.datetime
    commit_id: str | None
    hwmatrix_version: str
    model: str
    size: Size
    target: str
    dtype: Dtype
    batch: int
    sequence_length: int
    threads: int
    isolation: Isolation
    execution: Execution
    host: str | None
    status: Status
    level: Level | None
    error_type: str | None
    message: str | None
    on_target: float | None
    p50_ms: float | None
    ci_low_ms: float | None
    ci_high_ms: float | None
    samples: int | None
    contended: bool | None
    speed_up: float | None
    delta_mb: float | None
    peak_mb: float | None
    device_peak_mb: float | None
    image_digest: str | None
    versions: dict[str, str] | None
    new_tokens: int = 0

    @property
    def cell(self) -> tuple[str, ...]:
        """What identifies the same cell in another run."""
        numbers = (self.batch, self.sequence_length, self.threads, self.new_tokens)
        return (self.model, self.target, self.size.value, self.dtype.value, *map(str, numbers), self.isolation.value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trend:
    """One cell over all runs that planned it, oldest first."""

    moments: tuple[Moment, ...]

    @property
    def last(self) -> Moment:
        """The newest moment."""
        return self.moments[-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HistoryDocument:
    """What ``hwmatrix history --format json`` prints: the runs, and the moments of each requested cell."""

    runs: tuple[RunSummary, ...]
    cells: tuple[tuple[Moment, ...], ...]
    schema: str = HISTORY_SCHEMA


def read_runs(database: Path) -> tuple[RunSummary, ...]:
    """The runs of a history (any merged database is one), oldest first.

    Raises:
        StoreError: the database is missing, broken, or of another version.
    """
    rows = _read(database, "history_runs")
    return tuple(build(RunSummary, row | {"targets": tuple(row["targets"] or ()), "created_at": _utc(row)}) for row in rows)


def read_trends(database: Path, *, model: str | None = None, target: str | None = None) -> tuple[Trend, ...]:
    """Every cell of a model, of a target, or of all, over the runs that planned it.

    Raises:
        StoreError: the database is missing, broken, or of another version.
    """
    rows = _read(database, "history_cells", {"model": model, "target": target}, model=model)
    moments = [build(Moment, row | {"created_at": _utc(row)}) for row in rows]
    return tuple(Trend(moments=tuple(group)) for _, group in itertools.groupby(moments, key=lambda moment: moment.cell))


def history_md(runs: tuple[RunSummary, ...], trends: tuple[Trend, ...] = ()) -> str:
    """The text of a history as Markdown."""
    from hwmatrix.report.markdown import markdown_environment

    return markdown_environment().get_template("history.md.j2").render(runs=runs, trends=trends).strip() + "\n"


def history_json(runs: tuple[RunSummary, ...], trends: tuple[Trend, ...] = ()) -> str:
    """The text of a history as JSON: ``runs``, and ``cells`` with their moments."""
    document = dataclasses.asdict(HistoryDocument(runs=runs, cells=tuple(trend.moments for trend in trends)))
    return json.dumps({"schema": document.pop("schema"), **document}, indent=2, ensure_ascii=False, default=_json_value) + "\n"


def _read(database: Path, name: str, parameters: dict[str, str | None] | None = None, *, model: str | None = None) -> list[dict[str, Any]]:
    with reading(database) as connection:
        views = "" if model is None else narrow(connection, model)
        return records(connection, name, parameters, views=views)


def _utc(row: dict[str, Any]) -> dt.datetime:
    created: dt.datetime = row["created_at"]
    return created.replace(tzinfo=dt.UTC)


def _json_value(value: object) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
