"""Whether a model fits: from measured peaks, else from the calibrated estimate. Outside both, the answer is never a plain yes or no."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwmatrix.errors import ConfigError, FactoryError, Problem
from hwmatrix.knowledge.available_memory import memory_kind
from hwmatrix.knowledge.fit_document import FitDocument, HardwareFit, Need, Remedy, Verdict, measurements_of
from hwmatrix.knowledge.fit_memory import ModelMemory
from hwmatrix.knowledge.fit_question import FitQuestion, precision_of, precisions_of, subject_of
from hwmatrix.knowledge.fit_text import reason_of
from hwmatrix.knowledge.on_record import Place, on_record
from hwmatrix.knowledge.priorities import order_of
from hwmatrix.knowledge.profiles import Availability, availability_of
from hwmatrix.knowledge.requirements import Question
from hwmatrix.knowledge.stand_ins import classify
from hwmatrix.records import Backend, Basis, Dtype, ModelPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hwmatrix.records import Detection

_NARROWER: Final = {
    Dtype.FLOAT32: (Dtype.FLOAT16, Dtype.BFLOAT16),
    Dtype.FLOAT16: (Dtype.A16W8, Dtype.A8W8),
    Dtype.A16W8: (Dtype.A8W8,),
}
"""What takes less memory for weights than a precision."""
_KEEPS_WIDE: Final = frozenset({Backend.OPENVINO})
"""Backends that load float32 weights whatever they compute in (targets/openvino/target.py), so that another precision is no remedy."""


def will_it_fit(
    question: FitQuestion, machine: Mapping[str, Detection], *, database: Path | None = None, cache: Path | None = None
) -> FitDocument:
    """Whether a model fits into the memory of each hardware, with what that stands on.

    Args:
        question: the model and the settings, as a person asked.
        machine: what is here, by hardware: ``HardwareDetector().detect()``.
        database: a merged database with measured peaks, or a folder of reports; None: the usual places (``on_record``).
        cache: the folder of caches, where sizes are kept and checkpoints are looked for; None: it is not.

    Raises:
        ConfigError: the question cannot be asked, or the model is only a name.
        StoreError: the database cannot be read.
    """
    wanted = question.check()
    recorded = on_record(database)
    found = recorded.memory
    subject = subject_of(question, found, own=recorded.own_memory, cache=cache)
    plan = subject.plan
    models = []
    for backend in wanted or _usual(plan, machine, question.dtype):
        asked = Question(model_name=question.model, plan=plan, backend=backend, dtype=precision_of(backend, question.dtype))
        models.append(ModelMemory(asked, found, cache))
    if question.sequence_length is not None:
        _check_length(models[0])
    return FitDocument(
        model=question.model,
        known_from=subject.known_from,
        hub_id=plan.hub_id,
        architecture=plan.architecture,
        model_class=plan.model_class,
        size=plan.size,
        parameters=next((model.parameters for model in models if model.parameters is not None), None),
        batch=plan.batch,
        sequence_length=plan.sequence_length,
        database=next((source.where for source in recorded.sources if source.place in {Place.NAMED, Place.LATEST}), None),
        evidence=tuple(measurements_of(source.answer()) for source in recorded.sources),
        hardware=tuple(_answer(model, availability_of(model.asked.backend, machine), question.memory_mb) for model in models),
    )


def judge(need: Need | None, memory_mb: int | None, weights_mb: float | None) -> Verdict:
    """Whether something fits. A peak beyond what was calibrated decides nothing, but weights alone can be too much."""
    if memory_mb is None:
        return Verdict.UNKNOWN
    if weights_mb is not None and weights_mb > memory_mb and (need is None or need.basis is not Basis.MEASURED):
        return Verdict.DOES_NOT_FIT
    if need is None:
        return Verdict.UNKNOWN
    if need.basis is Basis.EXTRAPOLATED:
        return Verdict.EXTRAPOLATED
    if (need.peak_mb if need.high_mb is None else need.high_mb) <= memory_mb:
        return Verdict.FITS
    return Verdict.DOES_NOT_FIT if (need.peak_mb if need.low_mb is None else need.low_mb) > memory_mb else Verdict.UNKNOWN


def _check_length(model: ModelMemory) -> None:
    """Refuse a length that the model has no positions for.

    Raises:
        ConfigError: it is longer than the model can be given.
    """
    if isinstance(model.size, FactoryError) and model.size.error_type == "sequence_too_long":
        raise ConfigError([Problem(where="--sequence-length", what=str(model.size))])


def _usual(plan: ModelPlan, machine: Mapping[str, Detection], dtype: Dtype | None) -> tuple[Backend, ...]:
    """What such models are usually given to, in that order, then what else is here; only what has the precision."""
    order = order_of(classify(plan.name, model_class=plan.model_class, architecture=plan.architecture))
    here = [backend for backend in Backend if availability_of(backend, machine).available]
    kinds = dict.fromkeys([*(Backend(name) for name in order), *here])
    usual = tuple(backend for backend in kinds if dtype is None or dtype in precisions_of(backend))
    return usual or tuple(backend for backend in Backend if dtype in precisions_of(backend))


def _answer(model: ModelMemory, there: Availability, asked_mb: int | None) -> HardwareFit:
    memory = asked_mb if asked_mb is not None else there.memory_mb
    need = model.need(model.asked.plan.batch)
    verdict, other = judge(need, memory, model.weights_mb), None
    if verdict in {Verdict.EXTRAPOLATED, Verdict.UNKNOWN}:
        verdict, other = _by_another_batch(model, memory, verdict)
    largest, beyond = _largest(model, memory)
    return HardwareFit(
        hardware=model.asked.backend.value,
        verdict=verdict,
        reason=reason_of(verdict, other or need, memory, model=model, there=there),
        here=there.available,
        absence=there.reason,
        memory_kind=memory_kind(model.asked.backend),
        memory_mb=memory,
        memory_asked=asked_mb is not None,
        weights_mb=model.weights_mb,
        need=need,
        decided_by=other,
        largest=largest,
        largest_extrapolated=beyond,
        remedies=tuple(_remedies(model, need, memory, largest or beyond)) if verdict is not Verdict.FITS and memory is not None else (),
    )


def _by_another_batch(model: ModelMemory, memory: int | None, verdict: Verdict) -> tuple[Verdict, Need | None]:
    """What a smaller or a larger batch says: it takes less, or more, memory than the one that was asked for."""
    asked = model.asked.plan.batch
    for batch in model.batches():
        need = model.need(batch)
        told = judge(need, memory, None)
        if (told is Verdict.DOES_NOT_FIT and batch < asked) or (told is Verdict.FITS and batch > asked):
            return told, need
    return verdict, None


def _largest(model: ModelMemory, memory: int | None) -> tuple[Need | None, Need | None]:
    """The largest batch that fits, and a larger one that would by extrapolation."""
    surely: Need | None = None
    perhaps: Need | None = None
    for batch in model.batches() if memory is not None else ():
        need = model.need(batch)
        verdict = judge(need, memory, model.weights_mb)
        if verdict is Verdict.FITS:
            surely = need
        elif _would_fit(verdict, need, memory):
            perhaps = need
        else:
            break
    larger = perhaps is not None and (surely is None or perhaps.batch > surely.batch)
    return surely, perhaps if larger else None


def _would_fit(verdict: Verdict, need: Need | None, memory: int | None) -> bool:
    """Whether it would by the formula alone."""
    return verdict is Verdict.EXTRAPOLATED and need is not None and memory is not None and need.peak_mb <= memory


def _remedies(model: ModelMemory, need: Need | None, memory: int, largest: Need | None) -> Iterator[Remedy]:
    """What would make it fit: fewer samples, or a narrower precision. Where it would fit by extrapolation, only what is surer."""
    asked = model.asked
    only_sure = need is not None and need.basis is Basis.EXTRAPOLATED and need.peak_mb <= memory
    if largest is not None and largest.batch < asked.plan.batch:
        verdict = judge(largest, memory, model.weights_mb)
        if verdict is Verdict.FITS or not only_sure:
            yield Remedy(change=f"--batch {largest.batch}", verdict=verdict, need=largest)
    for dtype in _NARROWER.get(asked.dtype, ()):
        if dtype in precisions_of(asked.backend) and asked.backend not in _KEEPS_WIDE:
            narrow = model.in_precision(dtype)
            less = narrow.need(asked.plan.batch)
            verdict = judge(less, memory, narrow.weights_mb)
            if less is not None and (verdict is Verdict.FITS or (not only_sure and _would_fit(verdict, less, memory))):
                yield Remedy(change=f"--dtype {dtype.value}", verdict=verdict, need=less)
