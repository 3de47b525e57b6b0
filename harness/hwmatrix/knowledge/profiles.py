"""Profiles: for each hardware, whether a model works there and, separately, whether that hardware is available and large enough.

The two are separate answers: a model may work on hardware that this system lacks, and fail on hardware that it has. A caller's own
profile overrides what is known about a model, never which hardware is available.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.knowledge.compatibility import Compatibility
from hwmatrix.knowledge.requirements import RequirementsError
from hwmatrix.records import Backend, Basis, Requirements
from hwmatrix.records.backends import Memory, descriptor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hwmatrix.records import Detection

OVERRIDE: Final = "override"
"""The basis of answers from the caller's own profile."""
_KEYS: Final = ("compatible", "memory_usage")
_MEMORY_KEYS: Final = ("peak",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Override:
    """The caller's statement about a model on one hardware. ``peak_mb`` is the memory that it needs there, in MB."""

    compatible: bool
    peak_mb: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Availability:
    """Whether models can run on hardware of this system, why not, and its free memory for a model in MiB (None: not known).

    ``installed``: also in this interpreter. If not, ``hwmatrix matrix`` makes an image or an environment with what is missing.
    """

    available: bool
    reason: str | None
    memory_mb: int | None
    installed: bool = True


class Needs:
    """What a model needs on one hardware, determined on first use, because that may build the model without its weights."""

    def __init__(self, ask: Callable[[], Requirements]) -> None:
        self._ask = ask

    @functools.cached_property
    def answer(self) -> Requirements | RequirementsError:
        """The requirements, or why the model's size is not known."""
        try:
            return self._ask()
        except RequirementsError as error:
            return error

    @property
    def requirements(self) -> Requirements | None:
        """The requirements, or None if the model's size is not known."""
        return self.answer if isinstance(self.answer, Requirements) else None

    @property
    def unknown(self) -> str | None:
        """Why the model's size is not known, and what to do; None if it is known."""
        return str(self.answer) if isinstance(self.answer, RequirementsError) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardwareProfile:
    """A model on one hardware: whether it works there, what it needs, and whether the hardware is available."""

    compatibility: Compatibility
    availability: Availability
    needs: Needs
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

    @property
    def requirements(self) -> Requirements | None:
        """What the model needs there; None if its size is not known."""
        return self.needs.requirements

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


def parse_overrides(profile: Any) -> dict[Backend, Override]:
    """Check a caller's profile: ``{hardware: {"compatible": bool, "memory_usage": {"peak": MB}}}``.

    ``compatible`` must be there; ``memory_usage`` may be left out.

    Raises:
        ConfigError: unknown hardware or keys, values of other types, peaks that are not positive, or memory for hardware on which the
            model is said not to work; lists every problem.
    """
    if profile is None:
        return {}
    if not isinstance(profile, Mapping):
        what = f"it is {type(profile).__name__}, not a mapping of hardware"
        raise ConfigError([Problem(where="hardware profile", what=what, hint='{"cuda": {"compatible": True}}')])
    problems = [problem for hardware, entry in profile.items() for problem in _problems(hardware, entry)]
    if problems:
        raise ConfigError(problems)
    return {
        Backend(hardware): Override(compatible=entry["compatible"], peak_mb=entry.get("memory_usage", {}).get("peak"))
        for hardware, entry in profile.items()
    }


def _problems(hardware: object, entry: Any) -> Iterator[Problem]:
    where = f"hardware profile, {hardware}"
    names = [backend.value for backend in Backend]
    if hardware not in names:
        yield Problem(where="hardware profile", what=f"{hardware!r} is not a hardware name", hint=near_miss(str(hardware), names))
    if not isinstance(entry, Mapping):
        yield Problem(where=where, what=f"it is {entry!r}", hint='a mapping belongs here: {"compatible": True}')
        return
    for key in entry:
        if key not in _KEYS:
            yield Problem(where=where, what=f"unknown key {key!r}", hint=near_miss(str(key), _KEYS))
    if "compatible" not in entry:
        yield Problem(where=where, what="compatible is missing", hint="add True or False")
    elif not isinstance(entry["compatible"], bool):
        yield Problem(where=where, what=f"compatible is {entry['compatible']!r}", hint="True or False")
    if "memory_usage" in entry:
        yield from _memory_problems(where, entry["memory_usage"])
        if entry.get("compatible") is False:
            what = "compatible is False, and memory_usage says what it needs there"
            yield Problem(where=where, what=what, hint="leave out memory_usage, or set compatible to True")


def _memory_problems(where: str, usage: Any) -> Iterator[Problem]:
    if not isinstance(usage, Mapping):
        yield Problem(where=where, what=f"memory_usage is {usage!r}", hint='a mapping belongs here: {"peak": MB}')
        return
    for key in usage:
        if key not in _MEMORY_KEYS:
            yield Problem(where=where, what=f"unknown key {key!r} in memory_usage", hint=near_miss(str(key), _MEMORY_KEYS))
    if "peak" not in usage:
        yield Problem(where=where, what="memory_usage has no peak", hint="add it, in MB, or leave out memory_usage")
        return
    peak = usage["peak"]
    number = isinstance(peak, (int, float)) and not isinstance(peak, bool) and math.isfinite(peak)
    if not number or peak <= 0:
        yield Problem(where=where, what=f"memory_usage.peak is {peak!r}", hint="a number of MB above 0")


def availability_of(hardware: Backend, detections: Mapping[str, Detection]) -> Availability:
    """Whether models can run on one hardware of this machine, and its free memory now.

    It was detected, or it is a runtime that ``hwmatrix matrix`` brings in an image or an environment. A GPU has its own memory, and of
    several GPUs the one with most free memory counts; everything else uses the host's, within the limit of this process's control
    group. The cpu is always available.
    """
    found = detections.get(hardware.value)
    if hardware is Backend.CPU or (found is not None and found.available):
        return Availability(available=True, reason=None, memory_mb=_memory_left(hardware, detections))
    if not descriptor_of(hardware).hardware.needed_here:
        return Availability(available=True, reason=None, memory_mb=_memory_left(hardware, detections), installed=False)
    reason = "it was not detected" if found is None else found.reason or "no reason is given"
    return Availability(available=False, reason=reason, memory_mb=None, installed=False)


def instructions_of(detections: Mapping[str, Detection]) -> tuple[str, ...] | None:
    """The instructions of this machine's processor that matter for speed; None: not known."""
    found = detections.get(Backend.CPU.value)
    known = found.features.get("instructions") if found is not None else None
    return None if known is None else tuple(known)


def _memory_left(hardware: Backend, detections: Mapping[str, Detection]) -> int | None:
    if descriptor_of(hardware).memory is Memory.DEVICE:
        gpus = detections[hardware.value].features.get("gpus") or ()
        free = [gpu["free_mb"] if gpu.get("free_mb") is not None else gpu.get("memory_mb") for gpu in gpus]
        return max((int(amount) for amount in free if amount is not None), default=None)
    host = detections.get(Backend.CPU.value)
    left = host.features.get("memory_left_mb") if host is not None else None
    return None if left is None else int(left)
