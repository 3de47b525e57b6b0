"""Recorded memory peaks: for a model with the same settings, and for the models that a name refers to."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from hwmatrix.errors import StoreError
from hwmatrix.knowledge.evidence import folded, stamp
from hwmatrix.records import Backend, Dtype, ModelPlan, Size, from_json
from hwmatrix.store.reading import reading, records

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryOnRecord:
    """One measured cell: its model as the run's plan has it, its settings, and its peaks in MiB (None: not measured)."""

    run_id: str
    cell_key: str
    plan: ModelPlan | None
    model: str
    size: Size
    hub_id: str | None
    target: str
    backend: Backend
    dtype: Dtype
    batch: int
    sequence_length: int
    threads: int
    isolation: str | None
    started_at: str
    load_peak_mb: float | None
    peak_mb: float | None
    device_peak_mb: float | None
    parameters: int | None


def memory_on_record(database: Path) -> tuple[MemoryOnRecord, ...]:
    """Every cell of a merged database with a measured peak, the newest first; cells of other packages' backends are left out.

    Raises:
        StoreError: the database cannot be read.
    """
    try:
        state = database.stat()
    except OSError:
        return _read(database, 0, 0)  # raises an error that says what is wrong
    return _read(database, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=4)
def _read(database: Path, modified: int, size: int) -> tuple[MemoryOnRecord, ...]:  # noqa: ARG001 - a changed file is read again
    """Read a database, cached."""
    with reading(database) as connection:
        rows = records(connection, "memory_measured")
    return tuple(memory_of(row | {"started_at": stamp(row["started_at"])}, database) for row in rows if row["backend"] in tuple(Backend))


def named(name: str, found: tuple[MemoryOnRecord, ...]) -> tuple[MemoryOnRecord, ...]:
    """The cells of the model that a name refers to: its name in the run, its hub id, or the last part of that."""
    wanted = folded(name)
    return tuple(
        cell for cell in found if wanted in {folded(cell.model), folded(cell.hub_id), folded((cell.hub_id or "").rpartition("/")[2])}
    )


def same_model(plan: ModelPlan, other: ModelPlan | None) -> bool:
    """Whether two plans are of the same model, settings aside: everything that determines the model's shapes is equal."""
    return other is not None and _identity(plan) == _identity(other)


def _identity(plan: ModelPlan) -> tuple[Any, ...]:
    return plan.architecture, plan.model_class, plan.weights, plan.revision, plan.config


def memory_of(row: Mapping[str, Any], where: Path) -> MemoryOnRecord:
    """One row as a record. ``row`` has the fields of :class:`MemoryOnRecord` as plain values; ``where`` is the file that it is from.

    Raises:
        StoreError: it contains a value that this version does not know, or a model that it cannot read.
    """
    plan = _plan(row["plan"], f"{where}, run {row['run_id']}") if row["plan"] is not None else None
    try:
        kinds = {"size": Size(row["size"]), "backend": Backend(row["backend"]), "dtype": Dtype(row["dtype"])}
    except ValueError as error:
        raise StoreError(f"{where}: {error}", advice="It was written by another version of hwmatrix: use that one.") from error
    return MemoryOnRecord(**(dict(row) | kinds | {"plan": plan}))


@functools.lru_cache(maxsize=2048)
def _plan(text: str, where: str) -> ModelPlan:
    """A model as its run describes it; cached, since many cells share a model."""
    return from_json(ModelPlan, text, where=where)
