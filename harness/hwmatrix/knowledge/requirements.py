"""What a model needs on a kind of hardware: memory, cores, disk, and the largest batch that fits. Each answer names its basis."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError, FactoryError, Problem
from hwmatrix.hardware.detector import detect
from hwmatrix.knowledge.calibration import BackendCalibration, Features, calibration, expected, features_of
from hwmatrix.knowledge.evidence import same_model
from hwmatrix.knowledge.names import known_model, look_up
from hwmatrix.knowledge.on_record import on_record
from hwmatrix.models.classify import classify
from hwmatrix.models.listed_sizes import listed_sizes
from hwmatrix.models.sizes import FORMULA, ModelSize, model_size
from hwmatrix.records import Backend, Basis, Dtype, ModelPlan, Requirements, Size
from hwmatrix.records.backends import Memory, descriptor_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hwmatrix.knowledge.evidence import Evidence
    from hwmatrix.knowledge.on_record import OnRecord
    from hwmatrix.models.listed_sizes import ListedSize, Pass
    from hwmatrix.records import Classification, Detection


_UNKNOWN_ERROR: Final = 0.5
"""The safety margin for hardware without measurements, whose estimation error is unknown: 50 %."""
_WORTH_TELLING: Final = 0.1
"""The note mentions the comparison with the reference, which only cells perform, above this share of the peak."""
_LARGEST_BATCH: Final = 4096
_CORES: Final = ((10**7, 1), (10**8, 2), (10**9, 4), (10**10, 8))
"""Cores by parameters, up to and including: a rule of thumb, not a measurement. Beyond the last there are 16."""
_MOST_CORES: Final = 16
_MIB: Final = 2**20


class RequirementsError(Exception):
    """The model's size is not known. ``advice`` says how to make it known."""

    def __init__(self, message: str, *, advice: str) -> None:
        super().__init__(f"{message}. {advice}")
        self.message = message
        self.advice = advice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A model with all settings, on one backend."""

    model_name: str
    plan: ModelPlan
    backend: Backend
    dtype: Dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """An expected peak in MiB, the share to add for its error, and the basis of both."""

    peak_mb: float
    margin: float
    basis: Basis
    note: str


def requirements_for(
    plan: ModelPlan | None,
    *,
    model_name: str,
    classification: Classification,
    hardware: str,
    dtype: Dtype = Dtype.FLOAT32,
    batch: int | None = None,
    sequence_length: int | None = None,
    available_mb: int | None = None,
    database: Path | None = None,
    cache: Path | None = None,
    found: OnRecord | None = None,
) -> Requirements:
    """What a model needs on a kind of hardware.

    Args:
        plan: the model, from ``look_up``; None: the name is looked up in the records and in the packaged models.
        model_name: the name to answer with.
        classification: what the model is; its number of parameters is used if nothing better is known.
        hardware: the name of a backend: ``cpu``, ``cuda``, ``openvino``, ...
        dtype: the precision to compute in.
        batch: samples in one forward pass; None: as the plan says.
        sequence_length: tokens of a text; None: as the plan says.
        available_mb: the memory for the model; None: this machine's free memory.
        database: a merged database with measurements; None: the default sources (``on_record``).
        cache: the cache folder, for sizes; None: they are not cached.
        found: measurements that are already read, instead of ``database``.

    Raises:
        ConfigError: there is no such hardware, or the batch or sequence length is invalid.
        RequirementsError: the model's size is not known.
        StoreError: the database cannot be read.
    """
    backend = _checked_backend(hardware, batch, sequence_length)
    found = found or on_record(database)
    plan, by_name = (plan, "") if plan is not None else _by_name(model_name, classification, found)
    plan = dataclasses.replace(plan, batch=batch or plan.batch, sequence_length=sequence_length or plan.sequence_length)
    asked = Question(model_name=model_name, plan=plan, backend=backend, dtype=dtype)
    try:
        size, source = _size_and_source(asked, cache)
    except RequirementsError as unknown:
        known = _by_its_peak(asked, found.memory, unknown)
        if known is None:
            raise
        return known
    estimate = _measured_estimate(asked, found.memory) or estimate_for(size, backend, dtype, source=source)
    free = available_memory_mb(backend) if available_mb is None else available_mb
    fitting, fit_note = _largest_batch(asked, size, estimate, free)
    return Requirements(
        model_name=model_name,
        hardware=hardware,
        dtype=dtype,
        batch=plan.batch,
        sequence_length=plan.sequence_length,
        memory_kind=memory_kind(backend),
        min_memory_mb=math.ceil(estimate.peak_mb),
        recommended_memory_mb=math.ceil(estimate.peak_mb * (1 + estimate.margin)),
        cpu_cores=_cores(size.parameters),
        # Runtimes other than PyTorch also need a converted file (an ONNX graph, OpenVINO's IR), as large as the checkpoint.
        disk_space_mb=math.ceil(size.stored_bytes / _MIB * (1 if descriptor_of(backend).torch_device else 2)),
        batch_size=fitting,
        parameters=size.parameters,
        basis=estimate.basis,
        note="; ".join(part for part in (estimate.note, by_name, fit_note) if part),
    )


def estimate_for_name(
    name: str,
    hardware: str,
    *,
    dtype: Dtype = Dtype.FLOAT32,
    batch: int | None = None,
    sequence_length: int | None = None,
    available_mb: int | None = None,
    database: Path | None = None,
    cache: Path | None = None,
) -> Requirements:
    """What the model of this name needs: an entry of matrix.yaml, a hub id, a checkpoint's folder. See :func:`requirements_for`.

    Raises:
        ConfigError: the name is not a valid model name, there is no such hardware, or as in :func:`requirements_for`.
        RequirementsError: as in :func:`requirements_for`.
        StoreError: as in :func:`requirements_for`.
    """
    plan = look_up(name, cache=cache)
    known = classify(name, model_class=plan.model_class if plan else None, architecture=plan.architecture if plan else None)
    return requirements_for(
        plan,
        model_name=name,
        classification=known,
        hardware=hardware,
        dtype=dtype,
        batch=batch,
        sequence_length=sequence_length,
        available_mb=available_mb,
        database=database,
        cache=cache,
    )


def estimate_for(size: ModelSize, backend: Backend, dtype: Dtype, *, source: str = "") -> Estimate:
    """The expected peak of a model of this size by a backend's formula, or, without measurements, weights plus activations."""
    features = features_of(size, dtype)
    fitted = calibration().backends.get(backend)
    notes = [source] if source else []
    if size.method == FORMULA:
        notes.append(f"activations from the model's dimensions: {size.note}")
    if fitted is None:
        return _uncalibrated(size, backend, features, notes)
    peak = fitted.coefficients.peak(features)
    comparing = fitted.coefficients.run.comparison * features.comparison
    if comparing > _WORTH_TELLING * peak and expected(fitted.coefficients.run, features) == peak:
        notes.insert(0, f"{comparing:,.0f} MiB of it are for the comparison with the reference, which only cells perform")
    outside = fitted.outside(features, dtype)
    if outside:
        told, margin, basis = f"extrapolated beyond the calibrated range: {', '.join(outside)}", _UNKNOWN_ERROR, Basis.EXTRAPOLATED
        peak = max(peak, features.weights + features.activations)  # only the calibrated range shows which weights stay unread on disk
    else:
        told, margin, basis = _reliability_note(fitted), 0.0, Basis.ESTIMATED
    return Estimate(peak_mb=peak, margin=max(fitted.margin, margin), basis=basis, note="; ".join([told, *notes]))


def _reliability_note(fitted: BackendCalibration) -> str:
    return f"estimated from its size: nine in ten such estimates were within {fitted.margin:.0%} of the measured peak"


def _uncalibrated(size: ModelSize, backend: Backend, features: Features, notes: list[str]) -> Estimate:
    """Weights plus activations, for backends without recorded peaks to calibrate on."""
    weights = size.weight_bytes / _MIB if memory_kind(backend) == "device" else features.copied or features.stored
    left_out = "without the memory of driver and runtime" if memory_kind(backend) == "device" else "without the process itself"
    told = f"no measurement on {backend.value} is on record: weights and activations only, {left_out}"
    return Estimate(peak_mb=weights + features.activations, margin=_UNKNOWN_ERROR, basis=Basis.EXTRAPOLATED, note="; ".join([told, *notes]))


def _by_name(name: str, classification: Classification, found: OnRecord) -> tuple[ModelPlan, str]:
    """The model of a name without a plan, and a note about it.

    Raises:
        RequirementsError: none has this name.
    """
    known = known_model(name, found)
    if known is None:
        raise _unknown(name, classification)
    return known.plan, "" if known.plan.size is Size.FULL else "only its tiny form is known; these are its requirements"


def _checked_backend(hardware: str, batch: int | None, sequence_length: int | None) -> Backend:
    problems = [
        Problem(where=name, what=f"{value} is not a valid number of {kind}", hint="give 1 or more")
        for name, value, kind in (("batch", batch, "samples"), ("sequence_length", sequence_length, "tokens"))
        if value is not None and value < 1
    ]
    if hardware not in tuple(Backend):
        problems.append(
            Problem(
                where="hardware",
                what=f"{hardware!r} is not a hardware name",
                hint=near_miss(hardware, [backend.value for backend in Backend]),
            )
        )
    if problems:
        raise ConfigError(problems)
    return Backend(hardware)


def _unknown(name: str, classification: Classification) -> RequirementsError:
    kind = f" (by its name {classification.family.value})" if classification.family else ""
    return RequirementsError(
        f"the size of {name}{kind} is not known: it is only a name, and no database has a measurement of it",
        advice="Give it an entry in matrix.yaml, name its checkpoint's folder, or run it once: hwmatrix matrix --models FOLDER --size full",
    )


def _size_and_source(asked: Question, cache: Path | None) -> tuple[ModelSize, str]:
    try:
        return known_size(asked.plan, asked.dtype, cache=cache)
    except FactoryError as failure:
        advice = {
            "not_installed": "Install torch and transformers here, or name a model of the packaged matrix.yaml.",
            "weights_not_fetched": "Download the checkpoint, and name its folder.",
        }.get(failure.error_type, "Fix its configuration, or use other settings.")
        reason = asked.plan.unbuildable if failure.error_type == "unknown_architecture" and asked.plan.unbuildable else str(failure)
        raise RequirementsError(f"the size of {asked.model_name} is not known: {reason}", advice=advice) from failure


def peaks_on_record(asked: Question, found: Iterable[Evidence]) -> dict[int, tuple[float, Evidence]]:
    """The newest measured peak in MiB of the model by batch, on the same backend, with the same precision and sequence length."""
    peaks: dict[int, tuple[float, Evidence]] = {}
    for cell in found:
        peak = peak_of(cell)
        wanted = (asked.backend, asked.dtype, asked.plan.sequence_length)
        if peak is not None and (cell.backend, cell.dtype, cell.sequence_length) == wanted and same_model(asked.plan, cell.model_plan):
            peaks.setdefault(cell.batch, (peak, cell))
    return peaks


def at_batch(size: ModelSize, times: float) -> ModelSize:
    """The size at ``times`` the batch: inputs, activations and outputs grow in proportion."""
    per_sample = ("input_bytes", "activation_bytes", "output_bytes", "largest_output_bytes")
    return dataclasses.replace(size, **{name: round(getattr(size, name) * times) for name in per_sample})


def _measured_estimate(asked: Question, found: tuple[Evidence, ...]) -> Estimate | None:
    """The newest measured peak of the same cell; None if none is on record."""
    if asked.plan.batch not in (peaks := peaks_on_record(asked, found)):
        return None
    peak, cell = peaks[asked.plan.batch]
    fitted = calibration().backends.get(asked.backend)
    note = f"measured on {cell.target} in run {cell.run_id}"
    return Estimate(peak_mb=peak, margin=fitted.margin if fitted else _UNKNOWN_ERROR, basis=Basis.MEASURED, note=note)


def _by_its_peak(asked: Question, found: tuple[Evidence, ...], unknown: RequirementsError) -> Requirements | None:
    """What a model of unknown size needs by its newest measured peak, with the requested settings if possible; None if there is none."""
    own = [cell for cell in found if (cell.backend, cell.dtype) == (asked.backend, asked.dtype) and same_model(asked.plan, cell.model_plan)]
    own.sort(key=lambda cell: (cell.batch, cell.sequence_length) != (asked.plan.batch, asked.plan.sequence_length))
    cell, peak = next(((cell, peak) for cell in own if (peak := peak_of(cell)) is not None), (None, None))
    if cell is None or peak is None or cell.parameters is None:
        return None
    settings = f"{cell.size.value}, batch {cell.batch}, {cell.sequence_length} tokens"
    fitted = calibration().backends.get(asked.backend)
    return Requirements(
        model_name=asked.model_name,
        hardware=asked.backend.value,
        dtype=asked.dtype,
        batch=cell.batch,
        sequence_length=cell.sequence_length,
        memory_kind=memory_kind(asked.backend),
        min_memory_mb=math.ceil(peak),
        recommended_memory_mb=math.ceil(peak * (1 + (fitted.margin if fitted else _UNKNOWN_ERROR))),
        cpu_cores=_cores(cell.parameters),
        disk_space_mb=None,
        batch_size=None,
        parameters=cell.parameters,
        basis=Basis.MEASURED,
        note=f"measured on {cell.target} in run {cell.run_id} ({settings}); larger settings are not estimated: {unknown.message}",
    )


def _largest_batch(asked: Question, size: ModelSize, estimate: Estimate, free: int | None) -> tuple[int, str]:
    """The largest power of two that fits by the estimate, at least 1, and a note."""
    if free is None:
        return 1, f"batch_size is 1: there is no {asked.backend.value} here, or its memory is not known"
    formula = estimate_for(size, asked.backend, asked.dtype).peak_mb
    share = estimate.peak_mb / formula if formula else 1.0  # the measured peak corrects the formula
    batch = 1
    while batch < _LARGEST_BATCH and share * _estimate_at(2 * batch, asked, size).peak_mb <= free:
        batch *= 2
    needed = share * _estimate_at(1, asked, size).peak_mb
    if needed > free:
        return 1, f"it does not fit here: a batch of 1 takes {needed:,.0f} MiB, but {free:,} MiB are available"
    sure = estimate.basis is Basis.EXTRAPOLATED or _estimate_at(batch, asked, size).basis is Basis.ESTIMATED
    return batch, "" if sure else f"batch_size {batch} is beyond the calibrated range"


def _estimate_at(batch: int, asked: Question, size: ModelSize) -> Estimate:
    """The formula's estimate at another batch."""
    return estimate_for(at_batch(size, batch / asked.plan.batch), asked.backend, asked.dtype)


def _cores(parameters: int) -> int:
    return next((cores for most, cores in _CORES if parameters <= most), _MOST_CORES)


def memory_kind(backend: Backend) -> str:
    """The memory that a model's requirement is about: ``device`` or ``host``. Apple's GPUs share the host's."""
    return "host" if descriptor_of(backend).memory is Memory.HOST else "device"


def peak_of(cell: Evidence) -> float | None:
    """The measured peak of the memory that a model's requirement is about, in MiB."""
    return cell.device_peak_mb if memory_kind(cell.backend) == "device" else cell.peak_mb


def available_memory_mb(backend: Backend) -> int | None:
    """The memory in MiB that is free for a model here now; None if there is no such device, or its memory is not known."""
    here = {kind.value: detect(kind) for kind in (backend, Backend.CPU)}
    return None if memory_kind(backend) == "device" and not here[backend.value].available else free_memory_mb(backend, here)


def free_memory_mb(backend: Backend, detections: Mapping[str, Detection]) -> int | None:
    """The free memory in MiB for a model on detected hardware; None if it is not known.

    A GPU has its own memory, and of several the one with most free memory counts; everything else uses the host's, within the limit of this
    process's control group.
    """
    if descriptor_of(backend).memory is Memory.DEVICE:
        gpus = detections[backend.value].features.get("gpus") or ()
        free = [gpu["free_mb"] if gpu.get("free_mb") is not None else gpu.get("memory_mb") for gpu in gpus]
        return max((int(amount) for amount in free if amount is not None), default=None)
    host = detections.get(Backend.CPU.value)
    left = host.features.get("memory_left_mb") if host is not None else None
    return None if left is None else int(left)


_ACTIVATION_BYTES: Final = {Dtype.FLOAT16: 2, Dtype.BFLOAT16: 2, Dtype.A16W8: 2, Dtype.A8W8: 1, Dtype.INT4_FLOAT16: 2}
"""Bytes of an activation, where they are not 4."""


def known_size(plan: ModelPlan, dtype: Dtype, *, cache: Path | None = None) -> tuple[ModelSize, str]:
    """A model's size with the plan's settings, and its source in words (empty: the model itself).

    Raises:
        FactoryError: as for ``model_size``; ``not_installed`` if torch or transformers is missing and the table does not list the model.
    """
    try:
        return model_size(plan, dtype, cache=cache), ""
    except FactoryError as failure:
        if failure.error_type != "not_installed":
            raise
        listed = _listed(plan)
        if listed is None:
            raise
        return _scaled(listed, plan, dtype), "size from the packaged table, since torch is not installed here"


def _listed(plan: ModelPlan) -> ListedSize | None:
    if plan.weights != "recipe":
        return None
    wanted = (plan.architecture, plan.model_class, plan.config)
    return next((size for size in listed_sizes() if (size.architecture, size.model_class, size.config) == wanted), None)


def _scaled(listed: ListedSize, plan: ModelPlan, dtype: Dtype) -> ModelSize:
    """The listed passes scaled to a batch and sequence length: in proportion to the batch, linear between the listed lengths."""
    weights, activations = dtype.weight_bits / 8, _ACTIVATION_BYTES.get(dtype, 4)
    at = {name: _interpolated(name, listed.passes, plan.sequence_length) * plan.batch for name in _PASS_FIELDS}
    return ModelSize(
        parameters=listed.parameters,
        stored_bytes=listed.stored_bytes,
        stored_dtype=Dtype.FLOAT32.value,
        tied_bytes=listed.tied_bytes,
        weight_bytes=round(listed.stored_bytes * weights / 4),
        dtypes={dtype.value: round(listed.stored_bytes * weights / 4)},
        input_bytes=round(at["input_bytes"]),
        activation_bytes=round(at["activation_bytes"] * activations / 4),
        output_bytes=round(at["output_bytes"]),
        largest_output_bytes=round(at["largest_output_bytes"]),
        method="table",
    )


_PASS_FIELDS: Final = ("input_bytes", "activation_bytes", "output_bytes", "largest_output_bytes")


def _interpolated(field: str, passes: tuple[Pass, ...], length: int) -> float:
    """Linear interpolation between the neighboring listed lengths; extrapolation from the nearest two beyond them."""
    ordered = sorted(passes, key=lambda entry: entry.sequence_length)
    if len(ordered) == 1:
        return float(getattr(ordered[0], field))
    above = next((index for index, entry in enumerate(ordered) if entry.sequence_length >= length), len(ordered) - 1)
    low, high = ordered[max(above - 1, 0)], ordered[max(above, 1)]
    slope = (getattr(high, field) - getattr(low, field)) / (high.sequence_length - low.sequence_length)
    return float(max(0.0, getattr(low, field) + slope * (length - low.sequence_length)))
