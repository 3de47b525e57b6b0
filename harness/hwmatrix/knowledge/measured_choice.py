"""The best of the measured cells of a model under limits of memory, loss and latency: which hardware, in which precision.

Only cells with the same settings, in one isolation on one machine, are compared. Nothing is estimated.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import Problem
from hwmatrix.knowledge.evidence import Evidence, Nearness
from hwmatrix.knowledge.requirements import memory_kind
from hwmatrix.records import Dtype, Execution, Isolation, Size, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hwmatrix.records import Backend, ModelPlan


_WHOLE: Final = 100.0
"""Milliseconds from which no decimals are shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """The user's limits: MiB of memory, loss, milliseconds of latency; None: no limit."""

    memory_mb: float | None = None
    loss: float | None = None
    latency_ms: float | None = None

    def problems(self) -> list[Problem]:
        """What is wrong with the limits, named as options."""
        asked = (
            ("--memory", self.memory_mb, "amount of memory", "1 or more"),
            ("--max-loss", self.loss, "loss", "0 or more: 0.01 allows a relative error of 1 %"),
            ("--max-latency", self.latency_ms, "latency", "milliseconds above 0"),
        )
        return [
            Problem(where=option, what=f"{value:g} is not a valid {meaning}", hint=f"give {valid}")
            for option, value, meaning, valid in asked
            if value is not None and not (value > 0 or (value == 0 and option == "--max-loss"))
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """A cell that passed. ``memory_mb`` is the peak of the device's memory for GPUs, else of the process.

    ``loss`` is the relative error against the reference, 0 for float32. Values that were not measured are None. ``against`` says why it
    cannot be chosen: the limits that it exceeds, what was not measured, or that it is not hardware; empty: it can.
    """

    record: Evidence
    memory_mb: float | None
    loss: float | None
    against: tuple[str, ...]

    @property
    def precision(self) -> str:
        """The precision, with the runtime's choice if it was free: ``default (bfloat16)``."""
        record = self.record
        chosen = record.precision if record.dtype is Dtype.DEFAULT else None
        return f"{record.dtype.value} ({chosen.value})" if chosen is not None else record.dtype.value


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredChoice:
    """The cells of a model with the same settings on one machine, the best first. ``best`` is None if none can be chosen.

    The best is the fastest of those within the limits; of several that cannot be told apart from it, because their 95 % intervals overlap,
    the one that takes the least memory.
    """

    size: Size
    batch: int
    sequence_length: int
    threads: int
    isolation: Isolation | None
    host: str | None
    cells: tuple[Measured, ...]

    @property
    def best(self) -> Measured | None:
        """The cell to choose."""
        first = self.cells[0]
        return None if first.against else first


def of_model(records: Iterable[Evidence], plan: ModelPlan | None, model_name: str) -> list[Evidence]:
    """The records of one model."""
    return [
        record for record in records if record.nearness(plan=plan, model_name=model_name, architecture=None, family=None) is Nearness.MODEL
    ]


def choices(records: Iterable[Evidence], bounds: Bounds) -> tuple[MeasuredChoice, ...]:
    """For each group of comparable cells, which is best. Cells that failed are left out.

    Args:
        records: the cells of one model, the newest first.
        bounds: the limits.
    """
    groups: dict[tuple[Size, int, int, int, Isolation | None, str | None], dict[tuple[str, Dtype], Evidence]] = {}
    for record in records:
        settings = (record.size, record.batch, record.sequence_length, record.threads, record.isolation, record.host)
        groups.setdefault(settings, {}).setdefault((record.target, record.dtype), record)
    made = []
    for (size, batch, length, threads, isolation, host), found in groups.items():
        passed = [_measured(record, bounds) for record in found.values() if record.status is Status.PASS]
        if passed:
            made.append(
                MeasuredChoice(
                    size=size,
                    batch=batch,
                    sequence_length=length,
                    threads=threads,
                    isolation=isolation,
                    host=host,
                    cells=tuple(_ranked(passed)),
                )
            )
    return tuple(made)


def best_on(found: Iterable[MeasuredChoice], hardware: Backend) -> Measured | None:
    """The best cell of one kind of hardware, on the first machine that has one; None if none can be chosen."""
    return next((each for choice in found for each in choice.cells if each.record.backend is hardware and not each.against), None)


def loss_of(record: Evidence) -> float | None:
    """The relative error of a cell against the reference; 0 if it computed in float32, whose error comes from the order of sums."""
    computed = record.precision or record.dtype
    if record.dtype in {Dtype.FLOAT32, Dtype.DEFAULT} and computed is Dtype.FLOAT32:
        return 0.0
    return record.relative_error


def _measured(record: Evidence, bounds: Bounds) -> Measured:
    memory = record.device_peak_mb if memory_kind(record.backend) == "device" else record.peak_mb
    loss = loss_of(record)
    against = [] if record.execution is Execution.HARDWARE else [f"{record.execution.value}: no speed"]
    if record.execution is Execution.HARDWARE:
        if record.p50_ms is None:
            against.append("latency not measured")
        elif bounds.latency_ms is not None and record.p50_ms > bounds.latency_ms:
            ms = f"{record.p50_ms:,.0f}" if record.p50_ms >= _WHOLE else f"{record.p50_ms:.3g}"
            against.append(f"{ms} ms exceed {bounds.latency_ms:g}")
    for amount, limit, name, unit in ((memory, bounds.memory_mb, "memory", " MiB"), (loss, bounds.loss, "loss", "")):
        if limit is None:
            continue
        if amount is None:
            against.append(f"{name} not measured")
        elif amount > limit:
            told = f"{amount:,.0f}{unit} exceed {limit:,.0f}" if unit else f"a loss of {amount:.2g} exceeds {limit:g}"
            against.append(told)
    return Measured(record=record, memory_mb=memory, loss=loss, against=tuple(against))


def _ranked(cells: Sequence[Measured]) -> list[Measured]:
    """Those that can be chosen, the best first; then the others that have a speed, the fastest first; then those without."""
    hardware = [each for each in cells if each.record.execution is Execution.HARDWARE and each.record.p50_ms is not None]
    fastest_first = sorted(hardware, key=lambda each: each.record.p50_ms or 0.0)
    possible = [each for each in fastest_first if not each.against]
    if possible:
        highest = _high(possible[0])
        tied = [each for each in possible if _low(each) <= highest]
        best = min(tied, key=lambda each: float("inf") if each.memory_mb is None else each.memory_mb)
        possible = [best, *(each for each in possible if each is not best)]
    others = [each for each in fastest_first if each.against]
    return [*possible, *others, *(each for each in cells if each not in hardware)]


def _low(each: Measured) -> float:
    record = each.record
    return record.ci_low_ms if record.ci_low_ms is not None else record.p50_ms or 0.0


def _high(each: Measured) -> float:
    record = each.record
    return record.ci_high_ms if record.ci_high_ms is not None else record.p50_ms or 0.0
