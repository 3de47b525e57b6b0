"""``hwmatrix matrix``: run every selected model on every selected target, and write the reports."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import order_of, plan_here, resume_last, run_and_report, workshop_of
from hwmatrix.app.selecting import select
from hwmatrix.cli.cluster import KEYS, Keys, needed
from hwmatrix.cli.detect import print_detections
from hwmatrix.cli.options import (
    DEFAULT_OUTPUT,
    Adapt,
    Architectures,
    BaseImage,
    Batches,
    CacheLimit,
    Dtypes,
    EngineChoice,
    Everything,
    Format,
    Forward,
    Generation,
    Isolating,
    IsolationChoice,
    Lengths,
    Matrix,
    Models,
    Output,
    OwnSize,
    Suite,
    Targets,
    Threads,
    Timing,
    Verbose,
    axes,
    progress,
)
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.host.cache_limit import DEFAULT_GB
from hwmatrix.host.stale import StaleRule
from hwmatrix.matrix.load import load
from hwmatrix.records import AdaptRule, Isolation

if TYPE_CHECKING:
    from hwmatrix.matrix.load import LoadedMatrix


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("matrix")(matrix_command)


def matrix_command(
    *,
    context: typer.Context,
    models: Models = None,
    suite: Suite = None,
    targets: Targets = None,
    architectures: Architectures = None,
    dtypes: Dtypes = None,
    batches: Batches = None,
    lengths: Lengths = None,
    threads: Threads = None,
    size: OwnSize = None,
    everything: Everything = False,
    timing: Timing = None,
    generation: Generation = None,
    forward: Forward = True,
    adapt: Adapt = None,
    detect_only: Annotated[bool, typer.Option("--detect-only", help="Only print the detected hardware.")] = False,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Number of targets to run in parallel, each on its own cores.", metavar="N")
    ] = 1,
    isolation: Isolating = IsolationChoice.AUTO,
    engine: Annotated[
        EngineChoice, typer.Option("--engine", help="Run on this machine, or on the workers of a cluster.")
    ] = EngineChoice.HERE,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", help="With --engine cluster: its scheduler's address.", metavar="ADDRESS")
    ] = None,
    local: Annotated[
        int | None, typer.Option("--local", min=1, help="With --engine cluster: start this number of workers here instead.", metavar="N")
    ] = None,
    keys: Keys = KEYS,
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

    A model that fails is a result, not an error: the exit code is 0. Examples:

        hwmatrix matrix

        hwmatrix matrix --models bert gpt2 --targets cpu openvino

        hwmatrix matrix --models ./my-checkpoint --size full

        hwmatrix matrix --suite all --targets cpu openvino

        hwmatrix matrix --models llama --size full --no-forward

        hwmatrix matrix --models bert --batch 1 8 32 --sequence-length 16 128 --threads 1 2

        hwmatrix matrix --engine cluster --scheduler tls://10.0.0.5:8786

        hwmatrix matrix --resume

        hwmatrix matrix --stale --max-age 30
    """
    if detect_only:
        sources = ((option.opts[0], context.get_parameter_source(option.name or "")) for option in context.command.params)
        others = [
            name
            for name, source in sources
            if source is not None and source.name == "COMMANDLINE" and name not in {"--detect-only", "--verbose"}
        ]
        if others:
            raise ConfigError([Problem(where="--detect-only", what=f"it ignores {', '.join(others)}", hint="leave one of them out")])
        print_detections(Format.TABLE)
        return
    rule = _stale_rule(max_age, stale=stale)
    _check_engine(engine, scheduler, local, stale=stale, workers=workers)
    environment, loaded, output = read_environment(), load(matrix), output_dir.absolute()
    again = resume or stale
    if again:
        of_plan = (models, suite, targets, architectures, dtypes, batches, lengths, threads, size, isolation)
        _refuse_with_resume(*of_plan, timing, generation, None if forward else False, adapt, everything=everything)
    with progress(verbose=verbose) as view:
        workshop = workshop_of(loaded, environment, base_image, view)
        selection = None
        if not again:
            selection = select(
                loaded,
                models=models or (),
                suite=suite,
                targets=targets or (),
                architectures=architectures or (),
                dtypes=dtypes or (),
                size=size,
                everything=everything,
                timing=timing,
                generation=generation,
                forward=forward,
                axes=axes(batches, lengths, threads),
                cache=workshop.cache_dir,
                say=workshop.say,
            )
        adapting = _adapting(loaded, adapt)
        if engine is EngineChoice.CLUSTER:
            from hwmatrix.app.cluster import matrix_on_cluster
            from hwmatrix.host.cluster.connection import connected, local_cluster

            members = connected(scheduler, keys) if scheduler is not None else local_cluster(local or 1, environment.variables)
            with members as client:
                chosen = None if isolation is IsolationChoice.AUTO else Isolation(isolation.value)
                matrix_on_cluster(
                    client,
                    adapting,
                    selection,
                    chosen,
                    workshop,
                    environment=environment,
                    output=output,
                    view=view,
                    cache_limit_gb=None if local is not None else cache_limit,  # local workers share one cache
                )
            return
        if selection is None:
            planned = resume_last(loaded, output, workshop, stale=stale)
        else:
            planned = plan_here(adapting, selection, isolation.value, workshop, environment=environment, output=output, workers=workers)
        order = dataclasses.replace(order_of(loaded, planned, workshop, workers), stale=rule, cache_limit_gb=cache_limit)
        run_and_report(order, output, view)


def _check_engine(engine: EngineChoice, scheduler: str | None, local: int | None, *, stale: bool, workers: int) -> None:
    """Refuse options that do not suit the engine."""
    if engine is EngineChoice.HERE:
        for option, value in (("--scheduler", scheduler), ("--local", local)):
            if value is not None:
                raise ConfigError([Problem(where=option, what="it needs --engine cluster", hint="add --engine cluster")])
        return
    needed()
    if (scheduler is None) == (local is None):
        what = "it needs a scheduler's address, or a number of workers to start here"
        raise ConfigError([Problem(where="--engine cluster", what=what, hint="add either --scheduler ADDRESS or --local N")])
    if stale or workers > 1:
        where, hint = (
            ("--stale", "run it without --engine cluster") if stale else ("--workers", "start more workers of the cluster instead")
        )
        raise ConfigError([Problem(where=where, what="a cluster cannot do this", hint=hint)])


def _adapting(loaded: LoadedMatrix, adapt: bool | None) -> LoadedMatrix:  # noqa: FBT001 - as it was typed
    """The matrix with ``--adapt`` or ``--no-adapt`` applied; with ``--adapt`` its own rules stay."""
    if adapt is None or adapt is (loaded.spec.adapt is not None):
        return loaded
    return dataclasses.replace(loaded, spec=dataclasses.replace(loaded.spec, adapt=AdaptRule() if adapt else None))


def _stale_rule(max_age: int | None, *, stale: bool) -> StaleRule | None:
    if max_age is not None and not stale:
        raise ConfigError([Problem(where="--max-age", what="it needs --stale", hint="add --stale")])
    return StaleRule(max_age=dt.timedelta(days=max_age) if max_age is not None else None) if stale else None


def _refuse_with_resume(*given: object, everything: bool) -> None:
    """Refuse options that would change the plan of a resumed run."""
    if everything or any(value not in (None, IsolationChoice.AUTO) for value in given):
        what = "the last run is continued as it was planned"
        hint = "leave out options for models, targets, precisions, other settings, isolation, timing, generation, --adapt"
        raise ConfigError([Problem(where="--resume", what=what, hint=hint)])
