"""Maps a page's error to a typed failure. Each message was really produced by a browser or ONNX Runtime Web (docs/targets/webgpu.md)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import CellFailure, CrashedError, OutOfMemoryError, UnavailableError, UnsupportedError
from hwmatrix.targets.onnx.graph import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OPERATOR: Final = re.compile(r"Could not find an implementation for (\w+)\(\d+\)|Provider type for (\w+) node with name '.*' is not set")
"""Matches operators without any kernel: the message with the CPU provider alone, and the one with a device's provider before it."""
_NO_MEMORY: Final = (
    r"VK_ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY|GPUOutOfMemoryError|Array buffer allocation failed|RangeError: .*(?:memory|allocation)"
    r"|std::bad_alloc"
)
"""Out of memory on the device or in the page: messages of Vulkan, WebGPU, JavaScript, and C++ in WebAssembly."""
_REFUSED: Final = re.compile(r"NotSupportedError: Failed to execute 'build' on 'MLGraphBuilder': (?:.*?: )?([a-z]\w+) ")
"""Matches the operator of a graph that the browser's WebNN refuses, by WebNN's name: ONNX's, but for the first letter."""
_FEATURE: Final = re.compile(r"Unsupported feature: ([\w-]+)")
_KINDS: Final[tuple[tuple[str, Callable[[str], CellFailure]], ...]] = (
    (
        r"WebNN is not supported|WebNN is disabled",
        lambda text: UnavailableError(text, error_type="webnn_unavailable"),
    ),
    (
        r"Failed to get GPU adapter|No (?:available|appropriate|suitable) (?:GPU)?adapters?",
        lambda text: UnavailableError(text, error_type="webgpu_no_adapter"),
    ),
    (
        _NO_MEMORY,
        lambda text: OutOfMemoryError(text, error_type="webgpu_out_of_memory"),
    ),
    (r"context is lost|WebNN service connection error", lambda text: CrashedError(text, error_type="webnn_context_lost")),
    (
        r"[Dd]evice (?:was |is )?(?:lost|destroyed)|A valid external Instance reference no longer exists",
        lambda text: CrashedError(text, error_type="webgpu_device_lost"),
    ),
    (
        r"Required limit \(.*\) is greater than the supported limit|exceeds the max (?:\w+ )*(?:size|limit)",
        lambda text: UnsupportedError(text, needs=(_limit(text),), error_type="webgpu_limit_exceeded"),
    ),
    (
        r"requires f16 but the device does not support it",
        lambda text: UnsupportedError(text, needs=("shader-f16",), error_type="webgpu_unsupported_feature"),
    ),
    (_FEATURE.pattern, lambda text: UnsupportedError(text, needs=_names_in(_FEATURE, text), error_type="webgpu_unsupported_feature")),
    (
        _OPERATOR.pattern,
        lambda text: UnsupportedError(text, needs=_names_in(_OPERATOR, text), error_type="unsupported_operator"),
    ),
    (
        r"Failed to execute 'build' on 'MLGraphBuilder': The \w+ padding mode is not supported",
        lambda text: UnsupportedError(text, needs=("Pad",), error_type="unsupported_operator"),
    ),
    (_REFUSED.pattern, lambda text: UnsupportedError(text, needs=_refused(text), error_type="unsupported_operator")),
    (
        r"Error while parsing WGSL|\[Invalid (?:ShaderModule|ComputePipeline)|ShaderModule .*is invalid|CreateComputePipeline",
        lambda text: CellFailure(text, error_type="webgpu_shader_compile"),
    ),
)


def failure_of(answer: Mapping[str, Any]) -> CellFailure:
    """Return the typed failure for a page's answer: ``error``, and optionally ``lost`` (why its device was lost) and ``log``."""
    text = str(answer["error"])
    if answer.get("lost"):
        return CrashedError(f"the GPU device was lost ({answer['lost']}): {text}", error_type="webgpu_device_lost")
    told = "\n".join([text, *(line for line in answer.get("log") or () if re.search(r"\[[EF]:onnxruntime", line))])
    for pattern, make in _KINDS:
        if re.search(pattern, told):
            return make(told)
    return refusal(told) or CellFailure(told, error_type="browser_runtime_failed")


def _names_in(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for found in pattern.findall(text) for name in ((found,) if isinstance(found, str) else found) if name))


def _refused(text: str) -> tuple[str, ...]:
    return tuple(f"{name[0].upper()}{name[1:]}" for name in _names_in(_REFUSED, text))


def _limit(text: str) -> str:
    found = re.search(r"[Mm]ax\w*[A-Z]\w+|max \w+ size", text)
    return found[0] if found else "a higher limit of the adapter"
