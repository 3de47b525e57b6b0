"""A run of the operator tests, step by step: images, the tests themselves, one job per target."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import duckdb

from hwmatrix.errors import StoreError
from hwmatrix.host import infrastructure
from hwmatrix.host.executors import Job, follow
from hwmatrix.host.run_order import RunOrder, RunOutcome
from hwmatrix.host.target_jobs import TargetWork, run_on_targets
from hwmatrix.store.confined import opened
from hwmatrix.store.reading import query

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.host.console import View

_TESTS: Final = "operator-tests"
_MEMORY_MB: Final = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorRun:
    """A run whose plan has targets but no cells. ``pattern`` is a regular expression that selects tests by name.

    ``resume``: run only tests without a verdict, on targets that did not finish.
    """

    order: RunOrder
    pattern: str
    resume: bool = False


def run_operators(run: OperatorRun, view: View) -> RunOutcome:
    """Run the tests on every target of the plan that can run here. Each writes a shard.

    Raises:
        HwmatrixError: the reference image cannot be built, or the tests cannot be made.
        NoTargetAvailableError: no target of the plan can run here.
    """
    work = TargetWork(work="operators", noun="operator tests", arguments=(f"--tests={run.pattern}",), memory_mb=_MEMORY_MB)
    if run.resume:
        done = _list_finished(run.order)
        if done and done.issuperset(target.name for target in run.order.plan.targets if target.unavailable is None):
            view.say("nothing is missing: every target that can run here has run its tests")
            return RunOutcome(failed={})
        work = dataclasses.replace(work, arguments=(*work.arguments, "--resume"), done=done)
    return run_on_targets(run.order, work, view, first=lambda: _make_tests(run.order, view))


def _list_finished(order: RunOrder) -> frozenset[str]:
    """Write for the runners which tests have a verdict. Return the targets that finished."""
    finished: defaultdict[str, list[str]] = defaultdict(list)
    complete: set[str] = set()
    for shard in sorted(order.folder.shards.glob("*.duckdb")):
        complete.update(target for (target,) in _asked(shard, "operators_complete"))
        for target, test in _asked(shard, "operators_finished"):
            finished[target].append(test)
    for planned in order.plan.targets:
        order.folder.write_finished(planned.name, finished[planned.name])
    return frozenset(complete)


def _asked(shard: Path, name: str) -> list[tuple[str, ...]]:
    try:
        with opened(shard) as connection:
            return connection.execute(query(name)).fetchall()
    except duckdb.Error as error:
        raise StoreError(f"{shard}: cannot be read: {error}", advice="Delete it: its tests will be run again.") from error


def _make_tests(order: RunOrder, view: View) -> None:
    job = Job(
        target=order.reference,
        work=_TESTS,
        plan_dir=order.folder.path,
        cache=order.cache,
        out=order.folder.bundles,
        memory_mb=_MEMORY_MB,
    )
    ended = follow(order.executor, job, view, _TESTS)
    if ended.code != 0:
        raise infrastructure.failure(order.reference, "the operator tests could not be made", ended)
