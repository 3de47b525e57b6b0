"""Retries failed cells with one setting changed: selects the cells of the next round and makes their plan.

Each round has a plan of its own within the run's folder, with the same run id, so that bundles and targets run as usual and its shards lie
with the others. A cell is changed once per round, and the result decides the next change.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

import duckdb

from hwmatrix.errors import StoreError
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.knowledge.adapting import Attempt, Failed, next_change, short_of_memory
from hwmatrix.records import Adaptation, Change, Dtype, Status
from hwmatrix.records.backends import descriptor_of
from hwmatrix.store.confined import opened
from hwmatrix.store.reading import query

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from hwmatrix.records import CellPlan, ModelPlan, Plan, Settings, Size

FOLDER: Final = "adapted"
"""A folder within a run's folder: it has the plan of the latest round of adaptations, and its index of bundles."""


@dataclasses.dataclass(kw_only=True)
class _Ended:
    """How a cell last ended, and what was tried since then: each change with its result."""

    status: Status
    error_type: str | None
    message: str | None
    preparation: tuple[str, ...] | None
    tried: list[tuple[Change, _Ended]] = dataclasses.field(default_factory=list)

    def short_of_memory(self, backend: str) -> bool:
        return short_of_memory(self.status, self.error_type, self.message, hardware=backend)


_NOT_RUN: Final = _Ended(status=Status.NOT_RUN, error_type=None, message=None, preparation=None)
_Place = tuple[str, "Size", str, "Settings"]
"""A cell without its key: model, size, target, settings."""


def pending(plan: Plan, folder: RunFolder, *, besides: Collection[str] = ()) -> tuple[CellPlan, ...]:
    """Return the changed cells to try now: the next change for each failed cell that no change has made pass yet, except ``besides``.

    A change that is a cell of the plan itself is not tried again, but ended as that cell did: a run of all precisions does not repeat one
    of them for each failed other.

    Raises:
        StoreError: a shard cannot be read.
    """
    if plan.adapt is None:
        return ()
    ends = _ends(sorted(folder.shards.glob("*.duckdb")))
    here = {target.name for target in plan.targets if target.unavailable is None}
    planned = {(cell.model, cell.size, cell.target, cell.settings): cell.key for cell in plan.cells}
    found = ((cell, _next(plan, cell, ends, planned)) for cell in plan.cells if cell.key in ends and cell.target in here)
    changed = (adapted(cell, change) for cell, change in found if change is not None)
    return tuple(cell for cell in changed if cell.key not in besides)


def adapted(cell: CellPlan, change: Change) -> CellPlan:
    """Return the cell with a change applied."""
    ((name, value),) = change.data.items()
    return dataclasses.replace(
        cell,
        key=f"{cell.key}+{name}={value}",
        model=cell.model if change.batch is None else _name(cell.model, change.batch),
        settings=_settings(cell, change),
        adaptation=Adaptation(of=cell.key, model=cell.model, change=change),
    )


def round_of(plan: Plan, cells: Iterable[CellPlan]) -> Plan:
    """Make the plan of some changed cells. In it, a model with a smaller batch is a separate model with the same weights."""
    cells = tuple(cells)
    models = {cell.model_key: _model(plan, cell) for cell in cells}
    targets = {cell.target for cell in cells}
    return dataclasses.replace(
        plan,
        cells=cells,
        models=tuple(models.values()),
        targets=tuple(target for target in plan.targets if target.name in targets),
        types_of=None,
    )


def lay_down(folder: RunFolder, plan: Plan) -> RunFolder:
    """Create the folder of a round, where the runner finds its plan. Its shards go to the run's folder.

    Raises:
        StoreError: the folder cannot be written.
    """
    return RunFolder.within(folder, FOLDER, plan)


def _name(model: str, batch: int) -> str:
    return f"{model}, batch {batch}"


def _model(plan: Plan, cell: CellPlan) -> ModelPlan:
    assert cell.adaptation is not None  # noqa: S101 - only changed cells get here
    model = plan.model_of(plan.cell(cell.adaptation.of))
    batch = cell.adaptation.change.batch
    if batch is None:
        return model
    return dataclasses.replace(model, name=_name(model.name, batch), selector=model.selector or model.name, batch=batch)


def _next(plan: Plan, cell: CellPlan, ends: Mapping[str, _Ended], planned: Mapping[_Place, str]) -> Change | None:
    assert plan.adapt is not None  # noqa: S101 - checked in pending
    end = ends[cell.key]
    if any(other.status is Status.PASS for _, other in end.tried):
        return None
    backend = plan.target(cell.target).backend
    descriptor = descriptor_of(backend)
    if cell.settings.new_tokens and descriptor.no_generation is not None:
        return None
    failed = Failed(
        status=end.status,
        error_type=end.error_type,
        short_of_memory=end.short_of_memory(backend),
        batch=cell.settings.batch,
        dtype=cell.settings.dtype,
        export=descriptor.export_of(end.preparation),
        exports=() if cell.settings.new_tokens else descriptor.exports,  # generation has one export
        rewrites=descriptor.rewrites and not plan.target(cell.target).options.get("rewrite"),
        precisions=tuple(dtype for dtype in descriptor.precisions if dtype in plan.tolerances),
    )
    tried = [Attempt(change=change, short_of_memory=other.short_of_memory(backend)) for change, other in end.tried]
    while (change := next_change(plan.adapt, failed, tried)) is not None:
        other = _settings(cell, change)
        key = planned.get((cell.model, cell.size, cell.target, other)) if other != cell.settings else None
        if key is None:
            return change
        own = ends.get(key, _NOT_RUN)
        if own.status is Status.PASS:
            return None
        tried.append(Attempt(change=change, short_of_memory=own.short_of_memory(backend)))
    return None


def _settings(cell: CellPlan, change: Change) -> Settings:
    return dataclasses.replace(
        cell.settings, batch=change.batch or cell.settings.batch, dtype=cell.settings.dtype if change.dtype is None else change.dtype
    )


def _ends(shards: Iterable[Path]) -> dict[str, _Ended]:
    rows = sorted((row for shard in shards for row in _read(shard)), key=lambda row: row["started_at"])
    ends: dict[str, _Ended] = {}
    for row in rows:
        end = _Ended(status=Status(row["status"]), error_type=row["error_type"], message=row["message"], preparation=row["preparation"])
        if row["adapted_from"] is None:
            ends[row["cell_key"]] = end
        elif row["adapted_from"] in ends:
            data = json.loads(row["adaptation"])
            change = Change(**data | ({"dtype": Dtype(data["dtype"])} if "dtype" in data else {}))
            ends[row["adapted_from"]].tried.append((change, end))
    return ends


def _read(shard: Path) -> list[dict[str, Any]]:
    try:
        with opened(shard) as connection:
            cursor = connection.execute(query("adaptable"))
            columns = [column[0] for column in cursor.description or ()]
            return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    except duckdb.Error as error:
        raise StoreError(f"{shard}: cannot be read: {error}", advice="Delete it: its cells will be run again.") from error
