"""Creates the ONNX exports that a plan's targets need, in the reference image: each in its own forked child."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import CellFailure
from hwmatrix.models import onnx_export
from hwmatrix.models.bundle import verify
from hwmatrix.records import Limits, ModelPlan, Plan, Role, Size
from hwmatrix.records.backends import OnnxUse
from hwmatrix.runner.endings import describe, load
from hwmatrix.runner.forked import run_forked
from hwmatrix.runner.messages import BadMessageError, ExportTold, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

AGAIN: Final = ", neither beside others nor alone"
"""What is told of a second attempt that ended as the first."""


def wanted(plan: Plan) -> set[tuple[str, Size]]:
    """The models that some target of the plan, which can run here, executes as ONNX."""
    targets = {target.name for target in plan.targets if target.onnx_use is not OnnxUse.NONE and target.unavailable is None}
    return {(cell.model, cell.size) for cell in plan.cells if cell.target in targets}


def chosen_between(plan: Plan) -> bool:
    """Whether some target of the plan, which can run here, keeps the better of all exports."""
    return any(target.onnx_use is OnnxUse.BEST and target.unavailable is None for target in plan.targets)


def needed(model: ModelPlan, models: set[tuple[str, Size]]) -> bool:
    """Is this model one of them? Canaries are, as soon as any model is: they run on every target."""
    return bool(models) if model.role is not Role.MODEL else (model.name, model.size) in models


def export(
    key: str, cache: Path, limits: Limits, *, every: bool, again: bool = False, closing: tuple[int, ...] = ()
) -> list[dict[str, Any]]:
    """Have exporters called until one makes a graph of a bundle, or find what they gave; ``every``: all of them.

    One that was called before is called again where it has to be: what it gives may have moved. Returns what each did: ``exporter``,
    ``ok``, ``message``, and ``late`` if its time was over. What fails is kept as a failure, and says how busy the machine was if it was
    late; ``again``: and that this was the second attempt, with nothing of the run beside it.

    Raises:
        BundleError: the bundle is broken, or the cache cannot be written.
    """
    told: list[dict[str, Any]] = []
    for exporter in onnx_export.EXPORTERS:
        if every or not any(each["ok"] for each in told) or onnx_export.is_kept(key, cache, exporter):
            told.append({"exporter": exporter, **_export_by(exporter, cache / key, cache, limits, again=again, closing=closing)})
    return told


def _export_by(exporter: str, bundle: Path, cache: Path, limits: Limits, *, again: bool, closing: tuple[int, ...]) -> dict[str, Any]:
    end = run_forked(functools.partial(_make, exporter, bundle, cache), limits=limits, closing=closing)
    kind = "ExporterDied"
    try:
        if end.messages and end.refused is None:
            return dataclasses.asdict(read(ExportTold, end.messages[-1], len(end.messages)))
        why = describe(end, limits)
        if end.timed_out:
            kind, why = onnx_export.TIMED_OUT, f"{why}{AGAIN if again else ''}; {load()}"
    except BadMessageError as error:
        why = f"what the process told cannot be used: {error}"
    failure = onnx_export.OnnxFailure(exporter=exporter, error_type=kind, message=why, traceback=end.log or None)
    onnx_export.keep_failure(verify(bundle), cache, failure)
    return {"ok": False, "message": why, "late": end.timed_out}


def _make(exporter: str, bundle: Path, cache: Path, send: Callable[[dict[str, Any]], None]) -> None:
    """In the child: export or find, and tell the parent how it went."""
    try:
        made = onnx_export.export_one(verify(bundle), cache, exporter)
    except (CellFailure, MemoryError) as failure:
        send({"ok": False, "message": str(failure) or type(failure).__name__})
    else:
        ok = isinstance(made, onnx_export.OnnxExport)
        send({"ok": ok, "message": None if isinstance(made, onnx_export.OnnxExport) else made.message})
