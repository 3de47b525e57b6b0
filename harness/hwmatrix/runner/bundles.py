"""Building the bundles of a plan, in the reference image: each in a forked child, so that one bad model harms no other."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import CellFailure
from hwmatrix.models.canary import canary_plans
from hwmatrix.records import Limits, ModelPlan, Plan, Size
from hwmatrix.runner import exports
from hwmatrix.runner.endings import describe
from hwmatrix.runner.events import emit
from hwmatrix.runner.forked import End, run_forked
from hwmatrix.store.shard import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INDEX: Final = "bundles.json"
INDEX_SCHEMA: Final = "hwmatrix/bundle-index/1"
_CANARY_LIMITS: Final = Limits(timeout_s=120.0, memory_mb=4096)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BundleEntry:
    """Where a model's bundle lies (a folder's name within the cache), or why there is none."""

    model: str
    size: Size
    key: str | None = None
    digest: str | None = None
    error_type: str | None = None
    message: str | None = None
    traceback: str | None = None


def build_all(plan: Plan, cache: Path, out: Path) -> list[BundleEntry]:
    """Build what is missing in the cache, one after the other; write the index ``bundles.json`` into ``out``.

    Models that some target executes as ONNX are exported as well. A failed export is kept, and told where it is needed.
    """
    limits = {(cell.model, cell.size): cell.limits for cell in plan.cells}
    models = [*canary_plans(), *(model for model in plan.models if model.unbuildable is None)]
    onnx = exports.wanted(plan)
    entries = []
    for model in models:
        limit = limits.get((model.name, model.size), _CANARY_LIMITS)
        entries.append(_build_one(model, cache, limit))
        if entries[-1].key is not None and exports.needed(model, onnx):
            exports.export(model, entries[-1].key, cache, limit)
    index = {"schema": INDEX_SCHEMA, "bundles": [dataclasses.asdict(entry) for entry in entries]}
    write_atomically(out / INDEX, json.dumps(index, indent=1) + "\n")
    return entries


def read_index(path: Path) -> dict[tuple[str, Size], BundleEntry]:
    """The index that :func:`build_all` wrote, by model and size."""
    data = json.loads(path.read_text(encoding="utf-8"))
    entries = [BundleEntry(**(entry | {"size": Size(entry["size"])})) for entry in data["bundles"]]
    return {(entry.model, entry.size): entry for entry in entries}


def _build_one(model: ModelPlan, cache: Path, limits: Limits) -> BundleEntry:
    emit("bundle_started", model=model.name, size=model.size.value)
    entry = _entry(model, run_forked(functools.partial(_build, model, cache), limits=limits), limits)
    emit("bundle", model=model.name, size=model.size.value, ok=entry.key is not None, message=entry.message)
    return entry


def _build(model: ModelPlan, cache: Path, send: Callable[[dict[str, Any]], None]) -> None:
    """In the child: build or find, and tell the parent which it is."""
    from hwmatrix.models.bundle import find_or_build  # noqa: PLC0415 - brings torch

    try:
        bundle = find_or_build(model, cache)
    except CellFailure as failure:
        send({"error_type": failure.error_type, "message": str(failure)})
    else:
        send({"key": bundle.key, "digest": bundle.digest})


def _entry(model: ModelPlan, end: End, limits: Limits) -> BundleEntry:
    if end.messages:
        return BundleEntry(model=model.name, size=model.size, **end.messages[-1])
    message = f"the bundle was not built: {describe(end, limits)}"
    return BundleEntry(model=model.name, size=model.size, error_type="factory_failed", message=message, traceback=end.log or None)
