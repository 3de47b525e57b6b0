"""Profiles: for each hardware, whether a model works there and, separately, whether that hardware is available and large enough.

The two are separate answers: a model may work on hardware that this system lacks, and fail on hardware that it has. A caller's own
profile overrides what is known about a model, never which hardware is available.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import pydantic
from pydantic.dataclasses import dataclass

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.knowledge.compatibility import Compatibility
from hwmatrix.knowledge.requirements import RequirementsError, free_memory_mb
from hwmatrix.records import Backend, Basis, Requirements
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.records import Detection

OVERRIDE: Final = "override"
"""The basis of answers from the caller's own profile."""
_STRICT: Final = pydantic.ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class MemoryUsage:
    """The memory that a model needs, in MB."""

    peak: Annotated[float, pydantic.Field(gt=0, strict=True, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Override:
    """The caller's statement about a model on one hardware."""

    compatible: pydantic.StrictBool
    memory_usage: MemoryUsage | None = None

    @pydantic.model_validator(mode="after")
    def _check_memory(self) -> Self:
        if self.memory_usage is not None and not self.compatible:
            raise ValueError("compatible is False, and memory_usage says what it needs there")
        return self

    @property
    def peak_mb(self) -> float | None:
        """The memory that it needs there, in MB; None: the caller does not say."""
        return self.memory_usage.peak if self.memory_usage is not None else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Availability:
    """Whether models can run on hardware of this system, why not, and its free memory for a model in MiB (None: not known).

    ``installed``: also in this interpreter. If not, ``hwmatrix matrix`` makes an image or an environment with what is missing.
    """

    available: bool
    reason: str | None
    memory_mb: int | None
    installed: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardwareProfile:
    """A model on one hardware: whether it works there, what it needs, and whether the hardware is available.

    ``ask`` determines what it needs. It is called on first use, because it may build the model without its weights.
    """

    compatibility: Compatibility
    availability: Availability
    ask: Callable[[], Requirements]
    override: Override | None = None

    @property
    def hardware(self) -> Backend:
        """The kind of hardware."""
        return self.compatibility.hardware

    @property
    def compatible(self) -> bool | None:
        """Whether the model works there; None if that is not known."""
        return self.override.compatible if self.override is not None else self.compatibility.compatible

    @property
    def basis(self) -> str:
        """The basis of ``compatible``: a word of ``records.Basis``, or ``override``."""
        return OVERRIDE if self.override is not None else self.compatibility.basis.value

    @functools.cached_property
    def _needs(self) -> Requirements | RequirementsError:
        try:
            return self.ask()
        except RequirementsError as error:
            return error

    @property
    def requirements(self) -> Requirements | None:
        """What the model needs there; None if its size is not known."""
        return self._needs if isinstance(self._needs, Requirements) else None

    @property
    def size_unknown(self) -> str | None:
        """Why the model's size is not known, and what to do; None if it is known."""
        return str(self._needs) if isinstance(self._needs, RequirementsError) else None

    @property
    def peak_mb(self) -> float | None:
        """The memory in MiB that the model needs there at its peak."""
        if self.override is not None and self.override.peak_mb is not None:
            return self.override.peak_mb
        return self.requirements.min_memory_mb if self.requirements is not None else None

    @property
    def peak_basis(self) -> str:
        """The basis of ``peak_mb``."""
        if self.override is not None and self.override.peak_mb is not None:
            return OVERRIDE
        return self.requirements.basis.value if self.requirements is not None else Basis.NONE.value

    @property
    def peak_dtype(self) -> str | None:
        """The precision in which it needs ``peak_mb``; None if the caller gave the peak, or it is not known."""
        given = self.override is not None and self.override.peak_mb is not None
        return None if given or self.requirements is None else self.requirements.dtype.value

    @property
    def fits(self) -> bool | None:
        """Whether the model fits into the memory that is free there now; None if either is not known."""
        if self.peak_mb is None or self.availability.memory_mb is None:
            return None
        return self.peak_mb <= self.availability.memory_mb

    def as_dict(self) -> dict[str, Any]:
        """The answer with the keys that callers rely on."""
        known = self.compatibility
        return {
            "compatible": self.compatible,
            "available": self.availability.available,
            "installed": self.availability.installed,
            "level": known.level.value if known.level is not None and self.override is None else None,
            "basis": self.basis,
            "nearness": known.nearness.value if known.nearness is not None and self.override is None else None,
            "reason": self.reason(),
            "unavailable_because": self.availability.reason,
            "memory_usage": {"peak": self.peak_mb, "basis": self.peak_basis, "dtype": self.peak_dtype},
            "available_memory_mb": self.availability.memory_mb,
            "fits": self.fits,
            "speed_up": known.speed_up,
            "expected": [str(prior) for prior in known.expected],
        }

    def reason(self) -> str:
        """The reason for ``compatible``; for an override, also what it contradicts."""
        if self.override is None:
            return self.compatibility.reason
        said = f"the caller's profile says that it {'works' if self.override.compatible else 'does not work'} there"
        against = self.compatibility.compatible
        differs = against is not None and against is not self.override.compatible
        return f"{said}; without it: {self.compatibility.reason}" if differs else said


_PROFILE: Final = pydantic.TypeAdapter(dict[Backend, Override])


def parse_overrides(profile: Any) -> dict[Backend, Override]:
    """Check a caller's profile: ``{hardware: {"compatible": bool, "memory_usage": {"peak": MB}}}``.

    ``compatible`` must be there; ``memory_usage`` may be left out.

    Raises:
        ConfigError: unknown hardware or keys, values of other types, peaks that are not positive, or memory for hardware on which the
            model is said not to work; lists every problem.
    """
    try:
        return _PROFILE.validate_python({} if profile is None else profile)
    except pydantic.ValidationError as error:
        hint = 'such as {"cuda": {"compatible": True, "memory_usage": {"peak": 2000}}}'
        places = [".".join(("hardware profile", *map(str, each["loc"]))) for each in error.errors()]
        whats = [f"{each['msg']}, it is {each['input']!r}" for each in error.errors()]
        raise ConfigError([Problem(where=where, what=what, hint=hint) for where, what in zip(places, whats, strict=True)]) from error


def availability_of(hardware: Backend, detections: Mapping[str, Detection]) -> Availability:
    """Whether models can run on one hardware of this machine, and its free memory now.

    It was detected, or it is a runtime that ``hwmatrix matrix`` brings in an image or an environment. A GPU has its own memory, and of
    several GPUs the one with most free memory counts; everything else uses the host's, within the limit of this process's control
    group. The cpu is always available.
    """
    found = detections.get(hardware.value)
    if hardware is Backend.CPU or (found is not None and found.available):
        return Availability(available=True, reason=None, memory_mb=free_memory_mb(hardware, detections))
    if not descriptor_of(hardware).hardware.needed_here:
        return Availability(available=True, reason=None, memory_mb=free_memory_mb(hardware, detections), installed=False)
    reason = "it was not detected" if found is None else found.reason or "no reason is given"
    return Availability(available=False, reason=reason, memory_mb=None, installed=False)


def instructions_of(detections: Mapping[str, Detection]) -> tuple[str, ...] | None:
    """The instructions of this machine's processor that matter for speed; None: not known."""
    found = detections.get(Backend.CPU.value)
    known = found.features.get("instructions") if found is not None else None
    return None if known is None else tuple(known)
