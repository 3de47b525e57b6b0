"""Which device to use for a model, even if detection or the classifier is missing or broken."""

from __future__ import annotations

import dataclasses
import enum
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hwmatrix.errors import CellFailure, HwmatrixError
from hwmatrix.knowledge.fallback import AttemptPlan, Tried, next_attempt
from hwmatrix.knowledge.priorities import backend_of, guess_from_name, order_of
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
"""How a part says that it is missing or cannot answer. Anything else is a bug of it, and stays one."""
_LOG: Final = logging.getLogger(__name__)


class Level(enum.StrEnum):
    """How a device was found: with all parts, or with what was left of them."""

    FULL = "full"
    BASIC_DETECTION = "basic_detection"  # detection is missing: PyTorch was asked what it can use
    NAME_HEURISTIC = "name_heuristic"  # the classifier is missing: the model's name was looked at
    PREFERENCE = "preference"  # both are missing: what the user asked for, unchecked
    DEFAULT = "default"  # both are missing and nothing was asked for: the CPU


_IN_ITS_PLACE: Final = {
    Level.BASIC_DETECTION: "what PyTorch says it can use",
    Level.NAME_HEURISTIC: "the words of the model's name",
    Level.PREFERENCE: "the hardware that was asked for, unchecked",
    Level.DEFAULT: "the CPU",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolution:
    """The device for a model, and how it was found.

    ``torch_device`` is None for hardware that PyTorch does not drive. ``passed_over`` is hardware that came before it in order and is
    not here, each with the reason; ``missing`` says which parts could not answer, and why.
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
    """The best hardware for a model that is here.

    Args:
        model: its name.
        preference: the hardware that a person wants; it is taken if it is here. ``auto`` means none.
        detect: what is here, by hardware type; the detector of this machine unless given.
        classify: what a model is; the classifier unless given.

    A part that fails with an error of ours, an ImportError or an OSError counts as missing, which one warning and ``level`` and
    ``missing`` tell: detection is replaced by what PyTorch says, the classifier by the model's name. Without both, the preference is
    taken as it is, or the CPU.

    Raises:
        ConfigError: the preference is no hardware.
    """
    preferred = None if preference in {None, AUTO} else backend_of(str(preference)).value
    missing: list[str] = []
    found = _asked("detection", detect or _detect, missing)
    kind = _asked("classification", lambda: (classify or _classify)(model), missing)
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
    hardware = attempt.hardware if attempt is not None else Backend.CPU.value  # this code runs on one, whatever a detector says
    return _resolution(model, hardware, level, kind, passed_over=tuple(passed_over), missing=tuple(missing))


def torch_name(hardware: Backend) -> str | None:
    """What PyTorch calls devices of this kind (ROCm's are ``cuda``, too); None for hardware that it does not drive."""
    return descriptor_of(hardware).torch_device


def torch_absences() -> dict[str, str | None]:
    """What PyTorch itself says: for each hardware why it cannot be used, or None where it can. The CPU always can."""
    reasons: dict[str, str | None] = dict.fromkeys((backend.value for backend in Backend), "only PyTorch was asked, which does not know it")
    reasons[Backend.CPU] = None
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries cannot be loaded
        return reasons | {
            name.value: f"PyTorch cannot be imported: {error}" for name in Backend if torch_name(name) and name is not Backend.CPU
        }
    gpu = torch.cuda.is_available()
    reasons[Backend.CUDA] = None if gpu and torch.version.cuda else f"PyTorch {torch.__version__} finds no GPU of NVIDIA's"
    reasons[Backend.ROCM] = None if gpu and torch.version.hip else f"PyTorch {torch.__version__} finds no GPU of AMD's"
    reasons[Backend.MPS] = None if torch.backends.mps.is_available() else f"PyTorch {torch.__version__} finds no GPU of Apple's"
    return reasons


def _absences(found: Mapping[str, Detection]) -> dict[str, str | None]:
    """For each hardware why it is not available, or None if it is."""
    reasons: dict[str, str | None] = dict.fromkeys((backend.value for backend in Backend), "detection says nothing of it")
    return reasons | {name: None if each.available else each.reason or "no reason is given" for name, each in found.items()}


def _asked(part: str, ask: Callable[[], Answer], missing: list[str]) -> Answer | None:
    """The part's answer; None if the part is missing, which is added to ``missing``."""
    try:
        return ask()
    except _FAILURES as error:
        missing.append(f"{part}: {type(error).__name__}: {error}")
        return None


def _warn(missing: Sequence[str], level: Level) -> None:
    """Log one warning for everything that is missing: why, and what is used instead."""
    if missing:
        _LOG.warning("missing: %s; in its place: %s", "; ".join(missing), _IN_ITS_PLACE[level])


def _resolution(model: str, hardware: str, level: Level, kind: Classification | None, **details: tuple[Any, ...]) -> Resolution:
    return Resolution(
        model=model, hardware=hardware, torch_device=torch_name(Backend(hardware)), level=level, classification=kind, **details
    )


def _detect() -> Mapping[str, Detection]:
    """This machine's detector, imported now: if the import fails, the next level takes over."""
    from hwmatrix.hardware.api import HardwareDetector

    return HardwareDetector().detect()


def _classify(model: str) -> Classification:
    """The classifier, imported now for the same reason as the detector."""
    from hwmatrix.models.classify import classify

    return classify(model)
