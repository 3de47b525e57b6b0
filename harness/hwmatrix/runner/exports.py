"""Making the ONNX exports that a plan's targets need, in the reference image: each in a forked child of its own."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from hwmatrix.errors import CellFailure
from hwmatrix.models import onnx_export
from hwmatrix.models.bundle import verify
from hwmatrix.records import Limits, ModelPlan, Plan, Role, Size
from hwmatrix.runner.endings import describe
from hwmatrix.runner.events import emit
from hwmatrix.runner.forked import run_forked
from hwmatrix.targets.table import NEEDS_ONNX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def wanted(plan: Plan) -> set[tuple[str, Size]]:
    """The models that some target of the plan, which can run here, executes as ONNX."""
    targets = {target.name for target in plan.targets if target.backend in NEEDS_ONNX and target.unavailable is None}
    return {(cell.model, cell.size) for cell in plan.cells if cell.target in targets}


def needed(model: ModelPlan, models: set[tuple[str, Size]]) -> bool:
    """Is this model one of them? Canaries are, as soon as any model is: they run on every target."""
    return bool(models) if model.role is not Role.MODEL else (model.name, model.size) in models


def export(model: ModelPlan, key: str, cache: Path, limits: Limits) -> None:
    """Make what each exporter makes of a bundle, or find it in the cache. What fails is kept as a failure."""
    for exporter in onnx_export.EXPORTERS:
        _export_by(exporter, model, cache / key, cache, limits)


def _export_by(exporter: str, model: ModelPlan, bundle: Path, cache: Path, limits: Limits) -> None:
    end = run_forked(functools.partial(_make, exporter, bundle, cache), limits=limits)
    if end.messages:
        told = end.messages[-1]
    else:
        why = describe(end, limits)
        told = {"ok": False, "message": why}
        failure = onnx_export.OnnxFailure(exporter=exporter, error_type="ExporterDied", message=why, traceback=end.log or None)
        onnx_export.keep_failure(verify(bundle), cache, failure)
    emit("export", model=model.name, size=model.size.value, exporter=exporter, **told)


def _make(exporter: str, bundle: Path, cache: Path, send: Callable[[dict[str, Any]], None]) -> None:
    """In the child: export or find, and tell the parent how it went."""
    try:
        made = onnx_export.export_one(verify(bundle), cache, exporter)
    except (CellFailure, MemoryError) as failure:
        send({"ok": False, "message": str(failure) or type(failure).__name__})
    else:
        ok = isinstance(made, onnx_export.OnnxExport)
        send({"ok": ok, "message": None if isinstance(made, onnx_export.OnnxExport) else made.message})
