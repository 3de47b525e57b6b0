"""A run of the operator tests, step by step: images, the tests themselves, one job a target."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from hwmatrix.host import infrastructure
from hwmatrix.host.following import follow
from hwmatrix.host.places import Job
from hwmatrix.host.run import RunOrder, RunOutcome
from hwmatrix.host.target_jobs import TargetWork, run_on_targets

if TYPE_CHECKING:
    from hwmatrix.host.console import View

_TESTS: Final = "operator-tests"
_MEMORY_MB: Final = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorRun:
    """A run whose plan has targets and no cells, and which tests to run: a regular expression searched in their names."""

    order: RunOrder
    pattern: str


def run_operators(run: OperatorRun, view: View) -> RunOutcome:
    """Run the tests on every target of the plan that can run here; each leaves a shard.

    Raises:
        HwmatrixError: the reference image cannot be built, or the tests cannot be made.
        NoTargetAvailableError: no target of the plan can run here.
    """
    work = TargetWork(work="operators", noun="operator tests", arguments=(f"--tests={run.pattern}",), memory_mb=_MEMORY_MB)
    return run_on_targets(run.order, work, view, first=lambda: _make_tests(run.order, view))


def _make_tests(order: RunOrder, view: View) -> None:
    job = Job(
        target=order.reference,
        work=_TESTS,
        plan_dir=order.folder.path,
        cache=order.cache,
        out=order.folder.bundles,
        memory_mb=_MEMORY_MB,
    )
    ended = follow(order.place, job, view, _TESTS)
    if ended.code != 0:
        raise infrastructure.failure(order.reference, "the operator tests could not be made", ended)
