"""Which Hugging Face models work on which hardware, how well, how fast, and where they don't, why: with evidence.

The names below are the library's public ones. Each is imported from its module when it is first used, so that ``import hwmatrix``
stays light and needs no framework.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

__version__ = "0.1.0"

_PUBLIC: Final[dict[str, str]] = {
    "CPU": "hwmatrix.hardware.api",
    "CUDA": "hwmatrix.hardware.api",
    "HardwareAwareModelClassifier": "hwmatrix.classifier.classifier",
    "HardwareCompatibilityReporter": "hwmatrix.reporter.reporter",
    "HardwareDetector": "hwmatrix.hardware.api",
    "MPS": "hwmatrix.hardware.api",
    "OPENVINO": "hwmatrix.hardware.api",
    "QNN": "hwmatrix.hardware.api",
    "ROCM": "hwmatrix.hardware.api",
    "RequirementsError": "hwmatrix.knowledge.requirements",
    "ResourcePool": "hwmatrix.pool.pool",
    "WEBGPU": "hwmatrix.hardware.api",
    "WEBNN": "hwmatrix.hardware.api",
    "classify_model": "hwmatrix.models.classify",
    "detect_available_hardware": "hwmatrix.hardware.api",
    "estimate_for_name": "hwmatrix.knowledge.requirements",
    "generate_test": "hwmatrix.generate.model_tests",
    "get_cuda_details": "hwmatrix.hardware.api",
    "get_global_resource_pool": "hwmatrix.pool.pool",
    "get_hardware_aware_model_classification": "hwmatrix.classifier.classifier",
    "get_torch_device_with_priority": "hwmatrix.hardware.api",
    "reproduce": "hwmatrix.generate.reproduction",
    "requirements_for": "hwmatrix.knowledge.requirements",
    "write_templates": "hwmatrix.generate.rendering",
}
"""Public name to the module that has it. One explicit table: nothing registers itself."""

__all__ = ["__version__", *sorted(_PUBLIC)]  # noqa: PLE0604 - every entry is a string


def __getattr__(name: str) -> Any:
    """Import a public name's module now.

    Raises:
        AttributeError: there is no such name.
    """
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__
