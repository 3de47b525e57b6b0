"""Runs one job on every target of a plan without cells. Each writes a shard, and a failure does not affect the others."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hwmatrix.errors import HwmatrixError, NoTargetAvailableError
from hwmatrix.hardware.detector import machine_identity
from hwmatrix.host import infrastructure
from hwmatrix.host.executors import Job, follow
from hwmatrix.host.run_order import RunOrder, RunOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.host.console import View
    from hwmatrix.records import TargetPlan


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetWork:
    """The work for every target: a command of the runner with its arguments, and a name for people."""

    work: str
    noun: str
    arguments: tuple[str, ...] = ()
    memory_mb: int = 4096
    done: frozenset[str] = frozenset()
    """Targets that have already done it."""


def run_on_targets(order: RunOrder, work: TargetWork, view: View, *, first: Callable[[], None] | None = None) -> RunOutcome:
    """Do the work on every target of the plan that can run here. ``first`` is called before it, once all images are built.

    Raises:
        HwmatrixError: ``first`` needs the reference image, which cannot be built; or ``first`` raises it.
        NoTargetAvailableError: no target of the plan can run here.
    """
    targets = [target for target in order.plan.targets if target.unavailable is None and target.name not in work.done]
    for target in order.plan.targets:
        if target.unavailable is not None:
            view.say(f"{target.name}: unavailable: {target.unavailable}")
    if not targets:
        raise NoTargetAvailableError("no requested target can run here", advice="See docs/images.md, or choose other --targets.")
    reference = [order.reference] if first is not None else []
    failed = order.executor.prepare(list(dict.fromkeys((*reference, *(target.name for target in targets)))))
    if first is not None and order.reference in failed:
        raise failed[order.reference]
    try:
        if first is not None:
            first()
        for target in targets:
            if target.name not in failed:
                error = _run_target(order, work, target, view)
                failed |= {target.name: error} if error is not None else {}
    except BaseException:
        order.executor.stop()
        raise
    return RunOutcome(failed=failed)


def _run_target(order: RunOrder, work: TargetWork, target: TargetPlan, view: View) -> HwmatrixError | None:
    """Do one target's work. An early end is reported, and the shard keeps what was done."""
    image, digest = order.executor.identity(target.name)
    arguments = ["--target", target.name, *work.arguments, "--host", machine_identity()]
    arguments += ["--image", image] if image else []
    arguments += ["--image-digest", digest] if digest else []
    job = Job(
        target=target.name,
        work=work.work,
        plan_dir=order.folder.path,
        cache=order.cache,
        out=order.folder.shards,
        arguments=tuple(arguments),
        memory_mb=work.memory_mb,
    )
    view.begin(target.name, 0, work.noun)
    try:
        ended = follow(order.executor, job, view, target.name)
    except HwmatrixError as error:
        order.folder.salvage(target.name)
        return error
    if ended.code != 0:
        failure = infrastructure.failure(target.name, f"the runner ended before all was done ({work.noun})", ended)
        view.say(str(failure))
        order.folder.salvage(target.name)
        return failure
    view.end(target.name)
    return None
