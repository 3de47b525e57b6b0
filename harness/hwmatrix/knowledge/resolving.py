"""Chooses a device for a model, even if detection or the classifier fails."""

from __future__ import annotations

import dataclasses
import enum
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hwmatrix.errors import CellFailure, HwmatrixError
from hwmatrix.hardware.api import HardwareDetector
from hwmatrix.knowledge.fallback import AttemptPlan, Tried, next_attempt
from hwmatrix.knowledge.priorities import backend_of, guess_from_name, order_of
from hwmatrix.models.classify import classify as classified
from hwmatrix.records import Backend, Classification, Status
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hwmatrix.records import Detection

    Detect = Callable[[], Mapping[str, Detection]]
    Classify = Callable[[str], Classification]

Answer = TypeVar("Answer")
AUTO: Final = "auto"
_FAILURES: Final = (ImportError, OSError, HwmatrixError, CellFailure)
"""The errors of a part that is missing or cannot answer. Any other error is a bug and is raised."""
_LOG: Final = logging.getLogger(__name__)


class Level(enum.StrEnum):
    """The parts that chose the device: all, or those that are not missing."""

    FULL = "full"
    BASIC_DETECTION = "basic_detection"  # without detection: the devices that PyTorch can use
    NAME_HEURISTIC = "name_heuristic"  # without the classifier: the words of the model's name
    PREFERENCE = "preference"  # without both: the requested hardware, unchecked
    DEFAULT = "default"  # without both and without a request: the CPU


_REPLACEMENTS: Final = {
    Level.BASIC_DETECTION: "the devices that PyTorch can use",
    Level.NAME_HEURISTIC: "the words of the model's name",
    Level.PREFERENCE: "the requested hardware, unchecked",
    Level.DEFAULT: "the CPU",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolution:
    """The device for a model, and how it was found.

    ``torch_device`` is None for hardware that PyTorch does not support. ``passed_over`` is the hardware before it in the order that is
    not available, each with the reason. ``missing`` says which parts could not answer, and why.
    """

    model: str
    hardware: str
    torch_device: str | None
    level: Level
    classification: Classification | None
    passed_over: tuple[Tried, ...] = ()
    missing: tuple[str, ...] = ()


def resolve_device(
    model: str, preference: str | None = None, *, detect: Detect | None = None, classify: Classify | None = None
) -> Resolution:
    """The best available hardware for a model.

    Args:
        model: its name.
        preference: the hardware that the user wants; it is used if it is available. ``auto`` means none.
        detect: returns the available hardware by type; by default this machine's detector.
        classify: returns what a model is; by default the classifier.

    A part that fails with an error of ours, an ImportError or an OSError counts as missing. A warning, ``level`` and ``missing`` report
    it. PyTorch replaces detection, and the model's name replaces the classifier. Without both, the preference is used unchecked, or the
    CPU.

    Raises:
        ConfigError: the preference is not a hardware name.
    """
    preferred = None if preference in {None, AUTO} else backend_of(str(preference)).value
    missing: list[str] = []
    found = _answer_of("detection", detect or HardwareDetector().detect, missing)
    kind = _answer_of("classification", lambda: (classify or classified)(model), missing)
    if found is None and kind is None:
        level = Level.DEFAULT if preferred is None else Level.PREFERENCE
        _warn(missing, level)
        return _resolution(model, preferred or Backend.CPU.value, level, None, missing=tuple(missing))
    level = Level.FULL if not missing else Level.BASIC_DETECTION if found is None else Level.NAME_HEURISTIC
    _warn(missing, level)
    kind = kind or guess_from_name(model)
    absent = torch_absences() if found is None else _absences(found)
    plan = AttemptPlan(order=order_of(kind, preferred=preferred))
    passed_over: list[Tried] = []
    while (attempt := next_attempt(plan, passed_over)) is not None and (reason := absent[attempt.hardware]) is not None:
        passed_over.append(Tried(attempt=attempt, status=Status.UNAVAILABLE, reason=reason))
    hardware = attempt.hardware if attempt is not None else Backend.CPU.value  # this code runs on a CPU, even if it was not detected
    return _resolution(model, hardware, level, kind, passed_over=tuple(passed_over), missing=tuple(missing))


def torch_absences() -> dict[str, str | None]:
    """For each hardware, why PyTorch cannot use it, or None if it can. The CPU always can be used."""
    unknown = "not checked: PyTorch does not know it, and detection is missing"
    reasons: dict[str, str | None] = dict.fromkeys((backend.value for backend in Backend), unknown)
    reasons[Backend.CPU] = None
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries cannot be loaded
        return reasons | {
            name.value: f"PyTorch cannot be imported: {error}"
            for name in Backend
            if descriptor_of(name).torch_device and name is not Backend.CPU
        }
    gpu = torch.cuda.is_available()
    reasons[Backend.CUDA] = None if gpu and torch.version.cuda else f"PyTorch {torch.__version__} finds no NVIDIA GPU"
    reasons[Backend.ROCM] = None if gpu and torch.version.hip else f"PyTorch {torch.__version__} finds no AMD GPU"
    reasons[Backend.MPS] = None if torch.backends.mps.is_available() else f"PyTorch {torch.__version__} finds no Apple GPU"
    return reasons


def _absences(found: Mapping[str, Detection]) -> dict[str, str | None]:
    """For each hardware why it is not available, or None if it is."""
    reasons: dict[str, str | None] = dict.fromkeys((backend.value for backend in Backend), "it was not detected")
    return reasons | {name: None if each.available else each.reason or "no reason is given" for name, each in found.items()}


def _answer_of(part: str, ask: Callable[[], Answer], missing: list[str]) -> Answer | None:
    """The part's answer; None if the part is missing, which is added to ``missing``."""
    try:
        return ask()
    except _FAILURES as error:
        missing.append(f"{part}: {type(error).__name__}: {error}")
        return None


def _warn(missing: Sequence[str], level: Level) -> None:
    """Log one warning for all missing parts: why, and what is used instead."""
    if missing:
        _LOG.warning("missing: %s; used instead: %s", "; ".join(missing), _REPLACEMENTS[level])


def _resolution(model: str, hardware: str, level: Level, kind: Classification | None, **details: tuple[Any, ...]) -> Resolution:
    return Resolution(
        model=model, hardware=hardware, torch_device=descriptor_of(hardware).torch_device, level=level, classification=kind, **details
    )
