"""Trials: executes one model on one kind of hardware after the other, as the fallback policy says.

Every attempt is an ordinary run: planned, executed cell by cell, merged. Attempts of several trials with the same batch share a run.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.app.environment import Environment
from hwmatrix.app.execution import PlannedRun, facts_of, finishing, merge_shards, order_of
from hwmatrix.app.selecting import fetch_weights
from hwmatrix.errors import HwmatrixError, NoTargetAvailableError
from hwmatrix.faults.catalogue import MEMORY
from hwmatrix.host.execution import run
from hwmatrix.host.executors import Executor, Workshop
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.knowledge.adapting import short_of_memory
from hwmatrix.knowledge.fallback import Attempt, AttemptPlan, Tried, next_attempt
from hwmatrix.knowledge.largest_batch import BatchSearch, found_by, next_batch
from hwmatrix.matrix.load import LoadedMatrix
from hwmatrix.matrix.plan import Selection, make_plan
from hwmatrix.records import Axes, CellPlan, Dtype, Plan, Status
from hwmatrix.store.reading import DATABASE, reading, records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.host.console import View
    from hwmatrix.matrix.spec import TargetSpec

_UNTRIED: Final = frozenset({Status.UNAVAILABLE, Status.INFRA_ERROR, Status.NOT_RUN})
"""Statuses that say nothing about the model, since it was not executed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialSite:
    """Where trials run: the model and its selection, the executor, and the folder for runs and database.

    ``memory_mb`` is the limit of each attempt, ``timing`` whether it is timed; None: as matrix.yaml says. ``dtype`` is the precision of
    each attempt; None: its target's first. ``axes`` has at most one value for each setting.
    """

    loaded: LoadedMatrix
    selection: Selection
    executor: Executor
    workshop: Workshop
    environment: Environment
    output: Path
    memory_mb: int | None = None
    timing: bool | None = None
    dtype: Dtype | None = None
    axes: Axes = dataclasses.field(default_factory=Axes)

    @property
    def targets(self) -> dict[str, TargetSpec]:
        """The targets of matrix.yaml that have the precision, by name."""
        every = self.loaded.spec.targets
        return {name: target for name, target in every.items() if self.dtype is None or self.dtype in target.every_dtype}

    @property
    def database(self) -> Path:
        """The merged database of all attempts."""
        return self.output / DATABASE


@dataclasses.dataclass
class Trial:
    """The trial of one kind of hardware. ``targets`` maps hardware to targets of matrix.yaml.

    With ``search``, the first hardware of the plan is tried with batch after batch, in search of the largest one that passes.

    ``tried`` and ``rows`` grow by one with each attempt. A row is None if no run was needed, because the hardware is missing.
    """

    plan: AttemptPlan
    targets: dict[str, str]
    asked: bool
    search: BatchSearch | None = None
    tried: list[Tried] = dataclasses.field(default_factory=list)
    rows: list[dict[str, Any] | None] = dataclasses.field(default_factory=list)

    def next_to_run(self, executor: Executor) -> Attempt | None:
        """The next attempt; unavailable hardware is skipped and recorded with the reason."""
        while (attempt := self._next()) is not None:
            target = self.targets.get(attempt.hardware)
            reason = "matrix.yaml has no target for it" if target is None else executor.unavailable(target)
            if reason is None:
                return attempt
            self._end(Tried(attempt=attempt, status=Status.UNAVAILABLE, reason=reason, error_type="target_unavailable"), None)
        return None

    def _next(self) -> Attempt | None:
        if self.search is None:
            return next_attempt(self.plan, self.tried)
        batch = next_batch(self.search, self.tried)
        return None if batch is None else Attempt(hardware=self.plan.order[0], batch=batch)

    @property
    def decisive(self) -> int:
        """The index of the attempt that is the trial's result: the last one, or of a search the largest batch that passed, if any did."""
        found = None if self.search is None else found_by(self.search, self.tried)
        return len(self.tried) - 1 if found is None or found.passed is None else self.tried.index(found.passed)

    def missing(self) -> list[str]:
        """The targets that are not available here: a run's plan records them with the reason."""
        passed_over = [tried.attempt.hardware for tried, row in zip(self.tried, self.rows, strict=True) if row is None]
        return [self.targets[hardware] for hardware in passed_over if hardware in self.targets]

    def learn(self, attempt: Attempt, row: dict[str, Any]) -> None:
        """Record the result of an attempt."""
        status, reason, error_type = Status(row["status"]), row["message"], row["error_type"]
        if status is Status.FACTORY_ERROR and short_of_memory(status, error_type, reason, hardware=row["backend"]):
            error_type = MEMORY  # the reference did not fit into the cell's memory; with a smaller batch it may
        did = {"wall_ms": row["wall_ms"], "dtype": Dtype(row["dtype"]), "batch": row["batch"]}
        self._end(Tried(attempt=attempt, status=status, reason=reason, error_type=error_type, **did), row)

    def _end(self, tried: Tried, row: dict[str, Any] | None) -> None:
        self.tried.append(tried)
        self.rows.append(row)

    @property
    def executed(self) -> bool:
        """Whether the model was executed at least once."""
        return any(tried.status not in _UNTRIED for tried in self.tried)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """The result of trials: the folders of their runs, errors outside of cells (an image, the engine), and the seconds that all took."""

    folders: tuple[RunFolder, ...]
    failures: tuple[HwmatrixError, ...]
    elapsed_s: float


def run_trials(site: TrialSite, trials: Sequence[Trial], view: View) -> Ended:
    """Run all trials to their end, round by round.

    Raises:
        ConfigError: matrix.yaml lacks the selected model or target.
        HwmatrixError: the reference image or the bundles cannot be built, so nothing can run.
    """
    begin = time.monotonic()
    folders: list[RunFolder] = []
    failures: list[HwmatrixError] = []
    recorded: set[str] = set()
    while pending := [(trial, attempt) for trial in trials if (attempt := trial.next_to_run(site.executor)) is not None]:
        pending.sort(key=lambda each: -each[1].batch)
        for batch, same in itertools.groupby(pending, key=lambda each: each[1].batch):
            together = list(same)
            targets = [trial.targets[attempt.hardware] for trial, attempt in together]
            missing = {target for trial in trials for target in trial.missing()} - recorded - set(targets)
            recorded |= missing
            folder, failed = _run(site, [*targets, *missing], batch, view)
            folders.append(folder)
            failures += failed
            rows = {row["target"]: row for row in _rows(site, folder)}
            for (trial, attempt), target in zip(together, targets, strict=True):
                trial.learn(attempt, rows[target])
    return Ended(folders=tuple(folders), failures=tuple(failures), elapsed_s=time.monotonic() - begin)


def plan_of(site: TrialSite, targets: Sequence[str], batch: int | None) -> Plan:
    """The plan of one attempt: one forward pass on these targets with this batch (None: matrix.yaml's).

    Raises:
        ConfigError: none of these targets has the precision, or the model takes no text and has no sequence length to choose.
    """
    dtypes = () if site.dtype is None else (site.dtype,)
    selection = dataclasses.replace(
        site.selection, targets=tuple(targets), generation=False, timing=site.timing, dtypes=dtypes, axes=site.axes
    )
    plan = make_plan(site.loaded, selection, facts_of(site.loaded, site.executor, site.environment, site.workshop.commit))
    first = {target: site.dtype or site.loaded.spec.targets[target].dtypes[0] for target in targets}
    cells = tuple(_within(_with_batch(cell, batch), site.memory_mb) for cell in plan.cells if cell.settings.dtype is first[cell.target])
    models = tuple(
        model if batch in {None, model.batch} else dataclasses.replace(model, batch=batch, batch_asked=True) for model in plan.models
    )
    if site.memory_mb is not None:
        models = tuple(
            dataclasses.replace(model, memory_asked=True, limits=dataclasses.replace(model.limits, memory_mb=site.memory_mb))
            for model in models
        )
    return dataclasses.replace(plan, cells=cells, models=models, adapt=None)  # the trials themselves halve the batch


def _with_batch(cell: CellPlan, batch: int | None) -> CellPlan:
    if batch is None:
        return cell
    key = cell.key.replace(f"/b{cell.settings.batch}-", f"/b{batch}-")
    return dataclasses.replace(cell, key=key, settings=dataclasses.replace(cell.settings, batch=batch))


def _within(cell: CellPlan, memory_mb: int | None) -> CellPlan:
    return cell if memory_mb is None else dataclasses.replace(cell, limits=dataclasses.replace(cell.limits, memory_mb=memory_mb))


def _run(site: TrialSite, targets: Sequence[str], batch: int, view: View) -> tuple[RunFolder, list[HwmatrixError]]:
    """Execute one ordinary run, and merge it however it ends."""
    plan = fetch_weights(plan_of(site, targets, batch), site.workshop.cache_dir)
    folder = RunFolder.create(site.output, plan)
    order = order_of(site.loaded, PlannedRun(folder=folder, plan=plan, executor=site.executor), site.workshop)
    try:
        with finishing(folder, lambda: merge_shards([folder.path], site.database, view), view):
            outcome = run(order, view)
    except NoTargetAvailableError as error:
        return folder, [error]
    return folder, list(outcome.failed.values())


def _rows(site: TrialSite, folder: RunFolder) -> list[dict[str, Any]]:
    with reading(site.database) as connection:
        return records(connection, "tested_cells", {"run_id": folder.path.name})
