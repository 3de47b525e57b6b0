"""The data of a report: the views of a merged database, read once into frozen records.

Nothing is computed here. Times are milliseconds, memory is MiB, timestamps are UTC; None means that it was not measured.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import math
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import StoreError
from hwmatrix.faults.belonging import PRECISION_LOSS
from hwmatrix.knowledge.measured_cell import TRIED_AND_FAILED
from hwmatrix.records import (
    Backend,
    Dtype,
    Execution,
    Family,
    Isolation,
    Level,
    Measured,
    Origin,
    Preparation,
    Severity,
    Size,
    Stage,
    Status,
)
from hwmatrix.records.backends import descriptor_of, names
from hwmatrix.report.contract import LengthEntry
from hwmatrix.store.reading import keeps_latest, query, reading, records

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

Row = TypeVar("Row")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRow:
    """The reported run. For the latest verdicts of many runs: the newest one, under a name that says how many there are."""

    run_id: str
    created_at: dt.datetime
    command: str
    hwmatrix_version: str
    matrix_sha256: str
    commit_id: str | None
    isolation: Isolation


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartRow:
    """One of the runs that a report is made from: how many of its cells this one executed, and on which targets."""

    run_id: str
    created_at: dt.datetime
    command: str
    hwmatrix_version: str
    matrix_sha256: str
    commit_id: str | None
    isolation: Isolation
    cells: int
    targets: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetRow:
    """A target as one shard of the run recorded it. Everything from ``shard_id`` on is None for a target without a shard."""

    name: str
    backend: str
    execution: Execution
    unavailable: str | None
    shard_id: str | None
    isolation: Isolation | None
    image: str | None
    image_digest: str | None
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    host: str | None
    interpreter: str | None
    versions: dict[str, str] | None
    canary_ok: bool | None
    canary_detail: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectionRow:
    """One kind of hardware that a shard looked for."""

    shard_id: str
    hardware_type: str
    available: bool
    name: str | None
    features: dict[str, Any]
    reason: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RejectedRow:
    """A shard that the merge refused."""

    file: str
    reason: str
    rejected_at: dt.datetime


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputRow:
    """One output tensor of a cell."""

    cell_id: str
    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellRow(Measured):
    """One planned cell and its result, with all measurements.

    ``isolation`` is where it was executed (None: it was not), ``column_isolation`` the column it belongs to either way.
    ``speed_up`` is over cpu in float32, in the same run on the same machine with the same settings, and significant only if
    ``speed_differs``. It is inexact if ``speed_contended``: one of the two cells was contended. ``own_speed_up`` is over the target's own
    float32; None unless it is significant and exact. ``level_reason`` says why a cell that passed is Low or Medium. ``workload`` is
    ``forward`` or ``generation``; None: with other settings than the model's smallest, so it is not counted among models.
    """

    cell_key: str
    cell_id: str | None
    model: str
    size: Size
    target: str
    family: Family
    architecture: str
    hub_id: str | None
    dtype: Dtype
    batch: int
    sequence_length: int
    threads: int
    execution: Execution
    backend: str
    position: int
    status: Status
    stage: Stage | None
    level: Level | None
    level_reason: str | None
    workload: Literal["forward", "generation"] | None
    speed_up: float | None
    speed_differs: bool
    speed_contended: bool
    own_speed_up: float | None
    samples: int | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    mean_ms: float | None
    min_ms: float | None
    max_ms: float | None
    ci_low_ms: float | None
    ci_high_ms: float | None
    contended: bool | None
    error_type: str | None
    severity: Severity | None
    message: str | None
    traceback: str | None
    needs: tuple[str, ...] | None
    started_at: dt.datetime | None
    command: str | None
    isolation: Isolation | None
    column_isolation: Isolation
    image_digest: str | None
    versions: dict[str, str] | None
    host: str | None
    new_tokens: int = 0
    adaptation: dict[str, Any] | None = None
    """The change, by setting, that made a failed cell pass: ``{"batch": 4}``."""
    matrix_line: int | None = None
    """The line of matrix.yaml that names its model; None: none does."""
    run_id: str = ""
    """The run that planned it, and executed it if it was executed."""
    older_than: str | None = None
    """The newest run of its target, if this cell is from an earlier day and that run had other versions or another image."""

    @property
    def speed(self) -> float | None:
        """The speed over cpu in float32, if it says anything: of a full-size model, where the difference is real."""
        return self.speed_up if self.size is Size.FULL and self.speed_differs else None

    @property
    def inputs_s(self) -> float | None:
        """Inputs (samples of the batch) per second at the median latency. If the cell generates, with all their tokens."""
        return self.batch / self.p50_ms * 1000 if self.p50_ms else None

    @property
    def tokens_s(self) -> float | None:
        """Tokens of all samples per second at the median latency: those of the text that it is given, or the new ones if it generates.

        None: it was not timed, or it is not known to be given text.
        """
        if not self.p50_ms or "text" not in (self.inputs or ()):
            return None
        return self.batch * (self.new_tokens or self.sequence_length) / self.p50_ms * 1000

    @property
    def prefill_tokens_s(self) -> float | None:
        """Tokens of the prompt per second until the first new token, of all samples of the batch."""
        return self.batch * self.prompt_tokens / self.ttft_ms * 1000 if self.prompt_tokens and self.ttft_ms else None

    @property
    def by_length(self) -> tuple[LengthEntry, ...]:
        """What was measured after prompts of given lengths, ascending; empty if there were none."""
        if not self.lengths or self.lengths_ttft_ms is None:
            return ()
        unknown = (None,) * len(self.lengths)
        others = zip(self.lengths, self.lengths_ttft_ms, self.lengths_tpot_ms or unknown, self.lengths_cache_mb or unknown, strict=True)
        return tuple(LengthEntry(prompt_tokens=n, ttft_ms=ttft, tpot_ms=tpot, cache_mb=cache) for n, ttft, tpot, cache in others)

    @property
    def cache_kb_per_token(self) -> float | None:
        """By how much the cache grows with each token of a prompt, in KiB: from the shortest to the longest. None: not known."""
        if len(self.by_length) <= 1:
            return None
        first, last = self.by_length[0], self.by_length[-1]
        if first.cache_mb is None or last.cache_mb is None:
            return None
        return (last.cache_mb - first.cache_mb) * 1024 / (last.prompt_tokens - first.prompt_tokens)

    @property
    def has_script(self) -> bool:
        """Whether ``hwmatrix generate --reproduce`` writes a script for it here."""
        failed = self.status in TRIED_AND_FAILED - {Status.FACTORY_ERROR} and self.error_type != PRECISION_LOSS
        if not failed or self.backend not in names():
            return False
        descriptor = descriptor_of(self.backend)
        return descriptor.generation_script if self.new_tokens else descriptor.script is not None

    @property
    def decode_tokens_s(self) -> float | None:
        """New tokens per second after the first, of all samples of the batch."""
        return self.batch / self.tpot_ms * 1000 if self.tpot_ms else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """A retry of a failed cell with the change ``adaptation``, and its result. ``cell_key`` is that of the failed cell."""

    cell_key: str
    attempt_key: str
    adaptation: dict[str, Any]
    status: Status
    stage: Stage | None
    dtype: Dtype
    batch: int
    preparation: tuple[Preparation, ...] | None
    replaced: tuple[str, ...] | None
    on_target: float | None
    placement_detail: str | None
    relative_error: float | None
    max_error: float | None
    cosine: float | None
    peak_mb: float | None
    error_type: str | None
    severity: Severity | None
    message: str | None
    started_at: dt.datetime
    command: str
    isolation: Isolation
    image_digest: str | None
    versions: dict[str, str] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelRow:
    """What the plan says about a model in one size. ``weights`` is ``recipe``, ``factory``, ``hub``, or the path of a folder."""

    model: str
    size: Size
    weights: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class NeededOperator:
    """An operator that some cell lacked, and how its own tests ended on the same target, if they were run."""

    target: str
    isolation: Isolation
    name: str
    tests: int
    passed: int
    on_target: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    """The results of queries for the reports for people: one dictionary per row, in fields named after the queries."""

    methods: tuple[dict[str, Any], ...]
    speeds: tuple[dict[str, Any], ...]
    speed_by_architecture: tuple[dict[str, Any], ...]
    optimal: tuple[dict[str, Any], ...]
    choices: tuple[dict[str, Any], ...]
    memory_limits: tuple[dict[str, Any], ...]
    memory_by_target: tuple[dict[str, Any], ...]
    memory_top: tuple[dict[str, Any], ...]
    expected: tuple[dict[str, Any], ...]
    tradeoffs: tuple[dict[str, Any], ...]
    duels: tuple[dict[str, Any], ...]
    doubts: tuple[dict[str, Any], ...]
    totals: tuple[dict[str, Any], ...]
    inputs: tuple[dict[str, Any], ...]
    span: tuple[dict[str, Any], ...]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReportRows:
    """All data of the reports of one run. Compared by identity, so that what several reports need is cached."""

    run: RunRow
    models: tuple[ModelRow, ...]
    targets: tuple[TargetRow, ...]
    cells: tuple[CellRow, ...]
    outputs: tuple[OutputRow, ...]
    detections: tuple[DetectionRow, ...]
    rejected: tuple[RejectedRow, ...]
    operators: tuple[NeededOperator, ...]
    analysis: Analysis
    attempts: tuple[AttemptRow, ...] = ()
    parts: tuple[PartRow, ...] = ()
    """The runs that these rows are from, the newest first."""


def read(database: Path, run_id: str | None = None) -> ReportRows:
    """Read a run from a merged database: the latest if none is named, or the latest verdicts of many runs if the database keeps those.

    The database is not changed.

    Raises:
        StoreError: the file is missing, is not a merged database, or has no such run.
    """
    with reading(database) as connection:
        return _read(connection, database, run_id)


def read_with_stages(
    database: Path, model: str, target: str, run_id: str | None = None
) -> tuple[ReportRows, dict[str, dict[Stage, float]]]:
    """As :func:`read`, and for the cells of one model on one target the milliseconds in each stage, by cell.

    Raises:
        StoreError: the file is missing, is not a merged database, or has no such run.
    """
    stages: dict[str, dict[Stage, float]] = {}
    with reading(database) as connection:
        rows = _read(connection, database, run_id)
        for row in records(connection, "why_stages", {"model": model, "target": target}):
            stages.setdefault(row["cell_id"], {})[Stage(row["stage"])] = row["wall_ms"]
    return rows, stages


def read_run(connection: duckdb.DuckDBPyConnection, database: Path, run_id: str | None = None) -> RunRow:
    """The run of that id, or the latest that had models to run.

    Raises:
        StoreError: the database has no such run.
    """
    runs = _records(connection, "report_run", {"run_id": run_id})
    if not runs:
        wanted = f"no run {run_id!r}" if run_id is not None else "no run"
        raise StoreError(f"{database}: it holds {wanted}", advice="Merge the shards of the run first: hwmatrix merge.")
    return build(RunRow, runs[0])


def scope(connection: duckdb.DuckDBPyConnection, database: Path, run_id: str | None = None) -> tuple[RunRow, tuple[PartRow, ...]]:
    """Make the tables that the queries of reports read: the run of that id, the latest, or the latest verdicts of all.

    Returns:
        The run that is reported, and the runs that its cells are from.

    Raises:
        StoreError: the database has no such run.
    """
    run = read_run(connection, database, run_id)
    together = run_id is None and keeps_latest(connection)
    connection.execute(query("report_runs"), {"run_id": None if together else run.run_id})
    if together:
        order = {"backends": [each.value for each in Backend], "dtypes": [each.value for each in Dtype]}
        connection.execute(query("report_source_latest"), order)
    else:
        connection.execute(query("report_source"), {"run_id": run.run_id})
    parts = tuple(build(PartRow, row | {"targets": tuple(row["targets"] or ())}) for row in _records(connection, "report_parts"))
    if together and len(parts) > 1:
        run = dataclasses.replace(run, run_id=f"latest-of-{len(parts)}-runs-to-{parts[0].run_id}")
    return run, parts


def _read(connection: duckdb.DuckDBPyConnection, database: Path, run_id: str | None) -> ReportRows:
    run, parts = scope(connection, database, run_id)
    connection.execute(query("report_cells"))
    return ReportRows(
        run=run,
        parts=parts,
        models=tuple(build(ModelRow, row) for row in _records(connection, "report_models")),
        targets=tuple(build(TargetRow, row) for row in _records(connection, "report_targets")),
        cells=tuple(build(CellRow, row) for row in _records(connection, "report_all_cells")),
        outputs=tuple(build(OutputRow, row) for row in _records(connection, "report_outputs")),
        detections=tuple(build(DetectionRow, row) for row in _records(connection, "report_detections")),
        rejected=tuple(build(RejectedRow, row) for row in _records(connection, "report_rejected")),
        operators=tuple(build(NeededOperator, row) for row in _records(connection, "report_operators_needed")),
        analysis=Analysis(
            **{
                field.name: tuple(_records(connection, f"report_{field.name}"))  # a field is named after its query
                for field in dataclasses.fields(Analysis)
            }
        ),
        attempts=_attempts(connection),
    )


def _attempts(connection: duckdb.DuckDBPyConnection) -> tuple[AttemptRow, ...]:
    return tuple(build(AttemptRow, row) for row in _records(connection, "report_attempts"))


def _records(connection: duckdb.DuckDBPyConnection, name: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    found = records(connection, name, parameters)
    return [{column: _python_value(value) if type(value) in _FOREIGN else value for column, value in row.items()} for row in found]


_FOREIGN: Final = frozenset({float, dt.datetime})
"""Types that reports represent differently from the database."""


def _python_value(value: Any) -> Any:
    """NaN and infinity, which JSON cannot express, become None; timestamps, which are stored in UTC, get that time zone."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=dt.UTC)
    return value


@functools.lru_cache(maxsize=1024)
def _parsed_json(text: str) -> Any:
    """Parsed JSON, cached because many cells have the same."""
    return read_json(text)


_PARSERS: dict[str, Any] = {
    "isolation": Isolation,
    "column_isolation": Isolation,
    "execution": Execution,
    "size": Size,
    "family": Family,
    "dtype": Dtype,
    "precision": Dtype,
    "status": Status,
    "stage": Stage,
    "level": Level,
    "severity": Severity,
    "origin": Origin,
    "shape": tuple,
    "needs": tuple,
    "instructions": tuple,
    "inputs": tuple,
    "itl_ms": tuple,
    "versions": _parsed_json,
    "features": _parsed_json,
    "adaptation": _parsed_json,
}
"""How a column becomes a field. An output's ``dtype`` is left as it is: it may be any name of its framework."""


@functools.cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def build(kind: type[Row], record: dict[str, Any]) -> Row:
    """Make a record from the columns that are its fields, with closed sets as enums.

    Raises:
        StoreError: the database holds a word that is not in the vocabulary.
    """
    fields = {name: record[name] for name in _names(kind) if name in record}  # type: ignore[arg-type] # a class is hashable
    for name in _PARSERS.keys() & fields.keys():
        value = record[name]
        if value is None or (kind is OutputRow and name == "dtype"):
            continue
        try:
            fields[name] = _PARSERS[name](value)
        except ValueError as error:
            raise StoreError(
                f"the database holds {value!r} as {name}, which this hwmatrix does not know",
                advice="Use the hwmatrix that wrote it, or run again.",
            ) from error
    return kind(**fields)
