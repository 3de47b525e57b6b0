"""``hwmatrix classify``: what models are, where they work, which models do a task, and settings for a resource pool."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import workshop_of
from hwmatrix.app.selecting import select
from hwmatrix.app.survey import SurveyRequest, survey_images
from hwmatrix.classifier.classifier import HardwareAwareModelClassifier, Sources
from hwmatrix.cli.fit import MaxLatency, MaxLoss
from hwmatrix.cli.options import (
    DEFAULT_MATRIX,
    DEFAULT_OUTPUT,
    BaseImage,
    Format,
    FormatOption,
    Images,
    Isolating,
    IsolationChoice,
    Models,
    Output,
    OwnMatrix,
    Targets,
    Verbose,
    matrix_or_shipped,
    progress,
)
from hwmatrix.cli.tables import print_table, show_evidence, show_measured
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import ConfigError, NothingSelectedError, Problem
from hwmatrix.knowledge.measured_choice import Bounds
from hwmatrix.knowledge.priorities import backend_of
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.records import Basis, Size
from hwmatrix.runner.survey import classifications

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hwmatrix.classifier.answers import CompatibilityAnswer, ModelAnswer, PoolAnswer, ReasonAnswer, RequirementsAnswer, TaskAnswer
    from hwmatrix.matrix.load import LoadedMatrix
    from hwmatrix.matrix.plan import Selection
    from hwmatrix.records import Classification, ModelPlan

_YES_NO: Final = {True: "yes", False: "no", None: "not known"}
_UNSURE: Final = 0.8
"""Below this confidence the output advises to check the answer."""

Names = Annotated[
    list[str] | None,
    typer.Option("--model", help="Also show where this model works, and where to run it here. Repeatable.", metavar="M"),
]
Task = Annotated[str | None, typer.Option("--task", help="Recommend models for a hub task: text-generation, ...", metavar="T")]
Hardware = Annotated[list[str] | None, typer.Option("--hw", help="Consider only this hardware: --hw cuda mps", metavar="H ...")]
Pool = Annotated[
    list[str] | None, typer.Option("--resource-config", help="Recommend resource pool settings for these models.", metavar="M ...")
]
Memory = Annotated[
    int | None, typer.Option("--memory", help="With --model: the largest measured peak in MiB. [default: no limit]", metavar="MB")
]
Database = Annotated[
    Path | None,
    typer.Option("--database", help="Use only these measurements. [default: reports/latest and the published results]", metavar="FILE"),
]
ModelDatabase = Annotated[Path | None, typer.Option("--model-db", help="Cache classifications in this file.", metavar="FILE")]


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("classify")(classify_command)


def classify_command(
    *,
    model: Names = None,
    task: Task = None,
    hw: Hardware = None,
    resource_config: Pool = None,
    memory: Memory = None,
    max_loss: MaxLoss = None,
    max_latency: MaxLatency = None,
    database: Database = None,
    model_db: ModelDatabase = None,
    models: Models = None,
    images: Images = False,
    targets: Targets = None,
    isolation: Isolating = IsolationChoice.AUTO,
    output_dir: Output = DEFAULT_OUTPUT,
    matrix: OwnMatrix = DEFAULT_MATRIX,
    base_image: BaseImage = None,
    verbose: Verbose = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show what models are, where they work and what they need; recommend models for a task; configure a pool.

    Without options, the models of matrix.yaml are classified. Every answer names its basis: measured, estimated or expected.
    With --images, the models are classified inside every target's image, and results are stored in shards and in the database. Examples:

        hwmatrix classify

        hwmatrix classify --model bert-base-uncased

        hwmatrix classify --model bert --memory 1200 --max-loss 0.02 --max-latency 100

        hwmatrix classify --task text-generation --hw cuda mps

        hwmatrix classify --hw openvino webgpu

        hwmatrix classify --resource-config bert-base-uncased t5-small gpt2
    """
    _check(model=model, task=task, resource_config=resource_config, models=models, hw=hw, images=images)
    bounds = _bounds(model, memory, max_loss, max_latency)
    if images:
        loaded, environment = load(matrix_or_shipped(matrix)), read_environment()
        selection = _select(loaded, models or (), targets or ())
        request = SurveyRequest(loaded=loaded, selection=selection, isolation=isolation.value, output=output_dir.absolute())
        with progress(verbose=verbose) as view:
            survey = survey_images(request, workshop_of(loaded, environment, base_image, view), environment, view)
        rows = [dict(row) for row in survey.classifications()]
        _print(rows, output, lambda: show_classifications(rows))
        return
    if not (model or task or hw or resource_config):
        _print_classifications(models or (), matrix, output)
        return
    sources = Sources(matrix=_existing_matrix(matrix), database=database, reports=output_dir, cache=read_environment().cache)
    classifier = HardwareAwareModelClassifier(model_db_path=model_db, sources=sources, bounds=bounds)
    if model:
        _print_model_answers(classifier, model, hw or (), output)
    elif task:
        _print_task(classifier, task, hw, output)
    elif resource_config:
        config = classifier.get_optimal_resource_pool_config(resource_config)
        _print(config, output, lambda: show_pool(config))
    else:
        _print_hardware(classifier, hw or (), matrix, output)


def _check(**given: Any) -> None:
    """Check that the options belong together.

    Raises:
        ConfigError: options exclude each other, or a hardware is unknown.
    """
    questions = {"--model": "model", "--task": "task", "--resource-config": "resource_config", "--models": "models", "--images": "images"}
    asked = [option for option, name in questions.items() if given[name]]
    if len(asked) > 1 and set(asked) != {"--models", "--images"}:
        what = f"{' and '.join(asked)} cannot be combined"
        raise ConfigError([Problem(where="hwmatrix classify", what=what, hint="use one at a time")])
    if given["hw"] and set(asked) & {"--resource-config", "--models", "--images"}:
        what = f"--hw cannot be used with {asked[0]}"
        raise ConfigError([Problem(where="hwmatrix classify", what=what, hint="use it with --model, with --task, or alone")])
    for name in given["hw"] or ():
        backend_of(name)


def _print_classifications(models: Sequence[str], matrix: Path, output: Format) -> None:
    """Print the classification of the models of matrix.yaml, or of the named ones."""
    loaded = load(matrix_or_shipped(matrix))
    selection = _select(loaded, models)
    named = [name for name in loaded.spec.models if not models or name in selection.models]
    types = selection.types if models else ()
    plans: list[ModelPlan] = [*(model_plan(name, loaded.spec, Size.FULL) for name in named), *selection.extra, *types]
    rows = [_classification_row(found) for found in classifications(plans)]
    _print(rows, output, lambda: show_classifications(rows))


def _select(matrix: LoadedMatrix, models: Sequence[str], targets: Sequence[str] = ()) -> Selection:
    """Resolve the named models; prints which entry of matrix.yaml an alias refers to."""
    return select(matrix, models=models, targets=targets, cache=read_environment().cache, say=functools.partial(echo, err=True))


def _classification_row(found: Classification) -> dict[str, Any]:
    return {
        "model": found.model_name,
        "architecture": found.architecture,
        "class": found.model_class,
        "family": found.family.value if found.family else None,
        "subfamily": found.subfamily,
        "structure": found.structure.value if found.structure else None,
        "confidence": found.confidence,
        "source": found.source,
    }


def _bounds(model: Sequence[str] | None, memory: float | None, max_loss: float | None, max_latency: float | None) -> Bounds | None:
    """The limits for a choice among measured cells; None if there are none.

    Raises:
        ConfigError: a limit is given without --model, or is not valid.
    """
    given = [name for name, value in (("--memory", memory), ("--max-loss", max_loss), ("--max-latency", max_latency)) if value is not None]
    if not given:
        return None
    if not model:
        raise ConfigError([Problem(where=given[0], what="it needs --model", hint="add --model M")])
    bounds = Bounds(memory_mb=memory, loss=max_loss, latency_ms=max_latency)
    if problems := bounds.problems():
        raise ConfigError(problems)
    return bounds


def _print_model_answers(classifier: HardwareAwareModelClassifier, names: Sequence[str], only: Sequence[str], output: Format) -> None:
    """Print what each model is, where it works, where to run it here, and its measured cells; for all hardware, or only for ``only``."""
    answers = [classifier.classify_model(name) for name in dict.fromkeys(names)]
    measured = {name: list(_on_hardware(classifier.measured_choices(name), only)) for name in dict.fromkeys(names)}
    told = [answer | {"measured": measured[answer["model_name"]]} for answer in answers]
    _print(told, output, lambda: show_models(answers, only, measured))


def _print_task(classifier: HardwareAwareModelClassifier, task: str, hardware: Sequence[str] | None, output: Format) -> None:
    """Print the models for a task.

    Raises:
        NothingSelectedError: no model suits it.
    """
    found = classifier.recommend_model_for_task(task, hardware)
    if not found["recommendations"] and not found["not_recommended"]:
        raise NothingSelectedError(f"no model here suits the task {task}", advice="Add one to matrix.yaml, or run one.")
    _print(found, output, lambda: show_task(found))


def _print_hardware(classifier: HardwareAwareModelClassifier, hardware: Sequence[str], matrix: Path, output: Format) -> None:
    """Print which models of matrix.yaml work on which hardware."""
    names = list(load(matrix_or_shipped(matrix)).spec.models)
    working = {each: classifier.explain_compatibility(names, each) for each in hardware}
    _print(working, output, lambda: show_hardware(working))


def _print(answer: Any, output: Format, show: Callable[[], None]) -> None:
    if output is Format.JSON:
        echo(json.dumps(answer, indent=2, default=str))
    else:
        show()


def _existing_matrix(path: Path) -> Path | None:
    """The file to read. None if no file was named and there is none here."""
    return None if path == DEFAULT_MATRIX and not path.is_file() else path


def show_classifications(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print classifications, one model per row, with the target whose image made them, if any."""
    asked = [("target", "target")] if "target" in rows[0] else []
    first = [name for name, _ in asked]
    shown = []
    for row in rows:
        made_of = "\n".join(str(row[name]) for name in ("architecture", "class", "model_class") if row.get(name))
        kind = "\n".join(str(row[name]) for name in ("family", "subfamily", "structure") if row[name]) or "unknown"
        shown.append((*(row[key] for _, key in asked), row["model"], made_of, kind, f"{row['confidence']:.2f}: {row['source']}"))
    print_table((*first, "model", "architecture, class", "kind", "confidence, source"), shown)


def show_models(
    answers: Sequence[ModelAnswer], only: Sequence[str] = (), measured: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
) -> None:
    """Print what each model is, where it works, and where to run it here; for all hardware, or only for ``only``.

    ``measured`` are the choices among its measured cells, by its name.
    """
    for number, answer in enumerate(answers):
        if number:
            echo()
        echo(f"{answer['model_name']}: {_kind(answer)}")
        basis = answer["basis"]["recommended_hardware"] + _nearness_note(answer["nearness"])
        echo(f"  recommended hardware: {answer['recommended_hardware'] or 'none'} ({basis}), PyTorch device {answer['torch_device']}")
        echo(f"  recommended template: {answer['recommended_template'] or 'none'}")
        echo(f"  needs: {_needs(answer['resource_requirements'])}")
        _show_reasons("why", answer["reasons"])
        for expected in answer["expected"]:
            amounts = _amounts(expected["resource_requirements"])
            echo(f"  expected by the {expected['document']}: {expected['recommended_hardware']}, {amounts}")
        _show_profile(answer["hardware_profile"], only)
        show_measured((measured or {}).get(answer["model_name"], ()))
    show_evidence(answers[0]["evidence"] if answers else [])


def _on_hardware(choices: Iterable[Mapping[str, Any]], only: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The choices among the measured cells of this hardware; empty ``only``: of all."""
    for choice in choices:
        cells = [cell for cell in choice["cells"] if not only or cell["hardware"] in only]
        if cells:
            yield {**choice, "cells": cells, "best": None if cells[0]["against"] else cells[0]}


def show_task(answer: TaskAnswer) -> None:
    """Print the models for a task, best first, and suitable ones that are not recommended."""
    among = f" on {', '.join(answer['hardware_constraints'])}" if answer["hardware_constraints"] else ""
    echo(f"models for {answer['task']}{among}, the best first:")
    rows = []
    for number, model in enumerate(answer["recommendations"], 1):
        here = "" if model["available"] else " (not here)"
        basis = model["basis"] + _nearness_note(model["nearness"])
        kind = f"{model['family']}, {model['subfamily']}\n{model['fit']}"
        hardware = f"{model['recommended_hardware']}{here}\n{basis}"
        rows.append((str(number), model["model_name"], kind, hardware, _memory(model["resource_requirements"])))
    print_table(("", "model", "kind", "hardware", "memory"), rows)
    for model in answer["recommendations"]:
        echo(f"{model['model_name']}: {_first_text(model['reasons'])}")
    for refused in answer["not_recommended"]:
        echo(f"not recommended: {refused['model_name']}")
        _show_reasons("why", refused["reasons"])
    show_evidence(answer["evidence"])


def show_pool(answer: PoolAnswer) -> None:
    """Print the configuration of a pool."""
    config, needs, hardware = answer["resource_pool_config"], answer["resource_requirements"], answer["hardware_recommendations"]
    echo(f"low-memory mode: {_YES_NO[config['low_memory_mode']]}")
    echo(f"timeout: {config['recommended_timeout_mins']} minutes")
    echo(f"memory: {_mib(needs['max_memory_mb'])} for the largest, {_mib(needs['total_memory_mb'])} for all, of {_mib(needs['budget_mb'])}")
    echo(f"hardware: {hardware['preferred_hardware']} ({answer['basis']}), PyTorch device {hardware['torch_device']}")
    print_table(("model", "best hardware for it alone"), [(name, best or "none") for name, best in hardware["by_model"].items()])
    _show_reasons("why", answer["reasons"])
    show_evidence(answer["evidence"])


def show_hardware(found: Mapping[str, Mapping[str, CompatibilityAnswer]]) -> None:
    """Print which models work on which hardware, and the basis of each answer."""
    names = list(next(iter(found.values()), {}))
    print_table(("model", *found), [(name, *(_works(answers[name]) for answers in found.values())) for name in names])
    echo("why: hwmatrix classify --model M")


def _works(answer: CompatibilityAnswer) -> str:
    level = f", {answer['level']}" if answer["level"] else ""
    return f"{_YES_NO[answer['compatible']]}{level}\n{answer['basis']}{_nearness_note(answer['nearness'])}"


def _nearness_note(nearness: str | None) -> str:
    """Which other models' measurements decided, if not the model's own."""
    return f", by its {nearness}" if nearness in {"architecture", "family"} else ""


def _kind(answer: ModelAnswer) -> str:
    found = answer["classification"]
    sure = f"confidence {answer['confidence']:.2f}: {found['source']}"
    if answer["family"] is None:
        return f"unknown kind of model ({sure})"
    doubt = "" if answer["confidence"] >= _UNSURE else "; this is a guess, so give its class, its tasks or its folder to be sure"
    return f"{answer['family']}, {answer['subfamily'] or 'no known subfamily'} ({sure}{doubt})"


def _needs(needs: RequirementsAnswer) -> str:
    if needs["min_memory_mb"] is None:
        return f"not known: {needs['note']}"
    if needs["basis"] != Basis.MEASURED:
        return f"{_amounts(needs)} ({needs['basis']})"
    by_its_size = _amounts({**needs, "min_memory_mb": None})
    return f"{needs['min_memory_mb']:.0f} MiB (measured, {needs['dtype']}); estimated: {by_its_size}"


def _memory(needs: RequirementsAnswer) -> str:
    amount = needs["min_memory_mb"]
    return "not known" if amount is None else f"{amount:.0f} MiB\n{needs['basis']}"


def _amounts(needs: Mapping[str, Any]) -> str:
    known = (
        ("min_memory_mb", "{:.0f} MiB"),
        ("recommended_memory_mb", "recommended {:.0f} MiB"),
        ("cpu_cores", "{} cores"),
        ("disk_space_mb", "disk {} MiB"),
        ("batch_size", "batches up to {}"),
    )
    return ", ".join(form.format(needs[name]) for name, form in known if needs[name] is not None)


def _mib(amount: float | None) -> str:
    return "an unknown amount" if amount is None else f"{amount:.0f} MiB"


def _first_text(reasons: Sequence[ReasonAnswer]) -> str:
    return reasons[0]["text"] if reasons else ""


def _show_reasons(title: str, reasons: Iterable[ReasonAnswer]) -> None:
    for reason in reasons:
        echo(f"  {title}: [{reason['basis']}] {reason['text']}")


def _show_profile(profile: Mapping[str, Mapping[str, Any]], only: Sequence[str]) -> None:
    shown = {name: entry for name, entry in profile.items() if not only or name in only}
    rows = []
    for name, entry in shown.items():
        works = _YES_NO[entry["compatible"]] + (f", {entry['level']}" if entry["level"] else "")
        peak = entry["memory_usage"]["peak"]
        basis = ", ".join(filter(None, (entry["memory_usage"]["basis"], entry["memory_usage"]["dtype"])))
        needs = "not known" if peak is None else f"{peak:.0f} MiB ({basis})"
        here = "yes, with hwmatrix matrix" if entry["available"] and not entry["installed"] else _YES_NO[entry["available"]]
        rows.append((name, f"{works} ({entry['basis']}{_nearness_note(entry['nearness'])})", here, needs))
    print_table(("hardware", "the model works", "here", "needs"), rows)
    for name, entry in shown.items():
        echo(f"  {name}: {entry['reason']}")
        if not entry["available"]:
            echo(f"  {name} is not here: {entry['unavailable_because']}")
