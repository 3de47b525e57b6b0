"""The answer of ``hwmatrix fit``: types and JSON Schema. Every key is always present; unknown values are null. Memory in MiB."""

from __future__ import annotations

import enum
from typing import Any, Final

import pydantic
from pydantic.dataclasses import dataclass

from hwmatrix.knowledge.measured_choice import ChoiceEntry
from hwmatrix.knowledge.on_record import Measurements
from hwmatrix.records import Basis, Dtype, Size

FIT_SCHEMA: Final = "hwmatrix/fit/1"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_STRICT = pydantic.ConfigDict(extra="forbid", ser_json_inf_nan="null")


class Verdict(enum.StrEnum):
    """Whether a model fits. ``extrapolated`` is neither yes nor no: the number lies beyond everything that was measured."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    EXTRAPOLATED = "extrapolated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Need:
    """The memory that the model takes with some settings: the expected peak, and its range in nine of ten cases.

    A measured peak has no range. ``stands_on`` names its source in words, ``run_id`` and ``cell_key`` the cell that was measured.
    """

    batch: int
    dtype: Dtype
    peak_mb: float
    low_mb: float | None
    high_mb: float | None
    basis: Basis
    stands_on: str
    run_id: str | None = None
    cell_key: str | None = None
    measured_at: str | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Remedy:
    """One change that would make it fit, or, if ``verdict`` is ``extrapolated``, perhaps would."""

    change: str
    verdict: Verdict
    need: Need


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class HardwareFit:
    """The answer for one hardware. ``reason`` is the whole of it in words.

    ``here``: the hardware is on this machine (``absence`` says why not). ``memory_kind`` says which memory is meant, ``host`` or
    ``device``; ``memory_mb`` is its size, and ``memory_asked`` says that the user gave it. ``weights_mb`` are the model's weights alone.
    ``need`` is that of the requested batch; if it cannot decide, but another batch's can, ``decided_by`` is that one: if a smaller
    batch does not fit, a larger one does not either. ``largest`` is the largest batch (a power of two, the requested one, or one on
    record) that fits; ``largest_extrapolated`` is a larger one that fits by the formula, beyond its calibrated range.
    """

    hardware: str
    verdict: Verdict
    reason: str
    here: bool
    absence: str | None
    memory_kind: str
    memory_mb: int | None
    memory_asked: bool
    weights_mb: float | None
    need: Need | None
    decided_by: Need | None
    largest: Need | None
    largest_extrapolated: Need | None
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class FitDocument:
    """A model with its settings, and the answer for each hardware. ``known_from`` says where the name was found.

    ``database`` is the user's own merged database, ``evidence`` all sources that were used. ``measured`` are the measured cells with
    these settings, judged by the limits of memory, loss and latency: one entry for each machine.
    """

    model: str
    known_from: str
    hub_id: str | None
    architecture: str
    model_class: str
    size: Size
    parameters: int | None
    batch: int
    sequence_length: int
    database: str | None
    evidence: tuple[Measurements, ...]
    hardware: tuple[HardwareFit, ...]
    max_loss: float | None = None
    max_latency_ms: float | None = None
    measured: tuple[ChoiceEntry, ...] = ()
    schema: str = FIT_SCHEMA


_DOCUMENT: Final = pydantic.TypeAdapter(FitDocument)


def as_data(document: FitDocument) -> dict[str, Any]:
    """The document as plain data, its schema first."""
    data: dict[str, Any] = _DOCUMENT.dump_python(document, mode="json")
    return {"schema": data.pop("schema"), **data}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    body = _DOCUMENT.json_schema(mode="serialization")
    return {"$schema": _DIALECT, "$id": FIT_SCHEMA, **body, "title": "hwmatrix: will a model fit"}
