"""Whether a model works on a kind of hardware, independent of this machine: from measurements, else from expectations.

The closest evidence decides: executions of the model itself, of its architecture, of its family, and last the priors of its
family. Evidence of different closeness is never mixed.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Final

from hwmatrix.knowledge.evidence import Nearness, counted, with_instructions
from hwmatrix.matrix.priors import Prior, priors_for
from hwmatrix.records import Backend, Basis, Classification, Dtype, Execution, Level, ModelPlan, Size, Status
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hwmatrix.knowledge.evidence import Evidence
    from hwmatrix.records import Family

LEVELS: Final = (Level.HIGH, Level.MEDIUM, Level.LOW, Level.NONE)
"""All levels, the best first."""
WORKING: Final = frozenset({Level.HIGH, Level.MEDIUM})
"""Low is not included: it means a fallback, which ran elsewhere, or a model that works only with other settings than requested."""
_ONLY_TINY: Final = "only tiny models were executed, which says nothing about speed"
_HOW_NEAR: Final = {Nearness.ARCHITECTURE: "the architecture", Nearness.FAMILY: "the family"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """The model in question: its name as given, the model that it refers to (None: unknown), and its classification.

    ``generates``: it generated text (or was tried to) on some hardware, so one forward pass is not what it is for.
    """

    model_name: str
    plan: ModelPlan | None
    classification: Classification
    generates: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compatibility:
    """Whether a model works on some hardware. ``compatible`` is None if there is no evidence, or it is not clear.

    A model that generates works where its generation is right. ``speed_up`` is over the cpu in float32, of the model itself or else of one
    of its architecture, in full size, on real hardware, and only if the difference is significant; ``size`` is the size in which that
    model was executed. ``precisions`` are those in which the model itself works there, as measured in that size. ``expected`` are the
    priors, even if measurements decide.
    """

    hardware: Backend
    compatible: bool | None
    level: Level | None
    basis: Basis
    reason: str
    nearness: Nearness | None = None
    size: Size | None = None
    execution: Execution | None = None
    speed_up: float | None = None
    precisions: tuple[Dtype, ...] = ()
    expected: tuple[Prior, ...] = ()

    @property
    def order(self) -> int:
        """The rank of its level, the best first. High and Medium differ in speed, so they rank equal for tiny models."""
        if self.level is None:
            return len(LEVELS)
        only_tiny = self.size is Size.TINY and self.hardware is not Backend.CPU
        return LEVELS.index(Level.MEDIUM if only_tiny and self.level is Level.HIGH else self.level)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tally:
    """The results of several models on one hardware: the number of models at each level, each model at its best level."""

    levels: dict[Level, int]

    @property
    def models(self) -> int:
        """How many models were executed."""
        return sum(self.levels.values())

    @property
    def working(self) -> int:
        """How many of them worked on the hardware itself."""
        return sum(count for level, count in self.levels.items() if level in WORKING)

    @property
    def compatible(self) -> bool | None:
        """True if more than half worked, False if none did, None otherwise."""
        if self.working * 2 > self.models:
            return True
        return False if self.working == 0 else None

    @property
    def level(self) -> Level:
        """The most frequent level; in a tie, the lower one."""
        return max(self.levels, key=lambda level: (self.levels[level], LEVELS.index(level)))

    def __str__(self) -> str:
        return ", ".join(f"{self.levels[level]} {level.value}" for level in LEVELS if level in self.levels)


def compatibility_of(subject: Subject, hardware: Backend, records: Iterable[Evidence]) -> Compatibility:
    """Whether a model works on some hardware, by the closest evidence.

    Args:
        subject: the model.
        hardware: the kind of hardware.
        records: everything that is on record, of any model and hardware.
    """
    family = subject.classification.family
    expected = priors_for(family, hardware) if family is not None else ()
    near: dict[Nearness, list[Evidence]] = collections.defaultdict(list)
    for record in records:
        if record.backend is hardware and record.level is not None:
            nearness = record.nearness(
                plan=subject.plan, model_name=subject.model_name, architecture=subject.classification.architecture, family=family
            )
            if nearness is not None:
                near[nearness].append(record)
    nearest = next((nearness for nearness in Nearness if near[nearness]), None)
    if nearest is Nearness.MODEL:
        return dataclasses.replace(_from_own_records(near[nearest], generates=subject.generates), expected=expected)
    judged = by_prior(hardware, family) if nearest is None else _from_related_records(nearest, near[nearest])
    unbuildable = subject.plan.unbuildable if subject.plan is not None else None
    never = f"; it cannot be run here as it is: {unbuildable}" if unbuildable else ""
    return dataclasses.replace(judged, expected=expected, reason=f"{judged.reason}{never}")


def by_prior(hardware: Backend, family: Family | None) -> Compatibility:
    """What the design documents expect: the most cautious level that they name.

    If they contradict each other on whether it works at all, both answers are None.
    """
    expected = priors_for(family, hardware) if family is not None else ()
    if not expected:
        said = f"nothing is on record or expected for {family.value} on {hardware.value}" if family else "the model's family is not known"
        return Compatibility(hardware=hardware, compatible=None, level=None, basis=Basis.NONE, reason=f"{said}: only a run can show it")
    works = {prior.works for prior in expected}
    levels = [prior.level for prior in expected if prior.level is not None]
    said = "; ".join(str(prior) for prior in expected)
    doubt = "" if len(works) == 1 else "the design documents contradict each other: "
    return Compatibility(
        hardware=hardware,
        compatible=works == {True} if len(works) == 1 else None,
        level=max(levels, key=LEVELS.index, default=None) if len(works) == 1 else None,
        basis=Basis.PRIOR,
        reason=f"not measured; {doubt}expected {said}",
        expected=expected,
    )


def tally(records: Sequence[Evidence]) -> Tally:
    """The results of the models of these records, each counted once by its name, at its best level."""
    by_model: dict[str, list[Evidence]] = collections.defaultdict(list)
    for record in records:
        by_model[record.model].append(record)
    counts = collections.Counter(level for own in by_model.values() if (level := _best(decisive(own)).level) is not None)
    return Tally(levels={level: counts[level] for level in LEVELS if counts[level]})


def decisive(records: Sequence[Evidence]) -> Sequence[Evidence]:
    """The records that decide whether a model works on one hardware: those of what it is for. A model that generates has to generate right.

    Where it generated in tiny size only, a forward pass in full size that fails decides.
    """
    generating = [record for record in records if record.new_tokens]
    passes = [record for record in records if not record.new_tokens]
    if not generating:
        return passes
    full = [record for record in passes if record.size is Size.FULL]
    only_tiny = all(record.size is Size.TINY for record in generating)
    if full and only_tiny and _order(_best(full)) > _order(_best(generating)):
        return full
    return generating


def _order(record: Evidence) -> int:
    return LEVELS.index(record.level or Level.NONE)


def _best(records: Sequence[Evidence]) -> Evidence:
    """The record that represents a model: in full size if there is one, at the best level, the fastest, the newest."""
    full = [record for record in records if record.size is Size.FULL]
    return min(full or records, key=lambda record: (_order(record), -(_speed_up(record) or 0.0)))


def _usual(records: Sequence[Evidence]) -> Evidence:
    """The record that answers for a model on one hardware: in the usual precision, if it works in that, else its best.

    So level, speed-up and memory are of one precision, and a faster one that loses more is not taken for it.
    """
    full = [record for record in records if record.size is Size.FULL] or records
    usual = [record for record in full if record.dtype is descriptor_of(full[0].backend).precisions[0]]
    works = any(record.level in WORKING for record in full)
    return _best([record for record in usual if record.level in WORKING or not works] or full)


def _speed_up(record: Evidence) -> float | None:
    """The speed-up over cpu in float32, if it counts and the difference is significant; None otherwise."""
    return counted(record, record.speed_up) if record.speed_differs else None


def _from_own_records(every: Sequence[Evidence], *, generates: bool) -> Compatibility:
    records = decisive(every)
    best = _usual(records)
    failed = sorted({f"{record.dtype.value}: {record.status.value}" for record in records if record.size is best.size} - {_outcome(best)})
    others = [each for each in failed if not each.endswith(": pass")]
    also = f"; other precisions fail ({', '.join(others)})" if best.level in WORKING and others else ""
    return Compatibility(
        hardware=best.backend,
        compatible=best.level in WORKING,
        level=best.level,
        basis=Basis.MEASURED,
        nearness=Nearness.MODEL,
        size=best.size,
        execution=best.execution,
        speed_up=_speed_up(best),
        precisions=tuple(dict.fromkeys(record.dtype for record in records if record.size is best.size and record.level in WORKING)),
        reason=f"measured: {describe(best)}{also}{_other_work(best, every, generates=generates)}",
    )


def _other_work(decisive_one: Evidence, every: Sequence[Evidence], *, generates: bool) -> str:
    """What else is known of a model that generates: how one forward pass ends if generating decides, or that it was not tried."""
    if not generates:
        return ""
    others = [record for record in every if bool(record.new_tokens) is not bool(decisive_one.new_tokens)]
    if not others:
        return (
            "; one forward pass was not tried" if decisive_one.new_tokens else "; that is one forward pass: generating was not tried there"
        )
    kind = "generating" if not decisive_one.new_tokens else "one forward pass"
    found = _usual(others)
    return f"; {kind}: {'right' if found.status is Status.PASS else found.status.value} ({found.size.value}, {found.dtype.value})"


def _from_related_records(nearness: Nearness, records: Sequence[Evidence]) -> Compatibility:
    counted = tally(records)
    fastest = max((record for record in records if _speed_up(record)), key=lambda record: _speed_up(record) or 0.0, default=None)
    names = sorted({record.model for record in records})
    who = ", ".join(names) if len(names) <= 4 else f"{len(names)} models"  # noqa: PLR2004 - a line's worth
    ran = f"{counted.working} of {counted.models} other models of {_HOW_NEAR[nearness]} work there ({who}: {counted})"
    if counted.working and records[0].backend is not Backend.CPU and all(record.size is Size.TINY for record in records):
        ran += f"; {_ONLY_TINY}"
    by_architecture = fastest if nearness is Nearness.ARCHITECTURE and counted.compatible else None
    return Compatibility(
        hardware=records[0].backend,
        compatible=counted.compatible,
        level=counted.level,
        basis=Basis.MEASURED,
        nearness=nearness,
        size=by_architecture.size if by_architecture else _size_of(records),
        execution=by_architecture.execution if by_architecture else None,
        speed_up=_speed_up(by_architecture) if by_architecture else None,
        reason=f"measured, but not this model: {ran}",
    )


def _size_of(records: Sequence[Evidence]) -> Size | None:
    """The size of all of these records; None if they differ."""
    sizes = {record.size for record in records}
    return sizes.pop() if len(sizes) == 1 else None


def _outcome(record: Evidence) -> str:
    return f"{record.dtype.value}: {record.status.value}"


def describe(record: Evidence) -> str:
    """The result of one cell in words: status and settings, and either its speed or its error."""
    work = f"generating {record.new_tokens} tokens, " if record.new_tokens else ""
    settings = f"{work}{record.size.value}, {record.dtype.value}, batch {record.batch}, run {record.run_id}"
    told = f"{record.status.value} ({settings})"
    if record.status is Status.PASS and record.level is Level.LOW:
        return f"{told}, with a model that hwmatrix changed before it ran"
    if record.level not in WORKING:
        message = (record.message or record.error_type or "no message").strip().splitlines()[0]
        return f"{told}: {message}"
    if record.execution is not Execution.HARDWARE:
        how = "emulated" if record.execution is Execution.EMULATED else "in software"
        return f"{told}, {how}: its speed is not meaningful"
    if record.size is Size.TINY and record.backend is not Backend.CPU:
        return f"{told}; {_ONLY_TINY}"
    speed_up, own = _speed_up(record), counted(record, record.own_speed_up)
    speeds = [f"{record.tokens_s:.3g} tokens/s"] if record.tokens_s else []
    speeds += [f"{speed_up:.2g} times as fast as cpu in float32"] if speed_up is not None else []
    speeds += [f"{own:.2g} times as fast as {record.target} in float32"] if own is not None else []
    if not speeds:
        return told
    machine = with_instructions(record.processor, (record.instructions or "").split())
    return ", ".join([told, *speeds, f"on {machine}", *(f"the timing {doubt}" for doubt in record.doubts)])
