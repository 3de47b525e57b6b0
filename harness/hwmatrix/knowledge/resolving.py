"""Chooses a device for a model, even if detection or the classifier fails."""

from __future__ import annotations

import dataclasses
import enum
import logging
from typing import TYPE_CHECKING, Final, TypeVar

from hwmatrix.errors import CellFailure, HwmatrixError
from hwmatrix.hardware.api import HardwareDetector
from hwmatrix.knowledge.priorities import backend_of, order_of
from hwmatrix.models.classify import classify as by_name
from hwmatrix.records import Backend, Classification
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hwmatrix.records import Detection

Answer = TypeVar("Answer")
AUTO: Final = "auto"
_LOG: Final = logging.getLogger(__name__)


class Level(enum.StrEnum):
    """The parts that chose the device: all, or those that are not missing."""

    FULL = "full"
    BASIC_DETECTION = "basic_detection"  # without detection: the devices that PyTorch can use
    NAME_HEURISTIC = "name_heuristic"  # without the classifier: the words of the model's name
    PREFERENCE = "preference"  # without both: the requested hardware, unchecked
    DEFAULT = "default"  # without both and without a request: the CPU


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolution:
    """The device for a model, and how it was found.

    ``torch_device`` is None for hardware that PyTorch does not support. ``passed_over`` is the hardware before it in the order that is
    not available, each with the reason. ``missing`` says which parts could not answer, and why.
    """

    model: str
    hardware: str
    level: Level
    classification: Classification | None
    passed_over: dict[str, str]
    missing: tuple[str, ...]

    @property
    def torch_device(self) -> str | None:
        """PyTorch's name of the hardware."""
        return descriptor_of(self.hardware).torch_device


def resolve_device(
    model: str,
    preference: str | None = None,
    *,
    detect: Callable[[], Mapping[str, Detection]] | None = None,
    classify: Callable[[str], Classification] | None = None,
) -> Resolution:
    """The best available hardware for a model.

    Args:
        model: its name.
        preference: the hardware that the user wants; it is used if it is available. ``auto`` means none.
        detect: returns the available hardware by type; by default this machine's detector.
        classify: returns what a model is; by default the classifier of names.

    A part that fails with an error of ours, an ImportError or an OSError counts as missing. A warning, ``level`` and ``missing`` report
    it. PyTorch replaces detection, and the words of the model's name replace the classifier; if they say nothing, the order is that of an
    unknown model. Without both, the preference is used unchecked, or the CPU.

    Raises:
        ConfigError: the preference is not a hardware name.
    """
    preferred = None if preference in {None, AUTO} else backend_of(str(preference)).value
    missing: list[str] = []
    detected = _answer_of("detection", detect or HardwareDetector().detect, missing)
    kind = _answer_of("classification", lambda: (classify or by_name)(model), missing)
    if detected is None and kind is None:
        level, hardware, passed_over = Level.DEFAULT if preferred is None else Level.PREFERENCE, preferred or Backend.CPU.value, {}
    else:
        level = Level.FULL if not missing else Level.BASIC_DETECTION if detected is None else Level.NAME_HEURISTIC
        if kind is None and classify is not None:
            kind = _answer_of("the model's name", lambda: by_name(model), missing)
        order = order_of(kind, preferred=preferred)
        absent = torch_absences() if detected is None else {name: _absence(detected.get(name)) for name in order}
        hardware = next((name for name in order if absent[name] is None), Backend.CPU.value)  # this code runs on a CPU
        passed_over = {name: reason for name in order[: order.index(hardware)] if (reason := absent[name]) is not None}
    if missing:
        _LOG.warning("missing: %s; the device is chosen by: %s", "; ".join(missing), level.value)
    return Resolution(model=model, hardware=hardware, level=level, classification=kind, passed_over=passed_over, missing=tuple(missing))


def torch_absences() -> dict[str, str | None]:
    """For each hardware, why PyTorch cannot use it, or None if it can. The CPU always can be used."""
    reasons: dict[str, str | None] = {backend.value: "not checked: detection is missing" for backend in Backend} | {Backend.CPU.value: None}
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries cannot be loaded
        return reasons | dict.fromkeys(("cuda", "rocm", "mps"), f"PyTorch cannot be imported: {error}")
    gpu = torch.cuda.is_available()
    usable = {"cuda": gpu and torch.version.cuda, "rocm": gpu and torch.version.hip, "mps": torch.backends.mps.is_available()}
    return reasons | {name: None if here else f"PyTorch {torch.__version__} cannot use it here" for name, here in usable.items()}


def _absence(detection: Detection | None) -> str | None:
    """Why hardware is not available; None if it is."""
    if detection is None:
        return "it was not detected"
    return None if detection.available else detection.reason or "no reason is given"


def _answer_of(part: str, ask: Callable[[], Answer], missing: list[str]) -> Answer | None:
    """The part's answer; None if the part is missing, which is added to ``missing``. Any other error is a bug and is raised."""
    try:
        return ask()
    except (ImportError, OSError, HwmatrixError, CellFailure) as error:
        missing.append(f"{part}: {type(error).__name__}: {error}")
        return None
