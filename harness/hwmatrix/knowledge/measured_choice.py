"""The best of the measured cells of a model under limits of memory, loss and latency: which hardware, in which precision.

Only cells with the same settings, in one isolation on one machine, are compared. Nothing is estimated.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import pydantic
from pydantic.dataclasses import dataclass

from hwmatrix.errors import Problem
from hwmatrix.knowledge.evidence import Evidence, counted
from hwmatrix.knowledge.requirements import memory_kind, peak_of
from hwmatrix.records import Dtype, Execution, Isolation, Size, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from hwmatrix.records import Backend, ModelPlan

_STRICT = pydantic.ConfigDict(extra="forbid", ser_json_inf_nan="null")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """The user's limits: MiB of memory, loss, milliseconds of latency; None: no limit.

    The latency is that of one forward pass, or, where text is generated, of one token.
    """

    memory_mb: float | None = None
    loss: float | None = None
    latency_ms: float | None = None

    def __bool__(self) -> bool:
        """Whether there is a limit."""
        return any(limit is not None for limit in (self.memory_mb, self.loss, self.latency_ms))

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


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class MeasuredCell:
    """A measured cell that passed. ``against`` says why it cannot be chosen; empty: it can.

    ``precision`` is the one that the runtime says it uses. ``p50_ms`` is the median of ``samples``, None if it was not timed, and
    ``doubts`` say why it is less certain than it looks; ``tokens_s`` are tokens a second after the first. ``memory_mb`` is the peak of the
    device's memory for GPUs, else of the process; ``loss`` the relative error against the float32 reference, 0 in float32. ``speed_up`` is
    over cpu in float32, ``own_speed_up`` over the target's own float32, each in the same run on the same machine, in full size, and only if
    the difference is significant.
    """

    target: str
    hardware: str
    dtype: Dtype
    precision: Dtype | None
    p50_ms: float | None
    tokens_s: float | None
    samples: int | None
    speed_up: float | None
    own_speed_up: float | None
    memory_mb: float | None
    loss: float | None
    against: tuple[str, ...]
    doubts: tuple[str, ...]
    run_id: str
    measured_at: str | None

    @property
    def name(self) -> str:
        """The precision, with the runtime's choice if it was free: ``default (bfloat16)``."""
        chosen = self.precision if self.dtype is Dtype.DEFAULT else None
        return f"{self.dtype.value} ({chosen.value})" if chosen is not None else self.dtype.value


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ChoiceEntry:
    """The measured cells with the same settings, in one isolation on one machine, the best first; ``best`` is null if none can be chosen.

    ``rule`` says what makes it the best. ``new_tokens`` is 0 for one forward pass. ``instructions`` are those of the ``processor`` that
    matter for speed; ``lacking`` are those of them that this machine's processor lacks.
    """

    size: Size
    batch: int
    sequence_length: int
    new_tokens: int
    threads: int
    isolation: Isolation | None
    host: str | None
    processor: str | None
    instructions: tuple[str, ...]
    lacking: tuple[str, ...]
    rule: str
    best: MeasuredCell | None
    cells: tuple[MeasuredCell, ...]


_CHOICE: Final = pydantic.TypeAdapter(ChoiceEntry)


def choice_data(choice: ChoiceEntry) -> dict[str, object]:
    """A choice among measured cells as plain data."""
    data: dict[str, object] = _CHOICE.dump_python(choice, mode="json")
    return data


def of_model(records: Iterable[Evidence], plan: ModelPlan | None, model_name: str) -> list[Evidence]:
    """The records of one model."""
    return [record for record in records if record.is_same_model(plan, model_name)]


def choices(
    records: Sequence[Evidence],
    bounds: Bounds,
    *,
    only: Callable[[Evidence], bool] = lambda _: True,
    instructions_here: Collection[str] | None = None,
) -> tuple[ChoiceEntry, ...]:
    """For each group of comparable cells, which is best. Groups that generate text come first. Cells that failed are left out.

    A model that generates is chosen on hardware and in a precision in which it generates right, also for one forward pass.

    Args:
        records: all cells of one model, the newest first.
        bounds: the limits.
        only: selects the cells to choose from.
        instructions_here: the instructions of this machine's processor; None: not known.
    """
    groups: dict[tuple[object, ...], dict[tuple[str, Dtype], Evidence]] = {}
    for record in filter(only, records):
        settings = (record.size, record.batch, record.sequence_length, record.new_tokens, record.threads)
        place = (record.isolation, record.host, record.processor, record.instructions)
        groups.setdefault((*settings, *place), {}).setdefault((record.target, record.dtype), record)
    made = []
    for group in groups.values():
        passed = [record for record in group.values() if record.status is Status.PASS]
        if passed:
            made.append(_choice(passed, records, bounds, instructions_here))
    return tuple(sorted(made, key=lambda choice: not choice.new_tokens))


def best_on(found: Iterable[ChoiceEntry], hardware: Backend) -> MeasuredCell | None:
    """The best cell of one kind of hardware, on the first machine that has one; None if none can be chosen."""
    return next((cell for choice in found for cell in choice.cells if cell.hardware == hardware and not cell.against), None)


def loss_of(record: Evidence) -> float | None:
    """The relative error of a cell against the reference; 0 if it computed in float32, whose error comes from the order of sums."""
    computed = record.precision or record.dtype
    if record.dtype in {Dtype.FLOAT32, Dtype.DEFAULT} and computed is Dtype.FLOAT32:
        return 0.0
    return record.relative_error


def _choice(passed: Sequence[Evidence], records: Sequence[Evidence], bounds: Bounds, here: Collection[str] | None) -> ChoiceEntry:
    first = passed[0]
    cells = tuple(cell for _, cell in _ranked([(record, _measured(record, records, bounds)) for record in passed]))
    instructions = tuple((first.instructions or "").split())
    lacking = () if here is None or all(memory_kind(record.backend) == "device" for record in passed) else set(instructions) - set(here)
    generates = any(record.new_tokens for record in records)
    return ChoiceEntry(
        size=first.size,
        batch=first.batch,
        sequence_length=first.sequence_length,
        new_tokens=first.new_tokens,
        threads=first.threads,
        isolation=first.isolation,
        host=first.host,
        processor=first.processor,
        instructions=instructions,
        lacking=tuple(sorted(lacking)),
        rule="the fastest"
        + (" that generates right" if generates else "")
        + (" within the limits" if bounds else "")
        + "; of those whose 95 % intervals overlap, the one with the least loss, then the least memory",
        best=cells[0] if not cells[0].against else None,
        cells=cells,
    )


def _measured(record: Evidence, records: Sequence[Evidence], bounds: Bounds) -> MeasuredCell:
    on_hardware = record.execution is Execution.HARDWARE
    memory, loss, wrong = peak_of(record), loss_of(record), _generation(record, records)
    against = [wrong] if wrong else []
    latency = record.p50_ms if not record.new_tokens else 1000 * record.batch / record.tokens_s if record.tokens_s else None
    if not on_hardware:
        against.append(f"{record.execution.value}: no speed")
    elif record.p50_ms is None:
        against.append("latency not measured")
    elif bounds.latency_ms is not None and (latency is None or latency > bounds.latency_ms):
        against.append("time per token not measured" if latency is None else f"more than {bounds.latency_ms:g} ms")
    if bounds.memory_mb is not None and (memory is None or memory > bounds.memory_mb):
        against.append("memory not measured" if memory is None else f"more than {bounds.memory_mb:,.0f} MiB")
    if bounds.loss is not None and (loss is None or loss > bounds.loss):
        against.append("loss not measured" if loss is None else f"a loss above {bounds.loss:g}")
    return MeasuredCell(
        target=record.target,
        hardware=record.backend.value,
        dtype=record.dtype,
        precision=record.precision,
        p50_ms=record.p50_ms if on_hardware else None,
        tokens_s=record.tokens_s if on_hardware else None,
        samples=record.samples,
        speed_up=counted(record, record.speed_up) if record.speed_differs else None,
        own_speed_up=counted(record, record.own_speed_up),
        memory_mb=memory,
        loss=loss,
        against=tuple(against),
        doubts=record.doubts,
        run_id=record.run_id,
        measured_at=record.started_at,
    )


def _generation(record: Evidence, records: Iterable[Evidence]) -> str | None:
    """Why a forward pass does not speak for a model that generates: it generates wrong there in this precision, or was not tried.

    Cells on the same processor count before others. A tiny model that generates right proves nothing for the full size, but one that fails
    does.
    """
    generating = [each for each in records if each.new_tokens]
    if record.new_tokens or not generating:
        return None
    alike = [each for each in generating if each.target == record.target and _precision(each) == _precision(record)]
    tried = [each for each in alike if each.level is not None and each.size is record.size]
    same = [each for each in tried if (each.processor, each.instructions) == (record.processor, record.instructions)]
    smaller = [each for each in alike if each.level is not None and each.size is Size.TINY]
    failed = next((each for each in same or tried or smaller if each.status is not Status.PASS), None)
    if failed is not None:
        where = "" if same or failed.processor is None else f" on {failed.processor}"
        return f"generating ends as {failed.status.value}{' in tiny' if failed.size is not record.size else ''}{where}"
    return None if tried else "generating was not tried"


def _precision(record: Evidence) -> tuple[Dtype, Dtype | None]:
    """The precision, and what the runtime chose if it was free."""
    return record.dtype, record.precision if record.dtype is Dtype.DEFAULT else None


def _ranked(cells: Sequence[tuple[Evidence, MeasuredCell]]) -> list[tuple[Evidence, MeasuredCell]]:
    """Those that can be chosen, the best first; then the others that have a speed, the fastest first; then those without."""
    timed = sorted((each for each in cells if each[1].p50_ms is not None), key=lambda each: each[1].p50_ms or 0.0)
    possible = [each for each in timed if not each[1].against]
    if possible:
        highest = _high(possible[0][0])
        tied = [each for each in possible if _low(each[0]) <= highest]
        best = min(tied, key=lambda each: (_known(each[1].loss), _known(each[1].memory_mb), each[1].target))
        possible = [best, *(each for each in possible if each is not best)]
    others = [each for each in timed if each[1].against]
    return [*possible, *others, *(each for each in cells if each[1].p50_ms is None)]


def _known(amount: float | None) -> float:
    return float("inf") if amount is None else amount


def _low(record: Evidence) -> float:
    return record.ci_low_ms if record.ci_low_ms is not None else record.p50_ms or 0.0


def _high(record: Evidence) -> float:
    return record.ci_high_ms if record.ci_high_ms is not None else record.p50_ms or 0.0
