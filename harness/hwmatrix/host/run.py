"""A run, step by step: plan, prepare, bundles, one job a target, and what to do when one of them fails."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime as dt
import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.advice.catalogue import match
from hwmatrix.errors import HwmatrixError, NoTargetAvailableError, StoreError
from hwmatrix.hardware.detector import machine_identity
from hwmatrix.host import infrastructure
from hwmatrix.host.places import Ended, Job, Place
from hwmatrix.host.runs import RunFolder
from hwmatrix.host.stale import StaleRule, bundle_digests, stale
from hwmatrix.models.canary import canary_plans
from hwmatrix.records import CellPlan, Plan
from hwmatrix.store.freshness import made_with

if TYPE_CHECKING:
    from hwmatrix.host.console import View

_BUNDLES: Final = "bundles"
_NO_TOOLKIT: Final = "container_toolkit_missing"
"""The one fault of an engine that the catalogue can tell from its message and that has advice of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOrder:
    """A run that is ready to go: its folder and plan, where it runs, and how many targets at a time.

    ``stale`` says which verdicts are to be given anew; without it, those that are there stand.
    """

    folder: RunFolder
    plan: Plan
    place: Place
    reference: str
    cache: Path
    workers: int
    stale: StaleRule | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """What came of it: targets that failed as a whole, with the errors that decide the exit code."""

    failed: dict[str, HwmatrixError]

    def raise_first(self) -> None:
        """Raise the first failure, once all else is done and reported.

        Raises:
            HwmatrixError: a target's image, engine or store failed.
        """
        for error in self.failed.values():
            raise error


def run(order: RunOrder, view: View) -> RunOutcome:
    """Run every cell of the plan that has no verdict yet, or a stale one. Whatever ends it, shards that were begun are saved.

    Raises:
        HwmatrixError: the reference image cannot be built, or the bundles cannot be made: nothing can run then.
        NoTargetAvailableError: no target of the plan can run here; the plan says why for each.
    """
    todo = _to_do(order, order.folder.finished() if order.stale is None else set())
    if not todo and all(target.unavailable for target in order.plan.targets):
        reasons = "\n".join(f"{target.name}: {target.unavailable}" for target in order.plan.targets)
        raise NoTargetAvailableError(
            f"no requested target can run here:\n{reasons}", advice="See docs/images.md, or choose other --targets."
        )
    if not todo:
        view.say("nothing is missing: every cell has a verdict")
        return RunOutcome(failed={})
    failed = _prepare(order, todo, view)
    runnable = {target: cells for target, cells in todo.items() if target not in failed}
    if runnable:
        try:
            _make_bundles(order, view)
            if order.stale is not None:
                runnable = _to_do_anew(order, order.stale, runnable, view)
            failed |= _run_targets(order, runnable, view)
        except BaseException:
            order.place.stop()  # whatever ends the run, nothing of it works on
            raise
    return RunOutcome(failed=failed)


def _to_do(order: RunOrder, finished: set[str]) -> dict[str, tuple[CellPlan, ...]]:
    """Cells that are not finished, by target. Cells that cannot run are no work: the merge tells them from the plan."""
    todo: dict[str, tuple[CellPlan, ...]] = {}
    for target in order.plan.targets:
        cells = tuple(
            cell
            for cell in order.plan.cells
            if cell.target == target.name and cell.key not in finished and order.plan.model(cell.model, cell.size).unbuildable is None
        )
        if cells and target.unavailable is None:
            todo[target.name] = cells
    return todo


def _to_do_anew(order: RunOrder, rule: StaleRule, todo: dict[str, tuple[CellPlan, ...]], view: View) -> dict[str, tuple[CellPlan, ...]]:
    """Of these cells, those without a verdict and those whose verdict is stale. Images and bundles are as they would be used now."""
    made = made_with(sorted(order.folder.shards.glob("*.duckdb")))
    reasons = stale(
        (cell for cells in todo.values() for cell in cells),
        made,
        rule,
        images={target: order.place.identity(target)[1] for target in todo},
        bundles=bundle_digests(order.folder.bundles / "bundles.json"),
        now=dt.datetime.now(dt.UTC),
    )
    finished = order.folder.finished()
    anew = {
        target: chosen
        for target, cells in todo.items()
        if (chosen := tuple(cell for cell in cells if cell.key in reasons or cell.key not in finished))
    }
    told = ", ".join(f"{count} {reason}" for reason, count in Counter(reasons.values()).most_common())
    view.say(f"stale: {told}" if told else "nothing is stale")
    return anew


def _prepare(order: RunOrder, todo: dict[str, tuple[CellPlan, ...]], view: View) -> dict[str, HwmatrixError]:
    """Build the images. Without the reference nothing can run; without another, only its own cells cannot."""
    failed = order.place.prepare(list(dict.fromkeys((order.reference, *todo))))
    if order.reference in failed:
        raise failed[order.reference]
    for target, error in failed.items():
        view.say(f"{target}: {error}")
        finished = order.folder.finished()  # a verdict that is there stands until there is a newer one
        cells = tuple(cell for cell in todo[target] if cell.key not in finished)
        _record_failure(order, target, cells, "image_build_failed", str(error))
    return failed


def _make_bundles(order: RunOrder, view: View) -> None:
    """In the reference image, with all checkpoints of the plan readable.

    Raises:
        HwmatrixError: the job itself failed; a model whose bundle fails is data.
    """
    plan = order.plan
    local = tuple(dict.fromkeys(_local_checkpoints(plan)))
    models = [model for model in plan.models if model.unbuildable is None]
    job = Job(
        target=order.reference,
        work=_BUNDLES,
        plan_dir=order.folder.path,
        cache=order.cache,
        out=order.folder.bundles,
        memory_mb=max(cell.limits.memory_mb for cell in plan.cells),
        also_read=local,
    )
    view.begin(_BUNDLES, len(models) + len(canary_plans()), "to build or find")
    ended = follow(order.place, job, view, _BUNDLES)
    if ended.code != 0:
        raise infrastructure.failure(order.reference, "the bundles could not be made", ended)
    view.end(_BUNDLES)


def _local_checkpoints(plan: Plan) -> list[Path]:
    from pathlib import Path  # noqa: PLC0415

    return [Path(model.weights) for model in plan.models if model.weights not in {"recipe", "hub"} and model.unbuildable is None]


def _run_targets(order: RunOrder, todo: dict[str, tuple[CellPlan, ...]], view: View) -> dict[str, HwmatrixError]:
    """``workers`` targets at a time, each on cores of its own, so that they do not disturb each other's timing."""
    failed: dict[str, HwmatrixError] = {}
    core_sets = _core_sets(min(order.workers, len(todo)))
    free = list(core_sets)
    stopping = threading.Event()

    def one(target: str) -> HwmatrixError | None:
        cores = free.pop()
        try:
            return _run_target(order, target, todo[target], cores=cores, view=view, stopping=stopping)
        finally:
            free.append(cores)

    with concurrent.futures.ThreadPoolExecutor(max_workers=len(core_sets), thread_name_prefix="target") as pool:
        futures = {target: pool.submit(one, target) for target in todo}
        try:
            for target, future in futures.items():
                error = future.result()
                if error is not None:
                    failed[target] = error
        except BaseException:
            stopping.set()
            for future in futures.values():
                future.cancel()
            order.place.stop()
            raise
    return failed


def _run_target(
    order: RunOrder, target: str, cells: tuple[CellPlan, ...], *, cores: str | None, view: View, stopping: threading.Event
) -> HwmatrixError | None:
    """Run one target's cells. What a target that failed left undone is recorded as our failure; what was stopped is just not run."""
    image, digest = order.place.identity(target)
    order.folder.write_cells(target, [cell.key for cell in cells])
    arguments = ["--target", target, "--cells", target, "--host", machine_identity()]
    arguments += ["--image", image] if image else []
    arguments += ["--image-digest", digest] if digest else []
    job = Job(
        target=target,
        work="run",
        plan_dir=order.folder.path,
        cache=order.cache,
        out=order.folder.shards,
        arguments=tuple(arguments),
        memory_mb=max(cell.limits.memory_mb for cell in cells),
        cpuset=cores,
    )
    view.begin(target, len(cells))
    try:
        ended = follow(order.place, job, view, target)
    except HwmatrixError as error:
        if stopping.is_set():
            return None
        _record_unfinished(order, target, cells, str(error))
        return error
    if stopping.is_set():
        return None
    if ended.code != 0:
        failure = infrastructure.failure(target, "the runner ended before all cells were done", ended)
        view.say(str(failure))
        if isinstance(failure, StoreError):  # there is no room for telling it: what is missing is not run
            order.folder.salvage(target)
        else:
            _record_unfinished(order, target, cells, str(failure))
        return failure
    view.end(target)
    return None


def follow(place: Place, job: Job, view: View, title: str) -> Ended:
    """Hand the runner's events to the view. Lines that are none come from libraries. Why it failed is part of its output."""
    reasons: list[str] = []

    def on_line(line: str) -> None:
        with contextlib.suppress(ValueError):
            event: Any = json.loads(line)
            if isinstance(event, dict) and event.get("event") == "failed":
                reasons.append(event["message"])
            elif isinstance(event, dict) and "event" in event:
                view.event(title, event)

    ended = place.run(job, on_line)
    return dataclasses.replace(ended, output="\n".join([ended.output, *reasons]).strip())


def _record_unfinished(order: RunOrder, target: str, cells: tuple[CellPlan, ...], message: str) -> None:
    """What the shard has is kept; the rest is told as what it is: our failure, not the models'."""
    order.folder.salvage(target)
    finished = order.folder.finished()
    known = match(message, hardware=order.plan.target(target).backend.value).type
    error_type = known if known == _NO_TOOLKIT else "infrastructure"
    _record_failure(order, target, tuple(cell for cell in cells if cell.key not in finished), error_type, message)


def _record_failure(order: RunOrder, target: str, cells: tuple[CellPlan, ...], error_type: str, message: str) -> None:
    if cells:
        infrastructure.record(order.folder.shards, order.plan, target, cells, error_type=error_type, message=message)


def _core_sets(workers: int) -> list[str | None]:
    """Disjoint sets of cores, one a worker; None (all cores) where there is one worker or this system cannot tell."""
    if workers <= 1 or not sys.platform.startswith("linux"):
        return [None] * max(1, workers)
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // workers)
    return [",".join(str(core) for core in cores[(index * share) % len(cores) :][:share]) for index in range(workers)]
