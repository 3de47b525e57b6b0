"""The steps of a run of the matrix: plan it or resume the last one, execute it, merge its shards, write the reports."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hwmatrix
from hwmatrix.app.selecting import fetch_weights
from hwmatrix.app.type_models import TypeModels
from hwmatrix.basics.cache_folder import bundles_folder
from hwmatrix.basics.clock import now, utc_now
from hwmatrix.basics.text import plural
from hwmatrix.errors import ConfigError, HwmatrixError, NothingSelectedError, Problem, StoreError
from hwmatrix.host import bundle_archive, infrastructure
from hwmatrix.host.bundle_jobs import make_bundles, prepare_reference
from hwmatrix.host.execution import run
from hwmatrix.host.executors import Executor, Workshop, choose
from hwmatrix.host.run_folder import OPERATORS, RUNS, RunFolder, locked
from hwmatrix.host.run_order import RunOrder
from hwmatrix.host.source_repository import commit_of, web_address_of
from hwmatrix.matrix.plan import RunFacts, check_selection, make_plan, replan
from hwmatrix.matrix.shipped import harness_source
from hwmatrix.measure.cores import usable
from hwmatrix.models.canary import canary_plans
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.records import Isolation, Plan, Status
from hwmatrix.records.backends import descriptor_of
from hwmatrix.report.operator_report import write_operators
from hwmatrix.report.plots import undrawn
from hwmatrix.report.write import write_reports
from hwmatrix.store.merge import merge
from hwmatrix.store.reading import DATABASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hwmatrix.app.environment import Environment
    from hwmatrix.host.console import View
    from hwmatrix.matrix.load import LoadedMatrix
    from hwmatrix.matrix.plan import Selection
    from hwmatrix.records import TargetPlan
    from hwmatrix.store.merge import Rejection

_KEEPS_PLAN: Final = "a run keeps its plan: use --stale or start a new run to apply changes of models or lists"
_UNAVAILABLE: Final = "target_unavailable"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that is ready to execute: its folder, the plan in it, and where it runs."""

    folder: RunFolder
    plan: Plan
    executor: Executor


def workshop_of(loaded: LoadedMatrix, environment: Environment, base_image: str | None, view: View) -> Workshop:
    """The settings that executors need."""
    root = loaded.path.absolute().parent
    source, commit = harness_source(root), commit_of(root)
    return Workshop(
        project_root=root,
        spec=loaded.spec,
        cache_dir=environment.cache,
        environment=environment.variables,
        base_image=base_image or environment.base_image,
        commit=commit,
        source=None if source is None or commit is None else web_address_of(source),
        say=view.say,
        detail=view.detail,
    )


def facts_of(loaded: LoadedMatrix, executor: Executor, environment: Environment, commit: str | None) -> RunFacts:
    """The facts about a new run for its plan, including which targets cannot run here, and why."""
    unavailable = {name: reason for name in loaded.spec.targets if (reason := executor.unavailable(name)) is not None}
    return facts_with(environment, commit, executor.isolation, unavailable)


def facts_with(environment: Environment, commit: str | None, isolation: Isolation, unavailable: dict[str, str]) -> RunFacts:
    """The facts about a new run for its plan. ``unavailable`` are the targets that cannot run, with the reasons."""
    return RunFacts(
        run_id=f"{now():%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        created_at=utc_now(),
        command=environment.command,
        hwmatrix_version=hwmatrix.__version__,
        commit=commit,
        isolation=isolation,
        unavailable=unavailable,
    )


def order_of(loaded: LoadedMatrix, planned: PlannedRun, workshop: Workshop, workers: int = 1) -> RunOrder:
    """The order for executing a planned run."""
    return RunOrder(
        folder=planned.folder,
        plan=planned.plan,
        executor=planned.executor,
        reference=loaded.spec.images.reference,
        cache=bundles_folder(workshop.cache_dir),
        workers=workers,
        memory_mb=workshop.memory_mb,
    )


def plan_here(
    loaded: LoadedMatrix,
    selection: Selection,
    isolation: str,
    workshop: Workshop,
    *,
    environment: Environment,
    output: Path,
    workers: int = 1,
) -> PlannedRun:
    """A new run on this machine, after downloading the weights that it needs.

    Raises:
        ConfigError: the selection names something that matrix.yaml does not have, or cells are to be timed on more cores than there are.
    """
    check_selection(loaded, selection)
    executor = choose(isolation, workshop)
    plan = make_plan(loaded, selection, facts_of(loaded, executor, environment, workshop.commit))
    check_cores(plan, workers)
    plan = fetch_weights(plan, workshop.cache_dir)
    return PlannedRun(folder=RunFolder.create(output, plan), plan=plan, executor=executor)


def check_cores(plan: Plan, workers: int = 1) -> None:
    """Check that each cell whose speed is measured gets a core for each of its threads.

    Raises:
        ConfigError: this machine has fewer cores than a cell has threads, or its share of them is smaller.
    """
    targets = {target.name for target in plan.targets if target.unavailable is None}
    on_cpu = {name for name in targets if descriptor_of(plan.target(name).backend).on_cpu(plan.target(name).options)}
    threads = max((cell.settings.threads for cell in plan.cells if cell.target in on_cpu), default=1)
    cores, jobs = len(usable()), min(workers, len(targets))
    if not plan.timing or threads * max(1, jobs) <= cores:
        return
    problem = Problem(
        where=f"threads: {threads}",
        what=f"the speed of a cell would be measured on more threads than there are cores: {cores}",
        hint=f"choose at most {cores}, or measure no speed: --no-timing",
    )
    if threads <= cores:
        problem = Problem(
            where=f"--workers {workers}",
            what=f"{jobs} targets with {threads} {'thread' if threads == 1 else 'threads'} each would share {cores} cores",
            hint=f"choose at most {cores // threads}, or measure no speed: --no-timing",
        )
    raise ConfigError([problem])


def plan_elsewhere(loaded: LoadedMatrix, selection: Selection, isolation: Isolation, *, environment: Environment) -> Plan:
    """The plan of a new run that other machines execute; they determine which targets are available.

    Raises:
        ConfigError: the selection names something that matrix.yaml does not have.
    """
    return make_plan(loaded, selection, facts_with(environment, commit_of(loaded.path.absolute().parent), isolation, {}))


def resume_last(loaded: LoadedMatrix, output: Path, workshop: Workshop, *, stale: bool) -> PlannedRun:
    """The latest run, with the same isolation as before. Its images are those of the current matrix.yaml.

    With ``stale``, its plan is updated to the current matrix.yaml. Targets that this machine lacks, such as those of a cluster's run, are
    left to others: their missing cells stay missing.

    Raises:
        ConfigError: there is no run, matrix.yaml no longer has its targets, or cells are to be timed on more cores than there are.
    """
    folder = RunFolder.latest(output)
    plan = folder.plan()
    refuse_gone(loaded, plan)
    changed = plan.matrix_sha256 != loaded.sha256
    if stale and (changed or _has_types(plan)):
        plan = fetch_weights(_replanned(loaded, plan, workshop), workshop.cache_dir)
        folder.replace_plan(plan)
    if changed:
        consequence = "its current models and targets are used" if stale else _KEEPS_PLAN
        workshop.say(f"{loaded.path.name} has changed since the run was planned; {consequence}")
    executor = choose(plan.isolation, workshop)
    here = _for_this_machine(plan, executor, workshop)
    check_cores(here)
    return PlannedRun(folder=folder, plan=here, executor=executor)


def _for_this_machine(plan: Plan, executor: Executor, workshop: Workshop) -> Plan:
    """The plan with the targets that cannot run here marked as unavailable. Prints them with the reasons."""
    targets: list[TargetPlan] = []
    for target in plan.targets:
        reason = target.unavailable or executor.unavailable(target.name)
        if reason is not None and target.unavailable is None:
            workshop.say(f"{target.name}: not continued on this machine: {reason}")
        targets.append(dataclasses.replace(target, unavailable=reason))
    return dataclasses.replace(plan, targets=tuple(targets))


def refuse_gone(loaded: LoadedMatrix, plan: Plan) -> None:
    """Check that matrix.yaml still has all targets of a run.

    Raises:
        ConfigError: some are gone; it names them.
    """
    gone = [target.name for target in plan.targets if target.name not in loaded.spec.targets]
    if gone:
        what = f"the last run has targets that {loaded.path.name} no longer has: {', '.join(gone)}"
        raise ConfigError([Problem(where="--resume", what=what, hint="put them back, or start without --resume")])


def _replanned(loaded: LoadedMatrix, plan: Plan, workshop: Workshop) -> Plan:
    """The run's plan, updated to the current matrix.yaml and transformers types. Prints which types are gone or new."""
    if plan.types_of is None and not _has_types(plan):
        return replan(loaded, plan)
    known = TypeModels.beside(loaded.spec)
    made = replan(loaded, plan, types=known.every(), types_of=known.found.version)
    before, now = ({model.name for model in each.models if model.weights == FACTORY} for each in (plan, made))
    for word, names in (("gone", before - now), ("new", now - before)):
        if names:
            workshop.say(f"types of transformers {known.found.version} that are {word}: {', '.join(sorted(names))}")
    return made


def _has_types(plan: Plan) -> bool:
    return any(model.weights == FACTORY for model in plan.models)


@contextlib.contextmanager
def finishing(folder: RunFolder, finish: Callable[[], object], view: View) -> Iterator[None]:
    """Lock a run's folder while its work is done. However that ends, finished cells are saved, and ``finish`` merges and reports them.

    If the work failed, its error is raised, and one of ``finish`` is only printed.

    Raises:
        StoreError: another process has locked the folder.
    """
    with locked(folder):
        folder.salvage()
        try:
            yield
        except BaseException:
            try:
                folder.salvage()
                finish()
            except HwmatrixError as error:
                view.say(f"not reported: {error}")
            raise
        finish()


def run_and_report(order: RunOrder, output: Path, view: View) -> None:
    """Execute a run. However it ends, finished cells are merged and reported.

    Raises:
        HwmatrixError: nothing could run, or a target's image, engine or store failed and the others ran.
    """
    with finishing(order.folder, lambda: merge_and_report(order.folder, output, order.cache, view), view):
        outcome = run(order, view)
    outcome.raise_first()


def merge_and_report(folder: RunFolder, output: Path, cache: Path, view: View) -> None:
    """Merge a run's shards into the output folder's database, and write the reports beside it. ``cache`` is the cache folder.

    Raises:
        StoreError: shards were rejected; the others are merged and reported.
    """
    operators = sorted((output / OPERATORS / RUNS).glob("*/plan.json"))[-1:]  # the latest: its results apply to this run's models
    rejected = merge_shards([folder.path, *(plan.parent for plan in operators)], output / DATABASE, view, fresh=True)
    written = [*write_reports(output / DATABASE, output, cache=cache), *write_operators(output / DATABASE, output)]
    counts = json.loads((output / "matrix.json").read_text(encoding="utf-8"))["run"]["counts"]
    view.say(f"{plural(sum(counts.values()), 'cell')}: {', '.join(f'{count} {status}' for status, count in counts.items())}")
    names = ", ".join([*(path.name for path in written), DATABASE])
    reason = undrawn()
    if reason is not None:
        view.say(reason)
    view.say(f"wrote {names} into {_short(output)}; start with {_short(output / ('index.html' if reason is None else 'matrix.md'))}")
    if rejected:
        advice = f"Delete these files in {_short(folder.path / 'shards')}, then: hwmatrix matrix --resume"
        raise StoreError(f"{plural(len(rejected), 'shard')} rejected", advice=advice)


def merge_shards(folders: Sequence[Path], database: Path, view: View, *, fresh: bool = False) -> tuple[Rejection, ...]:
    """Merge the shards of runs into a database (``fresh``: only of these runs). Print and return which were rejected, and why."""
    rejected = merge(folders, database, fresh=fresh).rejected
    for rejection in rejected:
        view.say(f"rejected the shard {rejection.file}: {rejection.reason}")
    return rejected


def _short(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def pack_bundles(
    whole: Plan, archive: Path, loaded: LoadedMatrix, workshop: Workshop, *, output: Path, view: View, executor: Executor | None = None
) -> int:
    """Make the bundles of a plan and the exports that its targets need, and pack them for other machines. Return the number of bundles.

    ``executor`` runs the work; None: one that suits the plan.

    Raises:
        NothingSelectedError: none of the plan's models can be built.
        HwmatrixError: the reference image cannot be built, the bundles cannot be made, or the archive cannot be written.
    """
    plan = fetch_weights(whole, workshop.cache_dir)
    models = [model for model in plan.models if model.unbuildable is None]
    if not models:
        raise NothingSelectedError("no model of the plan can be built", advice="Plan a run with other --models.")
    executor = executor or choose(plan.isolation, workshop)
    folder = RunFolder.continued(output, plan)
    order = order_of(loaded, PlannedRun(folder=folder, plan=plan, executor=executor), workshop)
    with locked(folder):
        try:
            prepare_reference(order)
            make_bundles(order, models, view, total=len(models) + len(canary_plans()))
            return bundle_archive.pack(folder, order.cache, archive)
        except BaseException:
            executor.stop()
            raise


def run_part(
    whole: Plan,
    targets: Sequence[str],
    loaded: LoadedMatrix,
    workshop: Workshop,
    *,
    output: Path,
    view: View,
    bundles: Path | None = None,
    failures: bool = False,
    executor: Executor | None = None,
) -> RunFolder:
    """Execute some targets of a plan that was made elsewhere; return the folder with their shards.

    ``bundles`` is an archive of :func:`pack_bundles`: its bundles are used, and only those that it lacks are made here; with ``failures``,
    those that could not be made are not tried again. For a target that is not available here, the shard contains only the reason.
    ``executor`` runs the work; None: one that suits the plan. If an earlier
    call with this output folder was killed, the cells that it finished are kept.

    Raises:
        NothingSelectedError: the plan has no cell on these targets.
        StoreError: the archive is rejected.
        HwmatrixError: a target's image, engine or store failed; the others ran.
    """
    executor = executor or choose(isolation_of_part(whole, targets, loaded), workshop)
    plan = fetch_weights(restrict(whole, targets, executor), workshop.cache_dir)
    folder = RunFolder.continued(output, plan)
    with finishing(folder, lambda: None, view):
        for target in plan.targets:
            if target.unavailable is not None:
                view.say(f"{target.name}: unavailable: {target.unavailable}")
                cells = tuple(cell for cell in plan.cells if cell.target == target.name)
                infrastructure.record(
                    folder.shards,
                    plan,
                    target.name,
                    cells,
                    error_type=_UNAVAILABLE,
                    message=target.unavailable,
                    status=Status.UNAVAILABLE,
                )
        if any(target.unavailable is None for target in plan.targets):
            order = order_of(loaded, PlannedRun(folder=folder, plan=plan, executor=executor), workshop)
            if bundles is not None:
                order = dataclasses.replace(
                    order, handed_over=bundle_archive.unpack(bundles, folder, whole, order.cache, failures=failures)
                )
            run(order, view).raise_first()
    return folder


def isolation_of_part(whole: Plan, targets: Sequence[str], loaded: LoadedMatrix) -> Isolation:
    """The isolation of some targets of a plan on a machine that runs only these: native ones need no container engine."""
    native = all(loaded.spec.targets[name].native for name in targets)
    return Isolation.VENV if native and whole.isolation is Isolation.CONTAINER else whole.isolation


def restrict(plan: Plan, targets: Sequence[str], executor: Executor) -> Plan:
    """The part of a plan for some targets, with their availability on this machine.

    Raises:
        NothingSelectedError: it has no cell.
    """
    kept = tuple(
        dataclasses.replace(target, unavailable=executor.unavailable(target.name)) for target in plan.targets if target.name in targets
    )
    cells = tuple(cell for cell in plan.cells if cell.target in targets)
    if not cells:
        raise NothingSelectedError("the plan has no cell on these targets", advice="Name other --targets.")
    return dataclasses.replace(plan, targets=kept, cells=cells)
