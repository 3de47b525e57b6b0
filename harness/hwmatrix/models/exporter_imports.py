"""What transformers' exporters import when they are first called. A warm parent imports it once for all forked processes.

Import errors are ignored here: the exporter meets the same error and reports it.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Final

from hwmatrix.models import openvino_graph

if TYPE_CHECKING:
    from collections.abc import Iterable

_TRACE: Final = (
    "networkx",
    "torch._dynamo.convert_frame",
    "torch._export.non_strict_utils",
    "torch._export.passes.replace_autocast_with_hop_pass",
    "torch._export.passes.replace_set_grad_with_hop_pass",
    "torch._inductor.compiler_bisector",
    "torch._inductor.decomposition",
    "torch._inductor.fx_passes.dedupe_symint_uses",
    "torch._inductor.sizevars",
    "torch.export._trace",
    "transformers.exporters.configs",
)
"""Modules that every export needs (torch 2.13, transformers 5.23)."""
_ONNX: Final = (
    "onnx.checker",
    "onnxscript.optimizer",
    "onnxscript.rewriter",
    "onnxscript.version_converter",
    "torch.onnx._internal.exporter._core",
    "torch.onnx._internal.exporter._onnx_program",
    "torch.onnx._internal.exporter._torchlib.ops",
    "transformers.exporters.exporter_onnx",
)
_OPENVINO: Final = (
    "openvino.frontend.pytorch.fx_decoder",
    "openvino.frontend.pytorch.ts_decoder",
    "openvino.tools.ovc.convert",
    "transformers.exporters.exporter_openvino",
)
_EXECUTORCH: Final = (
    "executorch.backends.xnnpack.partition.xnnpack_partitioner",
    "executorch.devtools",
    "executorch.exir",
    "executorch.runtime",
    "transformers.exporters.exporter_executorch",
)


def for_onnx() -> None:
    """Import what ONNX exporters need: about 2,200 modules, three seconds."""
    _import((*_TRACE, *_ONNX), patched=("dynamo", "onnx"))


def for_openvino() -> None:
    """Import what transformers' OpenVINO exporter needs: two seconds. No Core is made, since that would start threads."""
    openvino_graph.without_telemetry()
    _import((*_TRACE, *_OPENVINO), patched=("dynamo", "openvino"))


def for_executorch() -> None:
    """Import what lowering to ExecuTorch needs, and its runtime: ten seconds."""
    _import((*_TRACE, *_EXECUTORCH), patched=("dynamo", "executorch", "executorch.xnnpack"))


def _import(modules: Iterable[str], *, patched: Iterable[str]) -> None:
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError):
        from transformers.exporters.utils import apply_patches

        for backend in patched:  # imports the dozens of models that are patched whatever model is exported
            with apply_patches(backend):
                pass
