"""The jobs of the reference image in a run: bundles, and more exports for models whose first export a target rejected."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from hwmatrix.basics.files import write_atomically
from hwmatrix.errors import StoreError
from hwmatrix.host import infrastructure
from hwmatrix.host.executors import Job, follow
from hwmatrix.host.sharing import at_once
from hwmatrix.models import onnx_export
from hwmatrix.models.build import HUB, RECIPE
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.records.backends import OnnxUse
from hwmatrix.records.bundle_index import INDEX, read_index
from hwmatrix.store.confined import opened
from hwmatrix.store.reading import query

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.host.console import View
    from hwmatrix.host.run_order import RunOrder
    from hwmatrix.records import CellPlan, ModelKey, ModelPlan

_BUNDLES: Final = "bundles"
_NOT_FOLDERS: Final = frozenset({RECIPE, HUB, FACTORY})


def prepare_reference(order: RunOrder) -> None:
    """Build the reference image.

    Raises:
        HwmatrixError: it cannot be built.
    """
    failed = order.executor.prepare([order.reference])
    if failed:
        raise failed[order.reference]


def make_bundles(order: RunOrder, models: Sequence[ModelPlan], view: View, *, total: int, every_exporter: bool = False) -> None:
    """Run the job that makes the bundles of these models and their exports, with read access to all their checkpoints.

    ``total`` is the number of bundles in the whole run, including canaries, for the view.

    Raises:
        HwmatrixError: the job itself failed. A model whose bundle fails is only recorded.
    """
    models = [model for model in models if model.unbuildable is None]
    memory_mb = max(model.limits.memory_mb for model in models)
    pieces = at_once(threads=1, memory_mb=memory_mb, cores=None, jobs=1, total_mb=order.memory_mb)
    order.folder.write_models(_BUNDLES, [model.key for model in models])
    flags = ("--every-exporter",) if every_exporter else ()
    job = Job(
        target=order.reference,
        work=_BUNDLES,
        plan_dir=order.folder.path,
        cache=order.cache,
        out=order.folder.bundles,
        arguments=("--models", _BUNDLES, "--at-once", str(pieces), *flags),
        memory_mb=memory_mb,
        at_once=pieces,
        also_read=tuple(dict.fromkeys(Path(model.weights) for model in models if model.weights not in _NOT_FOLDERS)),
    )
    view.begin(_BUNDLES, total, "to build or find")
    ended = follow(order.executor, job, view, _BUNDLES)
    if ended.code != 0:
        log = order.folder.path / "bundles.log"
        write_atomically(log, f"{ended.output}\n")
        raise infrastructure.failure(order.reference, f"the bundles could not be made; {log} has the whole output", ended)
    view.end(_BUNDLES)


def refused(order: RunOrder, cells: Mapping[str, Sequence[CellPlan]]) -> dict[str, tuple[CellPlan, ...]]:
    """Return by target the cells whose target rejected an export, and for which another exporter has not been tried yet.

    The graphs that generate have one exporter only.

    Raises:
        StoreError: a shard or the index of bundles cannot be read.
    """
    asking = {target.name for target in order.plan.targets if target.name in cells and target.onnx_use is OnnxUse.FIRST}
    if not asking:
        return {}
    index = order.folder.bundles / INDEX
    keys = {model: entry.key for model, entry in read_index(index).items()} if index.is_file() else {}
    stopped = _stopped(order, asking)
    return {
        target: chosen
        for target in sorted(asking)
        if (chosen := tuple(cell for cell in cells[target] if cell.key in stopped and _may_ask(order, keys, cell)))
    }


def _may_ask(order: RunOrder, keys: Mapping[ModelKey, str | None], cell: CellPlan) -> bool:
    key = keys.get(cell.model_key)
    if key is None or cell.settings.new_tokens:
        return False
    return not all(onnx_export.is_kept(key, order.cache, exporter) for exporter in onnx_export.EXPORTERS)


def _stopped(order: RunOrder, targets: set[str]) -> set[str]:
    found: set[str] = set()
    for target in targets:
        for shard in sorted(order.folder.shards.glob(f"{target}-*.duckdb")):
            try:
                with opened(shard) as connection:
                    found.update(key for (key,) in connection.execute(query("refused_exports")).fetchall())
            except duckdb.Error as error:
                raise StoreError(f"{shard}: cannot be read: {error}", advice="Delete it: its cells will be run again.") from error
    return found
