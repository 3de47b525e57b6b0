"""Replacements for parts of hwmatrix that cannot be imported, so that the other parts continue to work.

| missing | replacement |
|---|---|
| hardware detection | the devices that PyTorch can use |
| the model classifier | the words of a model's name |
| both | the hardware that the caller requests, unchecked; else the CPU |
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

import psutil

from hwmatrix.basics.clock import stamp
from hwmatrix.knowledge.priorities import backend_of, guess_from_name
from hwmatrix.knowledge.resolving import torch_absences, torch_name
from hwmatrix.records import Backend, Classification, Detection
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DETECTION: Final = "hardware detection"
CLASSIFIER: Final = "the model classifier"
_MODULES: Final = {DETECTION: "hwmatrix.hardware.api", CLASSIFIER: "hwmatrix.models.classify"}
_REPLACEMENTS: Final = {
    frozenset({DETECTION}): "PyTorch decides which devices it can use",
    frozenset({CLASSIFIER}): "models are classified by the words of their names",
    frozenset({DETECTION, CLASSIFIER}): "the requested hardware is used unchecked, else the CPU; models are classified by their names",
}
_UNKNOWN: Final = "not checked: hardware detection and the model classifier are missing"
_MIB: Final = 2**20
_LOG: Final = logging.getLogger(__name__)


class Detector(Protocol):
    """The interface of a detector: ``hwmatrix.hardware.api.HardwareDetector`` is one."""

    def detect(self) -> Mapping[str, Detection]:
        """The detected hardware, by hardware type."""

    def get_torch_device_with_priority(self, priority_list: Sequence[str] | None = None, preferred_index: int = 0) -> str:
        """PyTorch's name of the first device of a list that it can use here."""


@functools.cache
def missing_parts() -> Mapping[str, str]:
    """The parts that cannot be imported, each with the reason. The first call logs one warning that names them."""
    found: dict[str, str] = {}
    for part, module in _MODULES.items():
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:  # OSError: one of its libraries cannot be loaded
            found[part] = f"{type(error).__name__}: {error}"
    if found:
        _LOG.warning("%s", _sentence(found))
    return found


def replaced() -> tuple[str, ...]:
    """A sentence that names the missing parts and their replacements; empty if nothing is missing."""
    found = missing_parts()
    return (_sentence(found),) if found else ()


def is_unchecked() -> bool:
    """Whether requested hardware is used unchecked, because both detection and the classifier are missing."""
    return len(missing_parts()) == len(_MODULES)


def hardware_detector(cache_path: Path | str | None = None, *, force_refresh: bool = False) -> Detector:
    """This machine's detector, or its replacement."""
    if DETECTION in missing_parts():
        return BasicDetector()
    from hwmatrix.hardware.api import HardwareDetector

    return HardwareDetector(cache_path, force_refresh)


def detect(kind: Backend) -> Detection:
    """Detect one kind of hardware now: by its own module, or by the replacement."""
    if DETECTION in missing_parts():
        return BasicDetector().detect()[kind.value]
    from hwmatrix.hardware.detector import detect as ask

    return ask(kind)


def classify(model_name: str, **known: Any) -> Classification:
    """As ``hwmatrix.models.classify.classify``; if that is missing, a guess from the name and the given facts.

    Raises:
        ConfigError: as there; never if the classifier is missing.
    """
    if CLASSIFIER not in missing_parts():
        from hwmatrix.models.classify import classify as ask

        return ask(model_name, **known)
    told = {key: known[key] for key in ("architecture", "model_class", "parameters") if known.get(key) is not None}
    guess = guess_from_name(" ".join([model_name, *(str(told[key]) for key in ("architecture", "model_class") if key in told)]))
    return dataclasses.replace(guess, model_name=model_name, **told)


class BasicDetector:
    """Detection by PyTorch alone: the GPUs that it can use, and the CPU. If the classifier is missing too, only the CPU."""

    def detect(self) -> dict[str, Detection]:
        """Every kind of hardware, by hardware type, as it is now."""
        absent = dict.fromkeys((kind.value for kind in Backend), _UNKNOWN) if is_unchecked() else torch_absences()
        now = stamp()
        return {kind.value: _as_pytorch_says(kind, None if kind is Backend.CPU else absent[kind.value], now) for kind in Backend}

    def get_torch_device_with_priority(self, priority_list: Sequence[str] | None = None, preferred_index: int = 0) -> str:
        """PyTorch's name of the first device of a list that it can use here; a missing index becomes 0, with a warning.

        Raises:
            ConfigError: an entry is not a hardware name.
        """
        found = self.detect()
        for word in _torch_kinds() if priority_list is None else priority_list:
            name, _, number = word.partition(":")
            kind = backend_of(name)
            device = torch_name(kind)
            if device is None or not found[kind.value].available:
                continue
            if not descriptor_of(kind).several:
                return device
            index, count = int(number or preferred_index), len(found[kind.value].features["gpus"])
            if index >= count:
                _LOG.warning("there is no %s device %d, only %d: using device 0", kind.value, index, count)
            return f"{device}:{index if index < count else 0}"
        return Backend.CPU.value


def _torch_kinds() -> list[str]:
    """The kinds of hardware that PyTorch supports here, the CPU last."""
    return [*(kind.value for kind in Backend if torch_name(kind) and kind is not Backend.CPU), Backend.CPU.value]


def _sentence(found: Mapping[str, str]) -> str:
    parts = " and ".join(f"{part} ({reason})" for part, reason in found.items())
    return f"{parts} cannot be imported: {_REPLACEMENTS[frozenset(found)]}"


def _as_pytorch_says(kind: Backend, reason: str | None, now: str) -> Detection:
    here = reason is None
    name = f"{kind.value}, according to PyTorch" if here and kind is not Backend.CPU else kind.value if here else None
    features = _features(kind) if here else {}
    return Detection(hardware_type=kind.value, available=here, name=name, features=features, reason=reason, detected_at=now)


def _features(kind: Backend) -> dict[str, Any]:
    """The features that callers use: memory in MiB."""
    if not descriptor_of(kind).several:
        left = psutil.virtual_memory().available // _MIB
        return {"available_memory_mb": left, "memory_left_mb": left} if kind is Backend.CPU else {}
    import torch

    gpus = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name, uuid = torch.cuda.get_device_name(index), getattr(torch.cuda.get_device_properties(index), "uuid", "")
        gpus.append({"index": index, "name": name, "uuid": str(uuid), "memory_mb": total // _MIB, "free_mb": free // _MIB})
    return {"gpus": gpus}
