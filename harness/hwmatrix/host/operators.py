"""A run of the operator tests, step by step: images, the tests themselves, one job a target."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import HwmatrixError, NoTargetAvailableError
from hwmatrix.hardware.detector import machine_identity
from hwmatrix.host import infrastructure
from hwmatrix.host.places import Job
from hwmatrix.host.run import RunOrder, RunOutcome, follow

if TYPE_CHECKING:
    from hwmatrix.host.console import View
    from hwmatrix.records import TargetPlan

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
    order = run.order
    targets = [target for target in order.plan.targets if target.unavailable is None]
    for target in order.plan.targets:
        if target.unavailable is not None:
            view.say(f"{target.name}: unavailable: {target.unavailable}")
    if not targets:
        raise NoTargetAvailableError("no requested target can run here", advice="See docs/images.md, or choose other --targets.")
    failed = order.place.prepare(list(dict.fromkeys((order.reference, *(target.name for target in targets)))))
    if order.reference in failed:
        raise failed[order.reference]
    try:
        _make_tests(order, view)
        for target in targets:
            if target.name not in failed:
                error = _run_target(run, target, view)
                failed |= {target.name: error} if error is not None else {}
    except BaseException:
        order.place.stop()
        raise
    return RunOutcome(failed=failed)


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


def _run_target(run: OperatorRun, target: TargetPlan, view: View) -> HwmatrixError | None:
    """Run one target's tests. What ends it early is told; its shard keeps the tests that were done."""
    order = run.order
    image, digest = order.place.identity(target.name)
    arguments = ["--target", target.name, f"--tests={run.pattern}", "--host", machine_identity()]
    arguments += ["--image", image] if image else []
    arguments += ["--image-digest", digest] if digest else []
    job = Job(
        target=target.name,
        work="operators",
        plan_dir=order.folder.path,
        cache=order.cache,
        out=order.folder.shards,
        arguments=tuple(arguments),
        memory_mb=_MEMORY_MB,
    )
    view.begin(target.name, 0, "operator tests")
    try:
        ended = follow(order.place, job, view, target.name)
    except HwmatrixError as error:
        order.folder.salvage(target.name)
        return error
    if ended.code != 0:
        failure = infrastructure.failure(target.name, "the runner ended before all tests were done", ended)
        view.say(str(failure))
        order.folder.salvage(target.name)
        return failure
    view.end(target.name)
    return None
