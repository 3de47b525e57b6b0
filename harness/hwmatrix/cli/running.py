"""``hwmatrix matrix``, ``images``, ``base``: run models, or prepare to."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import json
import secrets
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

import hwmatrix
from hwmatrix.app.selecting import fetch_weights, select
from hwmatrix.app.type_models import TypeModels
from hwmatrix.cli import schema as inspecting
from hwmatrix.cli.options import (
    DEFAULT_OUTPUT,
    Adapt,
    Architectures,
    BaseImage,
    CacheLimit,
    Format,
    Isolating,
    IsolationChoice,
    Matrix,
    Models,
    Output,
    Outside,
    Suite,
    Targets,
    Timing,
    Verbose,
    outside,
    progress,
)
from hwmatrix.cli.publishing import publish, source_of
from hwmatrix.errors import ConfigError, NoTargetAvailableError, Problem
from hwmatrix.host import base_image as bases
from hwmatrix.host import publishing
from hwmatrix.host.cache_limit import DEFAULT_GB
from hwmatrix.host.engine import connect
from hwmatrix.host.places import Workshop, choose
from hwmatrix.host.run import RunOrder, run
from hwmatrix.host.runs import OPERATORS, RUNS, RunFolder, claim, release
from hwmatrix.host.stale import StaleRule
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.matrix.plan import RunFacts, Selection, check_selection, make_plan, replan
from hwmatrix.matrix.shipped import harness_source, image_files
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.records import AdaptRule, Isolation, Plan, Size
from hwmatrix.report.operators import write_operators
from hwmatrix.report.plots import undrawn
from hwmatrix.report.write import write_reports
from hwmatrix.store.merge import merge
from hwmatrix.store.shard import utc_now

if TYPE_CHECKING:
    from hwmatrix.host.console import View
    from hwmatrix.host.places import Place

DATABASE = "matrix.duckdb"
_KEPT: Final = "a run keeps its plan: what changed in models or lists needs --stale, or a new run"


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("matrix")(matrix_command)
    app.command("images")(images_command)
    app.command("base")(base_command)


def matrix_command(
    *,
    models: Models = None,
    suite: Suite = None,
    targets: Targets = None,
    architectures: Architectures = None,
    size: Annotated[Size | None, typer.Option("--size", help="tiny or full; overrides the suite's size.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every model, in every size.")] = False,
    timing: Timing = None,
    adapt: Adapt = None,
    detect_only: Annotated[bool, typer.Option("--detect-only", help="Only print the detected hardware.")] = False,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Number of targets to run in parallel, each on its own cores.", metavar="N")
    ] = 1,
    isolation: Isolating = IsolationChoice.AUTO,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the last run: run only missing cells.")] = False,
    stale: Annotated[
        bool, typer.Option("--stale", help="Continue the last run: also rerun cells whose image or model has changed, or that are too old.")
    ] = False,
    max_age: Annotated[
        int | None, typer.Option("--max-age", min=0, help="With --stale: the maximum age of a verdict.", metavar="DAYS")
    ] = None,
    output_dir: Output = DEFAULT_OUTPUT,
    matrix: Matrix = Path("matrix.yaml"),
    base_image: BaseImage = None,
    cache_limit: CacheLimit = DEFAULT_GB,
    verbose: Verbose = False,
) -> None:
    """Run the matrix: every selected model on every selected target, then the reports.

    A failing model is a result, not an error: the exit code is 0. Examples:

        hwmatrix matrix

        hwmatrix matrix --models bert gpt2 --targets cpu openvino

        hwmatrix matrix --models ./my-checkpoint --size full

        hwmatrix matrix --suite all --targets cpu openvino

        hwmatrix matrix --resume

        hwmatrix matrix --stale --max-age 30
    """
    if detect_only:
        inspecting.tell_detections(Format.TABLE)
        return
    rule = _stale_rule(max_age, stale=stale)
    place_outside = outside()
    loaded = load(matrix)
    output = output_dir.absolute()
    with progress(verbose=verbose) as view:
        workshop = workshop_of(loaded, place_outside, base_image, view)
        if resume or stale:
            _refuse_with_resume(models, suite, targets, architectures, size, isolation, timing, adapt, everything=everything)
            folder, place = _resumed(loaded, output, workshop, stale=stale)
        else:
            chosen = functools.partial(select, loaded, models=models or (), targets=targets or (), architectures=architectures or ())
            selection = chosen(suite=suite, size=size, everything=everything, timing=timing, cache=workshop.cache_dir, say=workshop.say)
            folder, place = _planned(_adapting(loaded, adapt), selection, isolation, workshop, given=place_outside, output=output)
        order = order_of(loaded, folder, place, workshop, workers)
        _run_and_report(dataclasses.replace(order, stale=rule, cache_limit_gb=cache_limit), output, view)


def _adapting(loaded: LoadedMatrix, adapt: bool | None) -> LoadedMatrix:  # noqa: FBT001 - as it was typed
    """The matrix with ``--adapt`` or ``--no-adapt`` in place of what it says itself; rules that it has stay with ``--adapt``."""
    if adapt is None or adapt is (loaded.spec.adapt is not None):
        return loaded
    return dataclasses.replace(loaded, spec=dataclasses.replace(loaded.spec, adapt=AdaptRule() if adapt else None))


def _stale_rule(max_age: int | None, *, stale: bool) -> StaleRule | None:
    if max_age is not None and not stale:
        raise ConfigError([Problem(where="--max-age", what="it says what is stale", hint="add --stale")])
    return StaleRule(max_age=dt.timedelta(days=max_age) if max_age is not None else None) if stale else None


def _planned(
    loaded: LoadedMatrix, selection: Selection, isolation: IsolationChoice, workshop: Workshop, *, given: Outside, output: Path
) -> tuple[RunFolder, Place]:
    """A new run: its folder with its plan, and where it runs."""
    check_selection(loaded, selection)
    place = choose(isolation.value, workshop)
    plan = fetch_weights(_plan(loaded, selection, place, given, workshop.commit), workshop.cache_dir)
    return RunFolder.create(output, plan), place


def _resumed(loaded: LoadedMatrix, output: Path, workshop: Workshop, *, stale: bool) -> tuple[RunFolder, Place]:
    """The latest run, and the same kind of place as before. Its images are still described by matrix.yaml.

    What is stale is run again as matrix.yaml has it now; what is only missing, as it was planned.
    """
    folder = RunFolder.latest(output)
    plan = folder.plan()
    refuse_gone(loaded, plan)
    changed = plan.matrix_sha256 != loaded.sha256
    if stale and (changed or _has_types(plan)):
        folder.replace_plan(fetch_weights(_replanned(loaded, plan, workshop), workshop.cache_dir))
    if changed:
        told = "its models and targets are taken as they are now" if stale else _KEPT
        workshop.say(f"{loaded.path.name} has changed since the run was planned; {told}")
    return folder, choose(plan.isolation, workshop)


def refuse_gone(loaded: LoadedMatrix, plan: Plan) -> None:
    """A run goes on only where matrix.yaml still has its targets.

    Raises:
        ConfigError: some are gone; they are named.
    """
    gone = [target.name for target in plan.targets if target.name not in loaded.spec.targets]
    if gone:
        what = f"the last run has targets that {loaded.path.name} no longer has: {', '.join(gone)}"
        raise ConfigError([Problem(where="--resume", what=what, hint="put them back, or start without --resume")])


def _replanned(loaded: LoadedMatrix, plan: Plan, workshop: Workshop) -> Plan:
    """The run as matrix.yaml and the types of the installed transformers are now; what is gone or new is told."""
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


def order_of(loaded: LoadedMatrix, folder: RunFolder, place: Place, workshop: Workshop, workers: int) -> RunOrder:
    """The order to work a folder's plan off."""
    return RunOrder(
        folder=folder,
        plan=folder.plan(),
        place=place,
        reference=loaded.spec.images.reference,
        cache=workshop.cache_dir / "bundles",
        workers=workers,
    )


def _run_and_report(order: RunOrder, output: Path, view: View) -> None:
    """Whatever ends the run, what is finished is merged and reported."""
    claim(order.folder)
    try:
        order.folder.salvage()
        try:
            outcome = run(order, view)
        except (KeyboardInterrupt, NoTargetAvailableError):
            order.folder.salvage()
            _report(order.folder, output, view)
            raise
        _report(order.folder, output, view)
    finally:
        release(order.folder)
    outcome.raise_first()


def _report(folder: RunFolder, output: Path, view: View) -> None:
    operators = sorted((output / OPERATORS / RUNS).glob("*/plan.json"))[-1:]  # the latest: what it proves holds for this run's models
    merged = merge([folder.path, *(plan.parent for plan in operators)], output / DATABASE, fresh=True)
    for rejection in merged.rejected:
        view.say(f"rejected the shard {rejection.file}: {rejection.reason}")
    written = [*write_reports(output / DATABASE, output), *write_operators(output / DATABASE, output)]
    counts = json.loads((output / "matrix.json").read_text(encoding="utf-8"))["run"]["counts"]
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    view.say(f"{sum(counts.values())} cells: {told}")
    names = ", ".join([*(path.name for path in written), DATABASE])
    reason = undrawn()
    if reason is not None:
        view.say(reason)
    view.say(f"wrote {names} into {_shown(output)}; start with {_shown(output / ('index.html' if reason is None else 'matrix.md'))}")


def _shown(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _plan(loaded: LoadedMatrix, selection: Selection, place: Place, given: Outside, commit: str | None) -> Plan:
    return make_plan(loaded, selection, facts_of(loaded, place, given, commit))


def facts_of(loaded: LoadedMatrix, place: Place, given: Outside, commit: str | None) -> RunFacts:
    """What a new run's plan must say about the run."""
    unavailable = {name: reason for name in loaded.spec.targets if (reason := place.unavailable(name)) is not None}
    now = dt.datetime.now(dt.UTC)
    return RunFacts(
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        created_at=utc_now(),
        command=given.command,
        hwmatrix_version=hwmatrix.__version__,
        commit=commit,
        isolation=place.isolation,
        unavailable=unavailable,
    )


def _refuse_with_resume(*given: object, everything: bool) -> None:
    """A resumed run does what it was planned to do; anything else would be another run."""
    if everything or any(value not in (None, IsolationChoice.AUTO) for value in given):
        what = "the last run is continued as it was planned"
        raise ConfigError([Problem(where="--resume", what=what, hint="leave out what selects models, targets, isolation, timing, --adapt")])


def images_command(
    *,
    targets: Targets = None,
    matrix: Matrix = Path("matrix.yaml"),
    base_image: BaseImage = None,
    push: Annotated[
        str | None,
        typer.Option("--push", help="Push the images, and write their SBOMs and images.json to --sbom.", metavar="REGISTRY/PREFIX"),
    ] = None,
    sbom: Annotated[
        Path | None, typer.Option("--sbom", help="Write a CycloneDX SBOM for each image. [reports/latest]", metavar="DIR")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Build the images of the targets that can run here, or of the given targets. Unchanged images are not rebuilt.

    An image with the label org.hwmatrix.push=never (qnn) is never pushed. Credentials come from docker login. An example of that:

        hwmatrix images --targets cpu openvino --push registry.example/team/hwmatrix
    """
    loaded = load(matrix)
    prefix = publishing.checked_prefix(push) if push is not None else None
    check_selection(loaded, Selection(targets=tuple(targets or ())))
    if prefix is not None:
        folders, wanted = image_files(loaded.path.absolute().parent), {name: loaded.spec.targets[name].image for name in targets or ()}
        publishing.refuse_declared({name: folders[image] / "Dockerfile" for name, image in wanted.items() if image in folders})
    with progress(verbose=verbose) as view:
        place = choose(Isolation.CONTAINER, workshop_of(loaded, outside(), base_image, view))
        reasons = {} if targets else {name: place.unavailable(name) for name in loaded.spec.targets}
        for name, reason in reasons.items():
            if reason is not None:
                view.say(f"{name}: not built, {reason} (name it with --targets to build it all the same)")
        chosen = targets or [name for name, reason in reasons.items() if reason is None]
        failed = place.prepare(chosen)
        for error in failed.values():
            raise error
        if prefix is not None or sbom is not None:
            built = [(name, *place.identity(name)) for name in chosen]
            publish(
                [(name, tag, digest) for name, tag, digest in built if tag is not None and digest is not None],
                named=targets or (),
                prefix=prefix,
                folder=(sbom or DEFAULT_OUTPUT).absolute(),
                environment=outside().variables,
                view=view,
            )


def base_command(*, verbose: Verbose = False) -> None:
    """Make a base image from Debian's packages, without any image registry (for air-gapped runners)."""
    with progress(verbose=verbose) as view:
        engine = connect(outside().variables, need_builder=False)
        base = bases.make_base(engine, on_line=view.detail)
        view.say(f"made {base.reference} ({base.reason})")


def workshop_of(loaded: LoadedMatrix, given: Outside, base_image: str | None, view: View) -> Workshop:
    """What the places need to know."""
    root = loaded.path.absolute().parent
    source, commit = harness_source(root), commit_of(root)
    return Workshop(
        project_root=root,
        spec=loaded.spec,
        cache_dir=given.cache,
        environment=given.variables,
        base_image=base_image or given.base_image,
        commit=commit,
        source=None if source is None or commit is None else source_of(source),
        say=view.say,
        detail=view.detail,
    )


def commit_of(project_root: Path) -> str | None:
    """The commit of the harness that images get (marked if its working tree differs); None where it was installed without its source.

    The commit of a repository that only has a matrix.yaml says nothing about it.
    """
    source = harness_source(project_root)
    return None if source is None else _checked_out(source)


def _checked_out(root: Path) -> str | None:
    """The commit that is checked out, marked if the working tree differs from it; None outside a git checkout."""
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
