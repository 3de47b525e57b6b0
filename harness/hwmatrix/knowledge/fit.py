"""Whether a model fits: from measured peaks, else from the calibrated estimate. Beyond the calibrated range the answer is open."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import ConfigError, FactoryError, Problem
from hwmatrix.knowledge.evidence import same_model
from hwmatrix.knowledge.fit_document import FitDocument, HardwareFit, Need, Remedy, Verdict
from hwmatrix.knowledge.fit_question import FitQuestion, subject_of
from hwmatrix.knowledge.measured_choice import ChoiceEntry, best_on, choices, of_model
from hwmatrix.knowledge.on_record import Place, on_record
from hwmatrix.knowledge.priorities import order_of
from hwmatrix.knowledge.profiles import Availability, availability_of, instructions_of
from hwmatrix.knowledge.requirements import Question, at_batch, estimate_for, known_size, memory_kind, peaks_on_record
from hwmatrix.models.classify import classify
from hwmatrix.records import Backend, Basis, Dtype, ModelPlan
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from hwmatrix.knowledge.evidence import Evidence
    from hwmatrix.knowledge.on_record import OnRecord
    from hwmatrix.knowledge.profiles import Availability
    from hwmatrix.models.sizes import ModelSize
    from hwmatrix.records import Detection


_FOUR_BITS: Final = (Dtype.INT4, Dtype.INT4_FLOAT16)
_NARROWER: Final = {
    Dtype.FLOAT32: (Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.INT8, Dtype.INT8_DYNAMIC, *_FOUR_BITS),
    Dtype.FLOAT16: (Dtype.A16W8, Dtype.A8W8, Dtype.INT8, Dtype.INT8_DYNAMIC, *_FOUR_BITS),
    Dtype.A16W8: (Dtype.A8W8,),
    Dtype.INT8: _FOUR_BITS,
    Dtype.INT8_DYNAMIC: _FOUR_BITS,
}
"""For each precision, those whose weights take less memory."""


def will_it_fit(
    question: FitQuestion, machine: Mapping[str, Detection], *, database: Path | None = None, cache: Path | None = None
) -> FitDocument:
    """Whether a model fits into the memory of each hardware, with the basis of the answer.

    Args:
        question: the model and the settings, as the user gave them.
        machine: the detected hardware: ``HardwareDetector().detect()``.
        database: a merged database with measured peaks, or a folder of reports; None: the default sources (``on_record``).
        cache: the cache folder, for sizes and checkpoints; None: no cache is used.

    Raises:
        ConfigError: the question is invalid, or nothing but the model's name is known.
        StoreError: the database cannot be read.
    """
    wanted = question.check()
    recorded = on_record(database)
    subject = subject_of(question, recorded, cache)
    plan = subject.plan
    hardware = wanted or _default_hardware(plan, machine, question.dtype)
    measured = _choices(question, plan, recorded, wanted, instructions_of(machine))
    models = []
    for backend in hardware:
        asked = Question(model_name=question.model, plan=plan, backend=backend, dtype=_precision(backend, question, measured))
        models.append(ModelMemory(asked, recorded.memory, cache))
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
        database=next((source.measurements.where for source in recorded.sources if source.place in {Place.NAMED, Place.LATEST}), None),
        evidence=tuple(source.measurements for source in recorded.sources),
        max_loss=question.max_loss,
        max_latency_ms=question.max_latency_ms,
        measured=measured,
        hardware=tuple(_answer(model, availability_of(model.asked.backend, machine), question.memory_mb) for model in models),
    )


def judge(need: Need | None, memory_mb: int | None, weights_mb: float | None) -> Verdict:
    """Whether a model fits. A peak beyond the calibrated range decides nothing, but the weights alone can be too much."""
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


def _choices(
    question: FitQuestion, plan: ModelPlan, recorded: OnRecord, wanted: tuple[Backend, ...], here: tuple[str, ...] | None
) -> tuple[ChoiceEntry, ...]:
    """The measured cells of the model with the requested settings, in each group the best first."""
    settings = (plan.size, plan.batch, plan.sequence_length)
    return choices(
        of_model(recorded.evidence, plan, question.model),
        question.bounds,
        only=lambda record: (
            (record.size, record.batch, record.sequence_length) == settings
            and (not wanted or record.backend in wanted)
            and (question.dtype is None or record.dtype is question.dtype)
        ),
        instructions_here=here,
    )


def _precision(backend: Backend, question: FitQuestion, measured: Iterable[ChoiceEntry]) -> Dtype:
    """The requested precision; under a limit of loss or latency the best measured one within all limits; else the usual one."""
    if question.dtype is None and (question.max_loss is not None or question.max_latency_ms is not None):
        best = best_on(measured, backend)
        if best is not None:
            return best.dtype
    return question.dtype or descriptor_of(backend).precisions[0]


def _check_length(model: ModelMemory) -> None:
    """Check the sequence length.

    Raises:
        ConfigError: it exceeds the model's maximum.
    """
    if isinstance(model.size, FactoryError) and model.size.error_type == "sequence_too_long":
        raise ConfigError([Problem(where="--sequence-length", what=str(model.size))])


def _default_hardware(plan: ModelPlan, machine: Mapping[str, Detection], dtype: Dtype | None) -> tuple[Backend, ...]:
    """The usual hardware for such models, in order, then other hardware of this machine; only hardware with the precision."""
    order = order_of(classify(plan.name, model_class=plan.model_class, architecture=plan.architecture))
    here = [backend for backend in Backend if availability_of(backend, machine).installed]
    kinds = dict.fromkeys([*(Backend(name) for name in order), *here])
    usual = tuple(backend for backend in kinds if dtype is None or dtype in descriptor_of(backend).precisions)
    return usual or tuple(backend for backend in Backend if dtype in descriptor_of(backend).precisions)


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
    """The verdict that follows from a smaller or larger batch, which takes less or more memory than the requested one."""
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
    """Whether it would fit by the formula alone."""
    return verdict is Verdict.EXTRAPOLATED and need is not None and memory is not None and need.peak_mb <= memory


def _remedies(model: ModelMemory, need: Need | None, memory: int, largest: Need | None) -> Iterator[Remedy]:
    """Changes that would make it fit: a smaller batch, a measured precision, or a narrower one.

    If it fits by extrapolation, only certain ones.
    """
    asked = model.asked
    only_sure = need is not None and need.basis is Basis.EXTRAPOLATED and need.peak_mb <= memory
    if largest is not None and largest.batch < asked.plan.batch:
        verdict = judge(largest, memory, model.weights_mb)
        if verdict is Verdict.FITS or not only_sure:
            yield Remedy(change=f"--batch {largest.batch}", verdict=verdict, need=largest)
    descriptor, narrower = descriptor_of(asked.backend), _NARROWER.get(asked.dtype, ())
    for dtype in descriptor.precisions:
        narrow = model.in_precision(dtype)
        measured = dtype is not asked.dtype and asked.plan.batch in narrow.peaks
        partly = bool(descriptor.torch_device) and dtype in descriptor.rounds  # only linear layers, whose share is not known
        if measured or (dtype in narrower and not partly and not descriptor.wide_weights):
            less = narrow.need(asked.plan.batch)
            verdict = judge(less, memory, narrow.weights_mb)
            if less is not None and (verdict is Verdict.FITS or (not only_sure and _would_fit(verdict, less, memory))):
                yield Remedy(change=f"--dtype {dtype.value}", verdict=verdict, need=less)


_LARGEST_BATCH: Final = 4096
_MIB: Final = 2**20


class ModelMemory:
    """One model on one backend in one precision: its recorded peaks, and its size, which is determined on first use."""

    def __init__(self, asked: Question, found: tuple[Evidence, ...], cache: Path | None) -> None:
        self.asked = asked
        self.peaks = peaks_on_record(asked, found)
        self._found = found
        self._cache = cache

    def in_precision(self, dtype: Dtype) -> ModelMemory:
        """The same model, computed in another precision."""
        return ModelMemory(dataclasses.replace(self.asked, dtype=dtype), self._found, self._cache)

    @functools.cached_property
    def size(self) -> tuple[ModelSize, str] | FactoryError:
        """The size with the requested batch and its source, or why it is not known."""
        try:
            return known_size(self.asked.plan, self.asked.dtype, cache=self._cache)
        except FactoryError as failure:
            return failure

    @property
    def unknown(self) -> str | None:
        """Why the size is not known; None if it is."""
        return str(self.size) if isinstance(self.size, FactoryError) else None

    @property
    def weights_mb(self) -> float | None:
        """The weights alone, in the compute precision."""
        return None if isinstance(self.size, FactoryError) else self.size[0].weight_bytes / _MIB

    @property
    def parameters(self) -> int | None:
        """The number of parameters, counted on the model or from the records."""
        if not isinstance(self.size, FactoryError):
            return self.size[0].parameters
        own = (cell.parameters for cell in self._found if same_model(self.asked.plan, cell.model_plan))
        return next((number for number in own if number is not None), None)

    def need(self, batch: int) -> Need | None:
        """The memory of a batch: as measured, else by the formula, else None."""
        if batch in self.peaks:
            peak, cell = self.peaks[batch]
            return Need(
                batch=batch,
                dtype=self.asked.dtype,
                peak_mb=peak,
                low_mb=None,
                high_mb=None,
                basis=Basis.MEASURED,
                stands_on=f"measured on {cell.target} in run {cell.run_id}, cell {cell.cell_key}",
                run_id=cell.run_id,
                cell_key=cell.cell_key,
                measured_at=cell.started_at,
            )
        return None if isinstance(self.size, FactoryError) else self._estimated(batch, *self.size)

    def _estimated(self, batch: int, size: ModelSize, source: str) -> Need:
        asked = self.asked
        estimate = estimate_for(at_batch(size, batch / asked.plan.batch), asked.backend, asked.dtype, source=source)
        nearest = min(self.peaks, key=lambda known: abs(math.log(known / batch)), default=None)
        share, told = 1.0, ""
        if nearest is not None:  # the measured peak corrects the formula
            formula = estimate_for(at_batch(size, nearest / asked.plan.batch), asked.backend, asked.dtype).peak_mb
            share = self.peaks[nearest][0] / formula
            told = f"; corrected by the peak measured at batch {nearest} in run {self.peaks[nearest][1].run_id}"
        peak, sure = estimate.peak_mb * share, estimate.basis is Basis.ESTIMATED
        return Need(
            batch=batch,
            dtype=asked.dtype,
            peak_mb=peak,
            low_mb=peak * (1 - estimate.margin) if sure else None,
            high_mb=peak * (1 + estimate.margin) if sure else None,
            basis=estimate.basis,
            stands_on=f"{estimate.note}{told}",
        )

    def batches(self) -> Iterator[int]:
        """The batches to try, the smallest first: those on record, and, if the size is known, powers of two and the requested one."""
        formula = set() if self.unknown else {self.asked.plan.batch, *(2**power for power in range(_LARGEST_BATCH.bit_length()))}
        yield from sorted(formula | self.peaks.keys())


def reason_of(verdict: Verdict, need: Need | None, memory: int | None, *, model: ModelMemory, there: Availability) -> str:
    """The verdict's reason as a sentence. ``need`` decides; ``there`` explains unknown memory, ``model`` an unknown need."""
    if memory is None:
        missing = "its amount of memory is not known" if there.available else f"it is not on this machine: {there.reason}"
        return f"{missing}. Give its memory with --memory"
    if verdict is Verdict.DOES_NOT_FIT and model.weights_mb is not None and model.weights_mb > memory:
        return f"its weights alone take {model.weights_mb:,.0f} MiB, {model.weights_mb - memory:,.0f} more than available"
    if need is None:
        return f"its size is not known: {model.unknown}"
    if verdict is Verdict.EXTRAPOLATED:
        return _extrapolation_reason(need, memory)
    if need.low_mb is None or need.high_mb is None:
        short = f", {need.peak_mb - memory:,.0f} more than available" if verdict is Verdict.DOES_NOT_FIT else ""
        return f"{_whose_peak(need, model)} measured peak is {need.peak_mb:,.0f} MiB{short}"
    takes = "it takes" if need.batch == model.asked.plan.batch else f"a batch of {need.batch} takes"
    between = f"{takes} between {need.low_mb:,.0f} and {need.high_mb:,.0f} MiB in nine cases of ten"
    told = {
        Verdict.FITS: between,
        Verdict.DOES_NOT_FIT: f"{between}, at least {need.low_mb - memory:,.0f} more than available",
        Verdict.UNKNOWN: f"too close to tell: {between}",
    }
    return told[verdict]


def _extrapolation_reason(need: Need, memory: int) -> str:
    would = "would fit" if need.peak_mb <= memory else "would not fit"
    return f"not certain: by the formula it {would} with {need.peak_mb:,.0f} MiB, but that is beyond everything that was measured"


def _whose_peak(need: Need, model: ModelMemory) -> str:
    return "its" if need.batch == model.asked.plan.batch else f"with a batch of {need.batch}, its"
