"""Creates the exports that a plan's targets need, in the reference image: each in its own forked child."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import CellFailure, OutOfMemoryError
from hwmatrix.models import onnx_export
from hwmatrix.models.canary import canary_plans
from hwmatrix.records.backends import OnnxUse
from hwmatrix.runner.endings import describe, load, out_of_memory
from hwmatrix.runner.messages import BadMessageError, ExportTold, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import Limits, ModelKey, Plan
    from hwmatrix.runner.forked import End

    Run = Callable[..., End]
    """``run_owning`` with the descriptors that a child closes, and whether it is restricted."""

AGAIN: Final = ", both in parallel with other work and alone"
"""Added to the message when the retry ended like the first attempt."""


def wanted(plan: Plan) -> set[ModelKey]:
    """The models whose forward pass the plan's available targets execute as ONNX. The canaries are among them: they run on every target."""
    targets = {target.name for target in plan.targets if target.onnx_use is not OnnxUse.NONE and target.unavailable is None}
    cells = [cell for cell in plan.cells if cell.target in targets]
    forward = {cell.model_key for cell in cells if not cell.settings.new_tokens}
    return forward | ({model.key for model in canary_plans()} if cells else set())


def wanted_by_name(plan: Plan) -> dict[ModelKey, tuple[str, ...]]:
    """The exports that the plan's available targets name, by model: those with which they generate, and those of a forward pass."""
    targets = {target.name: target for target in plan.targets if target.unavailable is None}
    found: dict[ModelKey, dict[str, None]] = {}
    for cell in plan.cells:
        if cell.target in targets:
            target = targets[cell.target]
            export = target.generation_export if cell.settings.new_tokens else target.forward_export
            if export is not None:
                found.setdefault(cell.model_key, {})[export] = None
    return {model: tuple(names) for model, names in found.items()}


def of_canaries(plan: Plan) -> tuple[str, ...]:
    """The exports of a forward pass that the plan's available targets name. Canaries run on every target."""
    named = [target.forward_export for target in plan.targets if target.unavailable is None and target.forward_export is not None]
    return tuple(dict.fromkeys(named))


def chosen_between(plan: Plan) -> bool:
    """Whether some available target of the plan chooses the best of all exports."""
    return any(target.onnx_use is OnnxUse.BEST and target.unavailable is None for target in plan.targets)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """The exports of a bundle: ``forward`` its ONNX graph, by ``every`` exporter or the first that makes one, and those ``named``."""

    forward: bool
    every: bool = False
    named: tuple[str, ...] = ()


def all_kept(key: str, cache: Path, wanted: Wanted) -> bool:
    """Whether :func:`export` would call no exporter, because the cache has what it needs."""
    if not all(onnx_export.is_kept(key, cache, export) for export in wanted.named):
        return False
    for exporter in onnx_export.EXPORTERS if wanted.forward else ():
        if not onnx_export.is_kept(key, cache, exporter):
            return False
        if not wanted.every and onnx_export.is_kept(key, cache, exporter, graph=True):
            return True
    return True


def export(bundle: Bundle, cache: Path, limits: Limits, wanted: Wanted, run: Run, *, again: bool = False) -> list[dict[str, Any]]:
    """Call exporters until one exports a bundle, or find earlier results; then those that are named. ``run`` runs each in a child.

    An exporter with a kept result is called again, because that result may be out of date. Returns the outcome of each: ``exporter``,
    ``ok``, ``message``, and ``late`` if time or memory ran out. Failures are kept. The message of such a one says how busy the machine was
    and, with ``again``, that the retry without other work in parallel ended in the same way.

    Raises:
        BundleError: the bundle is broken, or the cache cannot be written.
    """
    outcomes: list[dict[str, Any]] = []

    def call(exporter: str) -> None:
        outcomes.append({"exporter": exporter, **_export_by(exporter, bundle, cache, limits, run, again=again)})

    for exporter in onnx_export.EXPORTERS if wanted.forward else ():
        if wanted.every or not any(each["ok"] for each in outcomes) or onnx_export.is_kept(bundle.key, cache, exporter):
            call(exporter)
    for exporter in wanted.named:
        if exporter not in {each["exporter"] for each in outcomes}:
            call(exporter)
    return outcomes


class _NothingMadeError(Exception):
    """The child has no result to keep, since it could not write; what it told says so."""

    def __init__(self, told: ExportTold) -> None:
        super().__init__(told.message)
        self.told = told


def _export_by(exporter: str, bundle: Bundle, cache: Path, limits: Limits, run: Run, *, again: bool) -> dict[str, Any]:
    """Find the export, or have a child make it in a cache of its own, as for bundles."""
    late = False

    def make(own: Path) -> onnx_export.OnnxFailure | None:
        nonlocal late
        end, kind = run(functools.partial(_make, exporter, bundle, own), own, limits=limits), "ExporterDied"
        try:
            if end.messages and end.refused is None:
                told = read(ExportTold, end.messages[-1], len(end.messages))
                if onnx_export.is_kept(bundle.key, own, exporter):
                    return None
                if not told.memory:
                    raise _NothingMadeError(told)
                late, kind, why = True, onnx_export.OUT_OF_MEMORY, str(told.message)
            else:
                why = describe(end, limits)
                if end.timed_out or out_of_memory(end):
                    late, kind = True, onnx_export.TIMED_OUT if end.timed_out else onnx_export.OUT_OF_MEMORY
            if late:
                why = f"{why}{AGAIN if again else ''}; {load()}"
        except BadMessageError as error:
            why = f"the process sent an invalid message: {error}"
        return onnx_export.OnnxFailure(exporter=exporter, error_type=kind, message=why, traceback=end.log or None)

    try:
        failure = onnx_export.find_or_take(bundle, cache, exporter, make)
    except _NothingMadeError as nothing:
        return {"ok": False, "message": nothing.told.message}
    except CellFailure as problem:
        return {"ok": False, "message": str(problem)}
    return {"ok": failure is None, "message": failure.message if failure else None} | ({"late": True} if late else {})


def _make(exporter: str, bundle: Bundle, own: Path, send: Callable[[dict[str, Any]], None]) -> None:
    """In the child: export, and send the outcome to the parent."""
    try:
        made = onnx_export.export_one(bundle, own, exporter)
    except CellFailure as problem:
        send({"ok": False, "message": str(problem), "memory": isinstance(problem, OutOfMemoryError)})
    else:
        failure = made if isinstance(made, onnx_export.OnnxFailure) else None
        send({"ok": failure is None, "message": failure.message if failure else None})
