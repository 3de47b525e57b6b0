"""Every backend, explicitly. Adding one adds a line here, a member to ``records.Backend`` and a module."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, cast

from hwmatrix.records import Backend, Dtype

if TYPE_CHECKING:
    from hwmatrix.targets.protocol import OperatorRunner, Target

TARGETS: Final[dict[Backend, str]] = {
    Backend.CPU: "hwmatrix.targets.torch.cpu:TorchCpu",
    Backend.OPENVINO: "hwmatrix.targets.openvino.target:OpenVino",
    Backend.ONNXRUNTIME: "hwmatrix.targets.onnx.onnxruntime:OnnxRuntime",
    Backend.CUDA: "hwmatrix.targets.torch.cuda:TorchCuda",
    Backend.ROCM: "hwmatrix.targets.torch.rocm:TorchRocm",
    Backend.MPS: "hwmatrix.targets.torch.mps:TorchMps",
    Backend.WEBGPU: "hwmatrix.targets.browser.target:WebGpu",
    Backend.WEBNN: "hwmatrix.targets.browser.target:WebNn",
    Backend.QNN: "hwmatrix.targets.qnn.target:Qnn",
}

REQUIRES: Final[dict[Backend, tuple[str, ...]]] = {
    Backend.CPU: ("torch", "transformers"),
    Backend.OPENVINO: ("torch", "transformers", "openvino"),
    Backend.ONNXRUNTIME: ("onnxruntime",),
    Backend.CUDA: ("torch", "transformers"),
    Backend.ROCM: ("torch", "transformers"),
    Backend.MPS: ("torch", "transformers"),
    Backend.WEBGPU: ("websocket",),
    Backend.WEBNN: ("websocket",),
    Backend.QNN: ("onnxruntime", "onnxruntime_qnn", "onnxscript"),
}
"""The modules that a backend cannot do without: whoever runs outside an image can look for them without importing any."""

NEEDS_ONNX: Final = frozenset({"onnxruntime", "qnn", "webgpu", "webnn"})
"""Backends that execute a bundle's ONNX exports, which the reference image makes."""

CHOOSES_EXPORT: Final = NEEDS_ONNX - {"onnxruntime"}
"""Those of them that keep the export of which the larger share is on the target, and so need what every exporter gives."""


_ONNX_EXPORTS: Final = ("transformers", "torch")
TRACE: Final = "trace"
"""OpenVINO's way beside the exporter of transformers: its own converter, on a trace."""

EXPORTS: Final[dict[Backend, tuple[str, ...]]] = {
    Backend.OPENVINO: ("transformers", TRACE),
    Backend.ONNXRUNTIME: _ONNX_EXPORTS,
    Backend.WEBGPU: _ONNX_EXPORTS,
    Backend.WEBNN: _ONNX_EXPORTS,
    Backend.QNN: _ONNX_EXPORTS,
}
"""The ways in which a backend's model is exported, in the order in which it tries them. ``options["export"]`` asks for one alone."""

_TORCH: Final = (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16)
_PRECISIONS: Final[dict[Backend, tuple[Dtype, ...]]] = {
    Backend.CPU: _TORCH,
    Backend.OPENVINO: _TORCH,
    Backend.CUDA: _TORCH,
    Backend.ROCM: _TORCH,
    Backend.MPS: (Dtype.FLOAT32, Dtype.FLOAT16),
    Backend.QNN: (Dtype.FLOAT16, Dtype.A16W8, Dtype.A8W8),
}


def precisions_of(backend: Backend) -> tuple[Dtype, ...]:
    """What a backend can compute in, whatever precisions matrix.yaml has tested on it: float32 alone, where nothing else is known."""
    return _PRECISIONS.get(backend, (Dtype.FLOAT32,))


def export_of(backend: Backend, method: str | None) -> str | None:
    """The way of ``EXPORTS`` in which a cell's model was exported, by what the cell says of its preparation; None: not known."""
    if method is None or backend not in EXPORTS:
        return None
    if backend is Backend.OPENVINO:
        return TRACE if method.startswith("openvino.") else "transformers"
    words = method.split()
    return next((way for way in EXPORTS[backend] if way in words), None)


def target_class(backend: Backend) -> type[Target]:
    """The class of a backend, imported now: its framework comes along only where it is used."""
    module, _, name = TARGETS[backend].partition(":")
    return cast("type[Target]", getattr(importlib.import_module(module), name))


OPERATORS: Final[dict[Backend, str]] = {
    Backend.OPENVINO: "hwmatrix.targets.openvino.operators:OpenVinoOperators",
    Backend.ONNXRUNTIME: "hwmatrix.targets.onnx.operators:OnnxRuntimeOperators",
    Backend.QNN: "hwmatrix.targets.qnn.operators:QnnOperators",
    Backend.WEBGPU: "hwmatrix.targets.browser.operators:WebGpuOperators",
    Backend.WEBNN: "hwmatrix.targets.browser.operators:WebNnOperators",
}
"""Backends that execute small ONNX graphs, and so the tests of the standard's operators."""


def operators_class(backend: Backend) -> type[OperatorRunner]:
    """The class that executes operator tests for a backend of ``OPERATORS``, imported now."""
    module, _, name = OPERATORS[backend].partition(":")
    return cast("type[OperatorRunner]", getattr(importlib.import_module(module), name))
