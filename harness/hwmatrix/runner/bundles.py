"""Builds the bundles of a plan in the reference image: each in a forked child, so that a broken model affects no other.

Nothing is timed here, so as many run in parallel as cores and memory allow. A build that ran out of time or memory, or lost its worker, is
retried once after all others, alone: a busy machine may have caused the failure.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import CellFailure
from hwmatrix.faults.catalogue import classify, text_of
from hwmatrix.models.bundle import bundle_key, find_or_build, find_or_take
from hwmatrix.models.canary import canary_plans
from hwmatrix.records import Isolation, ModelKey, ModelPlan, Plan, Role, Status
from hwmatrix.records.bundle_index import INDEX, BundleEntry, read_index, write_index
from hwmatrix.runner import exports
from hwmatrix.runner.crew import Crew, Done, at_once
from hwmatrix.runner.endings import describe, load, out_of_memory
from hwmatrix.runner.events import emit
from hwmatrix.runner.forked import run_owning
from hwmatrix.runner.messages import BadMessageError, BundleTold, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import Limits
    from hwmatrix.runner.forked import End

_TRAINING: Final = 4
"""How many of its time limits the training of a model may take."""
_TRIES: Final = 6
"""Steps that each get a model's time limit in turn: its bundle, each of two exporters, and each of three exports of other kinds."""
UNFINISHED: Final = "bundle_unfinished"
"""The type of a failure that says nothing about the model: the machine was too busy, or the worker was lost."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BundleOrder:
    """Which bundles to build: those of ``models`` (None: all in the plan), and of the canaries, which run everywhere.

    ``every_exporter``: call all exporters for these models instead of stopping at the first success. ``at_once`` is the number of
    parallel builds that memory allows.
    """

    plan: Plan
    cache: Path
    out: Path
    models: frozenset[ModelKey] | None = None
    every_exporter: bool = False
    at_once: int = 1

    @property
    def chosen(self) -> list[ModelPlan]:
        """The canaries, and the models to build."""
        wanted = [model for model in self.plan.models if self.models is None or model.key in self.models]
        return [*canary_plans(), *(model for model in wanted if model.unbuildable is None)]


def all_cached(order: BundleOrder) -> bool:
    """Whether the cache has all bundles and exports of an order. Nothing is verified, so a damaged one counts, too."""
    wanted = _exports_of(order)
    for model in order.chosen:
        try:
            key = bundle_key(model)
        except CellFailure:  # the child that builds it says why
            return False
        if not (order.cache / key).is_dir():
            return False
        if not exports.all_kept(key, order.cache, wanted(model)):
            return False
    return True


def _exports_of(order: BundleOrder) -> Callable[[ModelPlan], exports.Wanted]:
    """Which exports each model needs. Reads the plan once."""
    forward, named = exports.wanted(order.plan), exports.wanted_by_name(order.plan)
    every = order.every_exporter or exports.chosen_between(order.plan)

    of_canaries = exports.of_canaries(order.plan)

    def of(model: ModelPlan) -> exports.Wanted:
        names = named.get(model.key, ()) if model.role is Role.MODEL else of_canaries
        return exports.Wanted(forward=model.key in forward, every=every, named=names)

    return of


def build_all(order: BundleOrder) -> list[BundleEntry]:
    """Build what is missing in the cache; write the index ``bundles.json`` to the order's folder ``out``.

    Models are also exported as their targets need them. A failed export is kept, and reported by the cells that need it. An
    unfinished bundle or export is retried once after all others; the outcome of the retry counts.
    """
    plan = order.plan
    models = order.chosen
    found: dict[int, BundleEntry] = {}
    wanted = _exports_of(order)
    run = functools.partial(run_owning, restricted=plan.isolation is Isolation.CONTAINER)
    work = functools.partial(_build_and_export, run, order.cache, [(model, wanted(model)) for model in models])
    size = min(at_once(order.at_once, 1), len(models))
    unfinished: list[int] = []

    def of(number: int) -> ModelPlan:
        return models[number % len(models)]

    def patience(number: int) -> float:
        """A bundle and each of its exports may take as long as their limits say."""
        return _limit_of_bundle(of(number)).timeout_s + (_TRIES - 1) * of(number).limits.timeout_s

    with Crew(work, size=size, patience=patience) as crew:
        for done in crew.do(range(len(models)), lambda number: _emit_started(of(number))):
            reason = _unfinished(done)
            if reason is None:
                found[done.number] = _index_entry(of(done.number), done)
            else:
                unfinished.append(done.number)
                emit("bundle_again", model=of(done.number).name, size=of(done.number).size.value, message=reason)
        for number in sorted(unfinished):  # one task at a time: each retry runs alone
            for done in crew.do([len(models) + number], lambda number: _emit_started(of(number))):
                found[number] = _index_entry(of(number), done, again=True)
    entries = [found[number] for number in range(len(models))]
    index = order.out / INDEX  # it may have entries of other models, which stay
    write_index(index, ((read_index(index) if index.is_file() else {}) | {entry.model_key: entry for entry in entries}).values())
    return entries


def _limit_of_bundle(model: ModelPlan) -> Limits:
    """The limits of a bundle. Training takes longer than anything that a cell does, and how long depends on the processor."""
    return dataclasses.replace(model.limits, timeout_s=_TRAINING * model.limits.timeout_s) if model.trained else model.limits


def _build_and_export(
    run: exports.Run, cache: Path, models: list[tuple[ModelPlan, exports.Wanted]], number: int, closing: tuple[int, ...]
) -> dict[str, Any]:
    """Build one bundle and its exports, each in a child process; return their outcome. Numbers past the last model are retries."""
    again, index = divmod(number, len(models))
    model, wanted = models[index]
    run = functools.partial(run, closing=closing)
    entry, bundle = _find_or_build(model, cache, run, _limit_of_bundle(model), again=bool(again))
    told = exports.export(bundle, cache, model.limits, wanted, run, again=bool(again)) if bundle is not None else []
    return {"entry": dataclasses.asdict(entry), "exports": told}


class _NotBuiltError(Exception):
    """The child did not build the bundle: the entry says why."""

    def __init__(self, entry: BundleEntry) -> None:
        super().__init__(entry.message)
        self.entry = entry


def _find_or_build(model: ModelPlan, cache: Path, run: exports.Run, limits: Limits, *, again: bool) -> tuple[BundleEntry, Bundle | None]:
    """Find the bundle, or have a child build it in a cache of its own, since a model's code must not change other bundles."""

    def build(own: Path) -> None:
        end = run(functools.partial(_build, model, own), own, limits=limits)
        entry = _entry_of_end(model, end, limits, again=again)
        if entry.key is None:
            raise _NotBuiltError(entry)

    try:
        bundle = find_or_take(model, cache, build)
    except _NotBuiltError as failure:
        return failure.entry, None
    except CellFailure as failure:
        return _entry_of(model, error_type=failure.error_type, message=str(failure)), None
    return _entry_of(model, key=bundle.key, digest=bundle.digest), bundle


def _unfinished(done: Done) -> str | None:
    """Why a task must be retried; None: its outcome is final."""
    if done.answer is None:
        return f"the worker that built the bundle {done.problem}"
    if done.answer["entry"]["error_type"] == UNFINISHED:
        return str(done.answer["entry"]["message"])
    return next((f"the export by {told['exporter']}: {told['message']}" for told in done.answer["exports"] if told.get("late")), None)


def _emit_started(model: ModelPlan) -> None:
    emit("bundle_started", model=model.name, size=model.size.value)


def _index_entry(model: ModelPlan, done: Done, *, again: bool = False) -> BundleEntry:
    """The index entry of a finished model, also sent to the host. If the worker died, nothing that it built is trusted."""
    if done.answer is None:
        message = f"the bundle was not built: the worker that did it {done.problem}{exports.AGAIN if again else ''}; {load()}"
        entry = _entry_of(model, error_type=UNFINISHED, message=message)
    else:
        entry = BundleEntry(**(done.answer["entry"] | {"size": model.size}))
    emit("bundle", model=model.name, size=model.size.value, ok=entry.key is not None, message=entry.message)
    for told in done.answer["exports"] if done.answer is not None else ():
        emit("export", model=model.name, size=model.size.value, **told)
    return entry


def _entry_of(model: ModelPlan, **found: Any) -> BundleEntry:
    return BundleEntry(model=model.name, size=model.size, batch=model.batch, sequence_length=model.sequence_length, **found)


def _build(model: ModelPlan, cache: Path, send: Callable[[dict[str, Any]], None]) -> None:
    """In the child: build the bundle in a cache of its own, and send its key or the failure to the parent."""
    try:
        bundle = find_or_build(model, cache)
    except Exception as failure:
        if classify(failure).status is Status.OOM:
            kind = UNFINISHED
        elif isinstance(failure, CellFailure):
            kind = failure.error_type
        else:
            raise
        send({"error_type": kind, "message": text_of(failure)})
    else:
        send({"key": bundle.key, "digest": bundle.digest})


def _entry_of_end(model: ModelPlan, end: End, limits: Limits, *, again: bool) -> BundleEntry:
    kind = "factory_failed"
    try:
        if end.messages and end.refused is None:
            told = read(BundleTold, end.messages[-1], len(end.messages))
            if told.error_type != UNFINISHED:
                return _entry_of(model, **dataclasses.asdict(told))
            kind, why = UNFINISHED, f"memory ran out: {told.message}"
        else:
            why = describe(end, limits)
            if end.timed_out or out_of_memory(end):
                kind = UNFINISHED
        if kind == UNFINISHED:
            why += f"{exports.AGAIN if again else ''}; {load()}"
    except BadMessageError as error:
        why = f"the process sent an invalid message: {error}"
    message = f"the bundle was not built: {why}"
    return _entry_of(model, error_type=kind, message=message, traceback=end.log or None)
