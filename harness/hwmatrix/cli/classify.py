"""``hwmatrix classify``: what models are, where they work, which of them do a task, and how to pool them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import workshop_of
from hwmatrix.app.selecting import select
from hwmatrix.app.survey import SurveyRequest, survey_images
from hwmatrix.classifier.classifier import HardwareAwareModelClassifier, Sources
from hwmatrix.cli import advice_text
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
from hwmatrix.errors import ConfigError, NothingSelectedError, Problem
from hwmatrix.knowledge.priorities import backend_of
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.records import Size
from hwmatrix.runner.survey import classifications

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwmatrix.matrix.load import LoadedMatrix
    from hwmatrix.matrix.plan import Selection
    from hwmatrix.records import Classification, ModelPlan

Names = Annotated[
    list[str] | None,
    typer.Option("--model", help="Also show where this model works, and where to run it here. Repeatable.", metavar="M"),
]
Task = Annotated[str | None, typer.Option("--task", help="Recommend models for a hub task: text-generation, ...", metavar="T")]
Hardware = Annotated[list[str] | None, typer.Option("--hw", help="Consider only this hardware: --hw cuda mps", metavar="H ...")]
Pool = Annotated[
    list[str] | None, typer.Option("--resource-config", help="Recommend resource pool settings for these models.", metavar="M ...")
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

        hwmatrix classify --task text-generation --hw cuda mps

        hwmatrix classify --hw openvino webgpu

        hwmatrix classify --resource-config bert-base-uncased t5-small gpt2
    """
    _check(model=model, task=task, resource_config=resource_config, models=models, hw=hw, images=images)
    if images:
        loaded, environment = load(matrix_or_shipped(matrix)), read_environment()
        request = SurveyRequest(
            loaded=loaded,
            selection=_select(loaded, models or (), targets or ()),
            isolation=isolation.value,
            output=output_dir.absolute(),
        )
        with progress(verbose=verbose) as view:
            survey = survey_images(request, workshop_of(loaded, environment, base_image, view), environment, view)
        rows = [dict(row) for row in survey.classifications()]
        _print(rows, output, lambda: advice_text.show_classifications(rows))
        return
    if not (model or task or hw or resource_config):
        _tell_models(models or (), matrix, output)
        return
    sources = Sources(matrix=_matrix(matrix), database=database, reports=output_dir, cache=read_environment().cache)
    classifier = HardwareAwareModelClassifier(model_db_path=model_db, sources=sources)
    if model:
        _tell_model(classifier, model, hw or (), output)
    elif task:
        _tell_task(classifier, task, hw, output)
    elif resource_config:
        config = classifier.get_optimal_resource_pool_config(resource_config)
        _print(config, output, lambda: advice_text.show_pool(config))
    else:
        _tell_hardware(classifier, hw or (), matrix, output)


def _check(**given: Any) -> None:
    """Refuse questions that cannot be asked at once.

    Raises:
        ConfigError: two of them are asked, or a hardware is unknown.
    """
    questions = {"--model": "model", "--task": "task", "--resource-config": "resource_config", "--models": "models", "--images": "images"}
    asked = [option for option, name in questions.items() if given[name]]
    if len(asked) > 1 and set(asked) != {"--models", "--images"}:
        what = f"{' and '.join(asked)} are different questions"
        raise ConfigError([Problem(where="hwmatrix classify", what=what, hint="ask one at a time")])
    if given["hw"] and set(asked) & {"--resource-config", "--models", "--images"}:
        what = f"--hw has no meaning with {asked[0]}"
        raise ConfigError([Problem(where="hwmatrix classify", what=what, hint="use it with --model, with --task, or alone")])
    for name in given["hw"] or ():
        backend_of(name)


def _tell_models(models: Sequence[str], matrix: Path, output: Format) -> None:
    """What the models of matrix.yaml are, or those that were named."""
    loaded = load(matrix_or_shipped(matrix))
    selection = _select(loaded, models)
    named = [name for name in loaded.spec.models if not models or name in selection.models]
    types = selection.types if models else ()
    plans: list[ModelPlan] = [*(model_plan(name, loaded.spec, Size.FULL) for name in named), *selection.extra, *types]
    rows = [_row(found) for found in classifications(plans)]
    _print(rows, output, lambda: advice_text.show_classifications(rows))


def _select(matrix: LoadedMatrix, models: Sequence[str], targets: Sequence[str] = ()) -> Selection:
    """What was named, by any of its names; which entry of matrix.yaml another name stands for is told."""
    return select(matrix, models=models, targets=targets, cache=read_environment().cache, say=functools.partial(typer.echo, err=True))


def _row(found: Classification) -> dict[str, Any]:
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


def _tell_model(classifier: HardwareAwareModelClassifier, names: Sequence[str], only: Sequence[str], output: Format) -> None:
    """What each model is, where it works, and where to run it here; of this hardware only, if any is named."""
    answers = [classifier.classify_model(name) for name in dict.fromkeys(names)]
    _print(answers, output, lambda: advice_text.show_models(answers, only))


def _tell_task(classifier: HardwareAwareModelClassifier, task: str, hardware: Sequence[str] | None, output: Format) -> None:
    """The models for a task.

    Raises:
        NothingSelectedError: none of them does it.
    """
    found = classifier.recommend_model_for_task(task, hardware)
    if not found["recommendations"] and not found["not_recommended"]:
        raise NothingSelectedError(f"no model here suits the task {task}", advice="Add one to matrix.yaml, or run one.")
    _print(found, output, lambda: advice_text.show_task(found))


def _tell_hardware(classifier: HardwareAwareModelClassifier, hardware: Sequence[str], matrix: Path, output: Format) -> None:
    """Which models of matrix.yaml work on which hardware."""
    names = list(load(matrix_or_shipped(matrix)).spec.models)
    working = {each: classifier.explain_compatibility(names, each) for each in hardware}
    _print(working, output, lambda: advice_text.show_hardware(working))


def _print(answer: Any, output: Format, show: Callable[[], None]) -> None:
    if output is Format.JSON:
        typer.echo(json.dumps(answer, indent=2, default=str))
    else:
        show()


def _matrix(path: Path) -> Path | None:
    """The file to read. Without one here, and without one named, names are only names."""
    return None if path == DEFAULT_MATRIX and not path.is_file() else path
