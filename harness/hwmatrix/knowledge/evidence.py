"""What a merged database contains about models, and how closely each record matches the requested model."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import TYPE_CHECKING, Any, Final

import pydantic

from hwmatrix.errors import StoreError
from hwmatrix.records import Backend, Dtype, Execution, Family, Isolation, Level, ModelPlan, Size, Status, from_json

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Mapping
    from pathlib import Path

NOT_CONVERGED: Final = "did not converge"
DISTURBED: Final = "was disturbed"
_WIDEST: Final = {"AMX": "amx_", "AVX-512": "avx512"}
"""The instructions that make most of the difference between processors, by the beginning of their names."""


class Nearness(enum.StrEnum):
    """How closely an executed model matches the requested one, the closest first."""

    MODEL = "model"
    ARCHITECTURE = "architecture"
    FAMILY = "family"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """One cell on record: what was executed with which settings, and how it ended.

    Times in milliseconds, memory in MiB; ``ci_low_ms`` and ``ci_high_ms`` are the ends of the 95 % interval of ``p50_ms``. ``precision``
    is the one that the runtime says it uses, ``relative_error`` the L2 error against the reference. ``speed_up`` is over the cpu cell
    in float32 of the same run, machine and settings, and ``speed_differs`` says that the difference is significant; ``own_speed_up``
    is over the target's own float32. A cell with ``new_tokens`` generates that many, ``tokens_s`` a second after the first; without,
    it is one forward pass. ``instructions`` are those of the ``processor`` that hwmatrix knows, separated by blanks. ``level`` is None
    if nothing was executed (``unavailable``, ``factory_error``, ``infra_error``). ``plan`` is the JSON of the model in its run's plan.
    Fields that were not measured are None.
    """

    model: str
    hub_id: str | None
    architecture: str
    family: Family
    size: Size
    target: str
    backend: Backend
    dtype: Dtype
    batch: int
    sequence_length: int
    threads: int
    execution: Execution
    status: Status
    level: Level | None
    p50_ms: float | None
    speed_up: float | None
    speed_differs: bool
    peak_mb: float | None
    device_peak_mb: float | None
    parameters: int | None
    error_type: str | None
    message: str | None
    isolation: Isolation | None
    host: str | None
    run_id: str
    started_at: str | None
    precision: Dtype | None = None
    relative_error: float | None = None
    ci_low_ms: float | None = None
    ci_high_ms: float | None = None
    new_tokens: int = 0
    tokens_s: float | None = None
    own_speed_up: float | None = None
    samples: int | None = None
    converged: bool | None = None
    contended: bool | None = None
    processor: str | None = None
    instructions: str | None = None
    cell_key: str | None = None
    load_peak_mb: float | None = None
    plan: str | None = None

    @property
    def model_plan(self) -> ModelPlan | None:
        """The model as its run's plan describes it; None if the run lacks it.

        Raises:
            StoreError: this version cannot read it.
        """
        return None if self.plan is None else _model_plan(self.plan, f"run {self.run_id}")

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why its time is less certain than the number looks."""
        timed = self.p50_ms is not None
        return (
            *([NOT_CONVERGED] if timed and self.converged is False else []),
            *([DISTURBED] if timed and self.contended else []),
        )

    def nearness(self, *, plan: ModelPlan | None, model_name: str, architecture: str | None, family: Family | None) -> Nearness | None:
        """How closely this record matches a model; None if it is unrelated.

        The same model has the same name and, if both have one, the same hub id. Case does not matter.
        """
        if self.is_same_model(plan, model_name):
            return Nearness.MODEL
        if architecture is not None and self.architecture == architecture:
            return Nearness.ARCHITECTURE
        return Nearness.FAMILY if family is not None and self.family is family else None

    def is_same_model(self, plan: ModelPlan | None, model_name: str) -> bool:
        """Whether it is a record of this model."""
        mine = folded(self.hub_id)
        if plan is not None and plan.hub_id and mine:
            return mine == folded(plan.hub_id)
        asked = {folded(model_name)} | ({folded(plan.name), folded(plan.hub_id)} - {""} if plan is not None else set())
        return bool(asked & ({folded(self.model), mine} - {""}))

    @property
    def cell(self) -> tuple[object, ...]:
        """What identifies the cell in reports, on whatever machine it was executed."""
        settings = (self.size, self.dtype, self.batch, self.sequence_length, self.threads, self.new_tokens)
        return (self.model, self.hub_id, self.target, self.backend, self.isolation, *settings)


def with_instructions(processor: str | None, instructions: Iterable[str]) -> str:
    """A processor with its widest instructions: ``Intel(R) Xeon(R) Processor with AMX and AVX-512``."""
    known = tuple(instructions)
    found = [name for name, start in _WIDEST.items() if any(each.startswith(start) for each in known)]
    return " with ".join([processor or "unknown processor", *([" and ".join(found)] if found else [])])


def counted(record: Evidence, speed_up: float | None) -> float | None:
    """A speed-up, only for hardware, and only in full size; None otherwise.

    A tiny model takes microseconds, which are mostly the runtime's overhead.
    """
    return speed_up if record.execution is Execution.HARDWARE and record.size is Size.FULL else None


def read_evidence(database: Path, *, by_start: bool = False) -> tuple[Evidence, ...]:
    """All executions on record in a merged database, the newest run first, or the last started execution. The file is not changed.

    Cells of other packages' backends are left out: there is no advice for them.

    Raises:
        StoreError: it is missing, is not a merged database, is in use by a writer, or is of an unsupported version.
    """
    from hwmatrix.store.reading import reading, records  # imports duckdb, which tables of hardware do not need

    with reading(database) as connection:
        rows = records(connection, "evidence")
    if by_start:
        rows.sort(key=lambda row: str(row["started_at"]), reverse=True)
    return evidence_of((row | {"started_at": stamp(row["started_at"])} for row in rows if row["backend"] in tuple(Backend)), database)


_ROWS: Final = pydantic.TypeAdapter(tuple[Evidence, ...])


def evidence_of(rows: Iterable[Mapping[str, Any]], where: Path) -> tuple[Evidence, ...]:
    """Rows with the fields of :class:`Evidence` as plain values; ``where`` is the file that they are from.

    Raises:
        StoreError: a row contains a value that this version does not know.
    """
    try:
        return _ROWS.validate_python(tuple(rows))
    except pydantic.ValidationError as error:
        wrong = error.errors()[0]
        advice = "Use the hwmatrix that wrote it, or run the models again."
        raise StoreError(
            f"{where}: it has {wrong['input']!r} as {wrong['loc'][-1]}, which this hwmatrix does not know", advice=advice
        ) from error


def newest(records: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Of executions, the newest first, that of each cell on each machine."""
    found: dict[tuple[object, ...], Evidence] = {}
    for record in records:
        found.setdefault((*record.cell, record.host), record)
    return tuple(found.values())


def with_peaks(records: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """The forward passes with a measured peak of memory, the last started first. Wrong numbers take as much memory as right ones."""
    measured = [
        record
        for record in records
        if not record.new_tokens
        and record.status in {Status.PASS, Status.MISMATCH}
        and (record.peak_mb is not None or record.device_peak_mb is not None)
    ]
    return tuple(sorted(measured, key=lambda record: record.started_at or "", reverse=True))


def named(name: str, records: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """The records of the model that a name refers to: its name in the run, its hub id, or the last part of that."""
    wanted = folded(name)
    return tuple(
        record
        for record in records
        if wanted in {folded(record.model), folded(record.hub_id), folded((record.hub_id or "").rpartition("/")[2])}
    )


def same_model(plan: ModelPlan, other: ModelPlan | None) -> bool:
    """Whether two plans are of the same model, settings aside: everything that determines the model's shapes is equal."""
    return other is not None and _shapes(plan) == _shapes(other)


def _shapes(plan: ModelPlan) -> tuple[Any, ...]:
    return plan.architecture, plan.model_class, plan.weights, plan.revision, plan.config


@functools.lru_cache(maxsize=2048)
def _model_plan(text: str, where: str) -> ModelPlan:
    """A model as its run describes it; cached, since many cells share a model."""
    return from_json(ModelPlan, text, where=where)


def stamp(moment: dt.datetime | None) -> str | None:
    """A moment as text, in whole seconds."""
    return None if moment is None else moment.isoformat(timespec="seconds")


@functools.lru_cache(maxsize=4096)
def folded(name: str | None) -> str:
    """A name in the form used for comparison: lower case, with ``-`` for ``_``; empty for None."""
    return (name or "").lower().replace("_", "-")
