"""The steps of a run of operator tests: plan it or resume the last one, run the tests on each target, merge, report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from hwmatrix.app.execution import PlannedRun, facts_of, finishing, merge_shards, order_of, refuse_gone
from hwmatrix.host import run_folder
from hwmatrix.host.executors import choose
from hwmatrix.host.operator_jobs import OperatorRun, run_operators
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.matrix.load import LoadedMatrix
from hwmatrix.matrix.plan import make_operator_plan
from hwmatrix.report.operator_report import write_operators
from hwmatrix.store.reading import DATABASE

if TYPE_CHECKING:
    from hwmatrix.app.environment import Environment
    from hwmatrix.host.console import View
    from hwmatrix.host.executors import Workshop


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorRequest:
    """A request to run the operator tests whose names match ``pattern`` (a regular expression). ``resume`` continues the last such run.

    ``page`` is a document to write in addition to the reports of the output folder.
    """

    loaded: LoadedMatrix
    targets: tuple[str, ...]
    pattern: str
    isolation: str
    resume: bool
    output: Path
    page: Path | None = None


def run_operator_tests(request: OperatorRequest, workshop: Workshop, environment: Environment, view: View) -> None:
    """Run the tests. However the run ends, finished tests are merged and reported.

    Raises:
        ConfigError: there is no run to resume, or matrix.yaml no longer has its targets.
        NoTargetAvailableError: no target can run here.
        HwmatrixError: a target's image, engine or store failed; the others ran.
    """
    planned = _resumed(request, workshop) if request.resume else _planned(request, workshop, environment)
    folder = planned.folder
    with finishing(folder, lambda: _merge_and_report(folder, request.output, view, page=request.page), view):
        order = order_of(request.loaded, planned, workshop)
        outcome = run_operators(OperatorRun(order=order, pattern=folder.pattern(), resume=request.resume), view)
    outcome.raise_first()


def _planned(request: OperatorRequest, workshop: Workshop, environment: Environment) -> PlannedRun:
    executor = choose(request.isolation, workshop)
    plan = make_operator_plan(request.loaded, list(request.targets), facts_of(request.loaded, executor, environment, workshop.commit))
    folder = RunFolder.create(request.output / run_folder.OPERATORS, plan)
    folder.write_pattern(request.pattern)
    return PlannedRun(folder=folder, plan=plan, executor=executor)


def _resumed(request: OperatorRequest, workshop: Workshop) -> PlannedRun:
    folder = RunFolder.latest(request.output / run_folder.OPERATORS)
    plan = folder.plan()
    refuse_gone(request.loaded, plan)
    return PlannedRun(folder=folder, plan=plan, executor=choose(plan.isolation, workshop))


def _merge_and_report(folder: RunFolder, output: Path, view: View, *, page: Path | None) -> None:
    merge_shards([folder.path], output / DATABASE, view)
    for path in write_operators(output / DATABASE, output, page=page):
        view.say(f"wrote {path}")
