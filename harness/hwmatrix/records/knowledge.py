"""What is known or estimated about a model before it runs: its classification and its requirements, each with its basis."""

from __future__ import annotations

import dataclasses
import enum

from hwmatrix.records.strict import STRICT
from hwmatrix.records.vocabulary import Dtype, Family


class Structure(enum.StrEnum):
    """How a model is built, across families. The most specific structure counts: Mixtral is a mixture of experts."""

    ENCODER_ONLY = "encoder-only"
    DECODER_ONLY = "decoder-only"
    ENCODER_DECODER = "encoder-decoder"
    DIFFUSION = "diffusion"
    MIXTURE_OF_EXPERTS = "mixture-of-experts"
    STATE_SPACE = "state-space"
    SPEECH = "speech"


class SizeTier(enum.StrEnum):
    """How large a model is, by its parameters: below 10 million, 100 million, 1 billion, 10 billion, and above."""

    TINY = "tiny"
    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"
    XLARGE = "xlarge"


class Basis(enum.StrEnum):
    """What an answer is based on, the strongest first."""

    MEASURED = "measured"  # executions on record
    ESTIMATED = "estimated"  # a formula within the range in which it was calibrated against measurements
    EXTRAPOLATED = "extrapolated"  # the same formula outside that range: the answer says how far
    PRIOR = "prior"  # an expectation from documents
    NONE = "none"


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification:
    """What a model is for. If there is no evidence, ``family`` is None and ``confidence`` is 0.

    ``confidence`` is the share of transformers' model types for which the same kind of evidence gave the right family
    (docs/classification.md). ``evidence`` is that kind: ``class``, ``task``, ``method``, ``architecture``, ``mapping``, ``name``
    or ``none``; ``source`` says in words what was read.
    """

    model_name: str
    architecture: str | None
    model_class: str | None
    family: Family | None
    subfamily: str | None
    structure: Structure | None
    confidence: float
    evidence: str
    source: str
    parameters: int | None = None
    size_tier: SizeTier | None = None


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a model needs on a kind of hardware with some settings. Memory and disk in MiB.

    ``memory_kind`` says which memory is meant: ``host`` (the process) or ``device``. ``min_memory_mb`` is the expected peak,
    ``recommended_memory_mb`` leaves room for the estimate's own error (its 90th percentile). ``batch_size`` is the largest that fits
    into the available memory, at least 1; it and the disk space are None if only a peak is known. ``basis`` and ``note`` say what the
    numbers are based on.
    """

    model_name: str
    hardware: str
    dtype: Dtype
    batch: int
    sequence_length: int
    memory_kind: str
    min_memory_mb: int
    recommended_memory_mb: int
    cpu_cores: int
    disk_space_mb: int | None
    batch_size: int | None
    parameters: int
    basis: Basis
    note: str
