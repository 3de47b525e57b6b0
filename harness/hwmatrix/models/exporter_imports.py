"""What transformers' exporters import when they are first called. A warm parent imports it once for all forked processes.

Import errors are ignored here: the exporter meets the same error and reports it.
"""

from __future__ import annotations

import contextlib
import importlib

from hwmatrix.models import openvino_graph


def for_onnx() -> None:
    """Import what ONNX exporters need: four seconds."""
    _import("onnx", "networkx", "onnxscript.optimizer", "onnxscript.rewriter", "onnxscript.version_converter")


def for_openvino() -> None:
    """Import what transformers' OpenVINO exporter needs: two seconds. No Core is made, since that would start threads."""
    openvino_graph.without_telemetry()
    _import("openvino", "networkx", "openvino.frontend.pytorch.fx_decoder", "openvino.frontend.pytorch.ts_decoder", "openvino.tools.ovc")


def for_executorch() -> None:
    """Import what lowering to ExecuTorch needs, and its runtime: ten seconds."""
    _import("executorch", "networkx", "executorch.exir", "executorch.devtools", "executorch.runtime")


def _import(exporter: str, *modules: str) -> None:
    for name in (*modules, f"transformers.exporters.exporter_{exporter}"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError):
        from transformers.exporters.utils import apply_patches

        for backend in ("dynamo", exporter):  # imports the dozens of models that the exporter changes whatever model is exported
            with apply_patches(backend):
                pass
