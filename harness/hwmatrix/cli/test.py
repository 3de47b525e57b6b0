"""``hwmatrix test``: runs one model on the requested hardware, and falls back to other hardware or a smaller batch."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import check_cores, workshop_of
from hwmatrix.app.selecting import select
from hwmatrix.app.trial_document import AttemptDocument, LargestBatchDocument, ModelTestDocument, TrialDocument
from hwmatrix.app.trial_outcome import Outcome, document_of, keep
from hwmatrix.app.trials import Trial, TrialSite, plan_of, run_trials
from hwmatrix.basics.near_miss import near_miss
from hwmatrix.cli.options import (
    DEFAULT_OUTPUT,
    BaseImage,
    Format,
    FormatOption,
    Isolating,
    IsolationChoice,
    Matrix,
    Timing,
    Verbose,
    axes,
    progress,
)
from hwmatrix.cli.tables import print_table
from hwmatrix.cli.terminal import echo, runnable
from hwmatrix.errors import ConfigError, NoTargetAvailableError, Problem
from hwmatrix.hardware.detector import machine_identity
from hwmatrix.host.executors import choose
from hwmatrix.knowledge.fallback import RETRIES, AttemptPlan, Likeness, measured_hardware
from hwmatrix.knowledge.largest_batch import MOST, TRIES, BatchSearch
from hwmatrix.knowledge.on_record import on_record
from hwmatrix.knowledge.priorities import order_of, reason_for
from hwmatrix.knowledge.resolving import AUTO
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.models.classify import classify
from hwmatrix.records import Backend, Dtype, Execution, ModelPlan, Size, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hwmatrix.app.trials import Ended
    from hwmatrix.knowledge.evidence import Evidence
    from hwmatrix.matrix.plan import Selection

_SHOWN: Final = 160
"""How many characters of a reason are printed; the JSON has all of it."""
_DEFAULT_FOLDER: Final = Path("reports/tests")
_TEMPORARY: Final = "tests"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """The request: hardware (a target's name, a kind of hardware, ``auto``) or all of it, the batch, and what to try after a failure.

    ``search``: search for the largest batch instead.
    """

    device: str
    everything: bool
    batch: int | None
    retries: int
    fallback: bool
    search: BatchSearch | None = None


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("test")(trial_command)


def trial_command(
    *,
    model: Annotated[
        str, typer.Option("--model", help="A name of matrix.yaml, a transformers type, a hub id or a checkpoint folder.", metavar="M")
    ],
    device: Annotated[str, typer.Option("--device", help="A kind of hardware, a target of matrix.yaml, or auto.", metavar="D")] = AUTO,
    all_hardware: Annotated[bool, typer.Option("--all-hardware", help="Test every target of matrix.yaml separately.")] = False,
    size: Annotated[Size, typer.Option("--size", help="tiny or full.")] = Size.TINY,
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="[default: matrix.yaml's]", metavar="N")] = None,
    dtype: Annotated[Dtype | None, typer.Option("--dtype", help="The precision. [default: the first of each target]")] = None,
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", min=1, help="In tokens. [default: matrix.yaml's]", metavar="N")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="[default: the targets']", metavar="N")] = None,
    retries: Annotated[int, typer.Option("--retries", min=0, help="Number of retries after a crash or a timeout.", metavar="N")] = RETRIES,
    no_fallback: Annotated[
        bool, typer.Option("--no-fallback", help="Make only one attempt: no retry, no smaller batch, no other hardware.")
    ] = False,
    largest_batch: Annotated[
        bool, typer.Option("--largest-batch", help="Search for the largest batch that passes within the memory limit.")
    ] = False,
    max_batch: Annotated[
        int | None, typer.Option("--max-batch", min=1, help=f"With --largest-batch: the largest to try. [default: {MOST}]", metavar="N")
    ] = None,
    max_tries: Annotated[
        int | None, typer.Option("--max-tries", min=1, help=f"With --largest-batch: how many to try. [default: {TRIES}]", metavar="N")
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option("--memory", min=1, help="MiB that an attempt may add to its process. [default: matrix.yaml's]", metavar="MB"),
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Keep the database and the reports in --output-dir.")] = False,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", help="[default: reports/tests/<model>]", metavar="DIR")] = None,
    database: Annotated[
        Path | None,
        typer.Option("--database", help="Earlier measurements. [default: reports/latest and the published results]", metavar="FILE"),
    ] = None,
    timing: Timing = None,
    isolation: Isolating = IsolationChoice.AUTO,
    matrix: Matrix = Path("matrix.yaml"),
    base_image: BaseImage = None,
    output: FormatOption = Format.TABLE,
    verbose: Verbose = False,
) -> None:
    """Test one model: run it on the requested hardware, and report where and how it actually ran.

    If that fails, it tries a smaller batch (out of memory), other hardware (missing or failing hardware), or the same again (crash).
    Wrong outputs are a result and end the test. A model that fails everywhere is a result too. Examples:

        hwmatrix test --model bert

        hwmatrix test --model vit --device cuda --batch-size 64

        hwmatrix test --model bert --device openvino --dtype int8 --sequence-length 128 --threads 2

        hwmatrix test --model openai/whisper-tiny --all-hardware --save

        hwmatrix test --model bert --device openvino --largest-batch --memory 2000

        hwmatrix test --model ./my-checkpoint --device openvino --format json
    """
    if output_dir is not None and not save:
        raise ConfigError([Problem(where="--output-dir", what="nothing is kept without --save", hint="add --save, or leave it out")])
    search = _search(largest=largest_batch, batch_size=batch_size, max_batch=max_batch, max_tries=max_tries)
    request = TrialRequest(
        device=device,
        everything=all_hardware,
        batch=1 if search is not None else batch_size,
        retries=retries,
        fallback=not no_fallback,
        search=search,
    )
    environment, loaded = read_environment(), load(matrix)
    _check_device(request, loaded)
    with progress(verbose=verbose) as view, contextlib.ExitStack() as stack:
        workshop = workshop_of(loaded, environment, base_image, view)
        selection = select(loaded, models=[model], size=size, cache=workshop.cache_dir, say=workshop.say)
        executor = choose(isolation.value, workshop)
        kept = stack.enter_context(_kept_folder(output_dir, selection, workshop.cache_dir, save=save))
        site = TrialSite(
            loaded=loaded,
            selection=selection,
            executor=executor,
            workshop=workshop,
            environment=environment,
            output=kept,
            memory_mb=memory,
            timing=False if search is not None else timing,  # a search asks only what works
            dtype=dtype,
            axes=axes(None, [sequence_length] if sequence_length else None, [threads] if threads else None),
        )
        _check_precision(request, site)
        first = plan_of(site, list(site.targets), None)
        if threads is not None:
            check_cores(first)
        plan, evidence = first.models[0], _on_record(database)
        settings = {cell.target: cell.settings for cell in first.cells}
        like = Likeness(model=plan, size=size, host=machine_identity(), isolation=executor.isolation, settings=settings)
        trials, why = _trials(request, site, plan, measured_hardware(evidence, like))
        ended = run_trials(site, trials, view)
        outcome = Outcome(
            model=plan,
            isolation=executor.isolation,
            trials=trials,
            ended=ended,
            evidence=evidence,
            like=like,
            why=why,
            memory_mb=first.cells[0].limits.memory_mb,
        )
        document = document_of(outcome, kept=site.database if save else None)
        if save:
            for path in keep(outcome, document, site.output, workshop.cache_dir):
                view.say(f"wrote {path}")
    _print(document, output)
    _raise_if_nothing_ran(trials, ended)


def _search(*, largest: bool, batch_size: int | None, max_batch: int | None, max_tries: int | None) -> BatchSearch | None:
    """The search for the largest batch; None if it was not requested.

    Raises:
        ConfigError: an option of the search without it, or a batch with it.
    """
    if not largest:
        problems = [
            Problem(where=option, what="it needs --largest-batch", hint="add --largest-batch, or leave it out")
            for option, value in (("--max-batch", max_batch), ("--max-tries", max_tries))
            if value is not None
        ]
        if problems:
            raise ConfigError(problems)
        return None
    if batch_size is not None:
        what, hint = "the batch is what --largest-batch searches for", "limit it with --max-batch, or leave it out"
        raise ConfigError([Problem(where="--batch-size", what=what, hint=hint)])
    return BatchSearch(most=max_batch or MOST, tries=max_tries or TRIES)


def _check_device(request: TrialRequest, loaded: LoadedMatrix) -> None:
    """Check the requested hardware.

    Raises:
        ConfigError: it is unknown, or all hardware was requested too.
    """
    known = {AUTO, *(backend.value for backend in Backend), *loaded.spec.targets}
    if request.device not in known:
        raise ConfigError(
            [Problem(where="--device", what=f"{request.device!r} is not a hardware name", hint=near_miss(request.device, known))]
        )
    if request.everything and request.device != AUTO:
        what = f"{request.device} and all hardware contradict each other"
        raise ConfigError([Problem(where="--device", what=what, hint="leave out --device or --all-hardware")])


def _check_precision(request: TrialRequest, site: TrialSite) -> None:
    """Check that the requested hardware, if any, has the requested precision.

    Raises:
        ConfigError: no target of matrix.yaml that could be tried has it.
    """
    targets = site.loaded.spec.targets
    asked = {name: target for name, target in targets.items() if request.device in {AUTO, name, target.backend}}
    if site.dtype is None or not asked or any(name in site.targets for name in asked):
        return
    has = dict.fromkeys(dtype.value for target in asked.values() for dtype in target.every_dtype)
    where = f"matrix.yaml lists no {site.dtype.value} for {'any target' if request.device == AUTO else request.device}"
    raise ConfigError([Problem(where="--dtype", what=where, hint=f"choose one of {', '.join(has)}, or add it to dtypes or more_dtypes")])


@contextlib.contextmanager
def _kept_folder(output_dir: Path | None, selection: Selection, cache: Path, *, save: bool) -> Iterator[Path]:
    """The folder for runs; without --save a temporary one in the cache, because every isolation can access the cache."""
    if save:
        name = (*selection.models, *(model.name for model in selection.extra))[0]
        yield (output_dir or _DEFAULT_FOLDER / re.sub(r"[^A-Za-z0-9._-]+", "-", name)).absolute()
        return
    above = cache / _TEMPORARY
    above.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=above) as folder:
        yield Path(folder)


def _on_record(database: Path | None) -> tuple[Evidence, ...]:
    return on_record(database, latest=DEFAULT_OUTPUT).evidence


def _trials(request: TrialRequest, site: TrialSite, model: ModelPlan, measured: Sequence[str]) -> tuple[list[Trial], str]:
    """The trials, and the reason for their order."""
    has_target = site.targets
    alone = AttemptPlan(
        order=(Backend.CPU.value,),
        batch=request.batch or model.batch,
        retries=request.retries if request.fallback else 0,
        adapt_batch=request.fallback,
    )
    if request.everything:
        every = [
            Trial(
                plan=dataclasses.replace(alone, order=(target.backend,)), targets={target.backend: name}, asked=True, search=request.search
            )
            for name, target in has_target.items()
        ]
        return every, "all targets of matrix.yaml, each on its own, without fallback to another"
    kind = classify(model.name, model_class=model.model_class, architecture=model.architecture)
    named = has_target.get(request.device)
    preferred = None if request.device == AUTO else named.backend if named else request.device
    order = order_of(kind, preferred=preferred, measured=[hardware for hardware in measured if hardware != preferred])
    targets = {target.backend: name for name, target in reversed(has_target.items())}  # the first of each kind
    if site.dtype is not None:
        order = tuple(dict.fromkeys((*(hardware for hardware in order if hardware in targets), *reversed(targets))))
    if named is not None:
        targets[named.backend] = request.device
    if request.search is not None:
        here = (each for each in order if each in targets and site.executor.unavailable(targets[each]) is None)
        first = order[0] if preferred is not None else next(here, order[0])
        plan = dataclasses.replace(alone, order=(first,))
    else:
        plan = dataclasses.replace(alone, order=order if request.fallback else order[:1])
    on_record = f"measured on this machine: {', '.join(measured)}; then " if measured else ""
    trial = Trial(plan=plan, targets=targets, asked=preferred is not None, search=request.search)
    return [trial], f"{on_record}{reason_for(kind)}"


def _raise_if_nothing_ran(trials: Sequence[Trial], ended: Ended) -> None:
    """Raise an error if nothing was executed. A model that fails is a result, not an error.

    Raises:
        HwmatrixError: an image, the engine or the store failed, and nothing else ran.
        NoTargetAvailableError: none of the hardware is available here.
    """
    if any(trial.executed for trial in trials):
        return
    for failure in ended.failures:
        raise failure
    reasons = "\n".join(dict.fromkeys(f"{tried.attempt.hardware}: {tried.reason}" for trial in trials for tried in trial.tried))
    raise NoTargetAvailableError(f"nothing could run here:\n{reasons}", advice="See docs/images.md, or choose another --device.")


def _print(document: ModelTestDocument, output: Format) -> None:
    """Print the outcome."""
    if output is Format.JSON:
        echo(json.dumps(document, indent=2))
        return
    trials = document["trials"]
    if any(trial["largest_batch"] for trial in trials):
        _print_search(document)
        return
    columns = ("expected", "actual", "status", "dtype", "batch", "p50", "sample", "cost")
    print_table(columns, [_cells(trial) for trial in trials])
    echo(f"{document['model']} ({document['size']}, isolation: {document['isolation']}). Order: {document['order_stands_on']}.")
    attempts = [attempt for trial in trials for attempt in trial["attempts"]]
    lines = [*(_attempt_line(attempt) for attempt in attempts if attempt["status"] != Status.PASS)]
    lines += [f"- {line}" for trial in trials if trial["fell_back"] for line in trial["recommendations"]]
    lines += [f"repeat: {runnable(attempt['command'])}" for attempt in attempts if attempt["command"]]
    for line in dict.fromkeys(lines):
        echo(f"  {line}")


def _print_search(document: ModelTestDocument) -> None:
    """Print every batch that was tried, and the result of each search in a sentence."""
    rows = [
        (_place(trial), str(each["batch"]), each["status"], _seconds(each["wall_ms"]), _why(each))
        for trial in document["trials"]
        for each in trial["attempts"]
    ]
    print_table(("target", "batch", "status", "took", "why"), rows)
    echo(f"{document['model']} ({document['size']}, isolation: {document['isolation']}).")
    for trial in document["trials"]:
        found = trial["largest_batch"]
        if found is not None:
            echo(f"  {_search_result(trial, found)}")
            for each in (found["passed"], found["failed"]):
                if each is not None and each["command"]:
                    echo(f"  repeat batch {each['batch']}: {each['command']}")


def _search_result(trial: TrialDocument, found: LargestBatchDocument) -> str:
    passed, failed = found["passed"], found["failed"]
    least = f"batch {failed['batch']} does not: {failed['status']}: {_first_line(failed['reason'])}" if failed else ""
    if passed is None:
        told = least or f"nothing could run: {trial['attempts'][-1]['status']}: {_first_line(trial['attempts'][-1]['reason'])}"
    elif failed is None:
        told = f"batch {passed['batch']} passes" + (", the largest that was allowed" if found["complete"] else "")
    else:
        told = f"batch {passed['batch']} passes, {least}"
    left = "" if found["complete"] else "; the search ended early"
    limit = f"within {found['memory_mb']:,} MiB"
    return f"{_place(trial)}: {told}{left} ({limit}; {found['tries']} tries in {found['elapsed_s']:.0f} s)."


def _place(trial: TrialDocument) -> str:
    """The target, and the precision if anything was executed."""
    return " ".join(filter(None, (trial["target"] or trial["expected_hardware"], trial["dtype"])))


def _first_line(reason: str | None) -> str:
    line = (reason or "").strip().partition("\n")[0]
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


def _why(attempt: AttemptDocument) -> str:
    return "" if attempt["status"] == Status.PASS else _first_line(attempt["reason"])


def _seconds(ms: float | None) -> str:
    return "-" if ms is None else f"{ms / 1000:.1f} s"


def _cells(trial: TrialDocument) -> tuple[str, ...]:
    batch = str(trial["actual_batch"]) if trial["actual_batch"] is not None else "-"
    if trial["actual_batch"] not in {None, trial["batch"]}:
        batch += f" (asked: {trial['batch']})"
    cost = trial["cost"]
    factor = f"{cost['factor']:.3g} x expected" if cost["factor"] is not None else "not measured"  # the JSON has the reason
    actual = trial["actual_hardware"] or "-"
    if trial["actual_hardware"] and trial["execution"] not in {None, Execution.HARDWARE}:
        actual += f" ({trial['execution']})"
    return (
        trial["expected_hardware"],
        actual,
        trial["status"],
        trial["dtype"] or "-",
        batch,
        _ms(trial["p50_ms"]),
        _ms(trial["sample_ms"]),
        factor if trial["fell_back"] else "-",
    )


def _attempt_line(attempt: AttemptDocument) -> str:
    """A failed attempt, in one line."""
    again = f", retry {attempt['retry']}" if attempt["retry"] else ""
    return f"{attempt['hardware']}, batch {attempt['batch']}{again}: {attempt['status']}: {_first_line(attempt['reason'])}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} ms"
