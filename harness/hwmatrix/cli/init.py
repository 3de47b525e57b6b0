"""``hwmatrix init``: the first files for your own models."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hwmatrix.app.environment import read_environment
from hwmatrix.app.type_models import TypeModels
from hwmatrix.basics.near_miss import near_miss
from hwmatrix.cli.options import DEFAULT_OUTPUT, Targets, known
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import CellFailure, ConfigError, Problem
from hwmatrix.host.github.render import render_repository
from hwmatrix.host.starter import TARGETS, nox_session, noxfile, requirement, starter_matrix
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.matrix.shipped import MATRIX_FILE, shipped_root
from hwmatrix.matrix.spec import NAME_PATTERN
from hwmatrix.models import hub
from hwmatrix.models.build import HUB
from hwmatrix.models.checkpoint import plan_for
from hwmatrix.records import TYPE_PREFIX, ModelPlan, Size

if TYPE_CHECKING:
    from hwmatrix.matrix.spec import MatrixSpec

GITIGNORE: Final = Path(".gitignore")
NOXFILE: Final = Path("noxfile.py")
WORKFLOW: Final = Path(".github/workflows/hwmatrix.yml")
_OURS: Final = "# Written once by `hwmatrix init`"

Mine = Annotated[
    list[str] | None,
    typer.Option(
        "--models",
        help="Hub ids, checkpoint folders, or transformers types: --models openai-community/gpt2 ./my-model gemma3",
        metavar="M ...",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("init")(init_command)


def init_command(
    *,
    models: Mine = None,
    targets: Targets = None,
    workflow: Annotated[bool, typer.Option("--workflow", help=f"Write {WORKFLOW} too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write a short matrix.yaml for your own models into this folder, and a nox session that runs it.

    Existing files are replaced only with --force. An existing noxfile.py is never changed; the session is printed instead. Examples:

        hwmatrix init --models openai-community/gpt2 ./my-checkpoint

        hwmatrix init --models gemma3 --targets openvino webgpu --workflow
    """
    shipped = load(shipped_root() / MATRIX_FILE).spec
    chosen = known("--targets", targets or TARGETS, shipped.targets)
    matrix = Path(MATRIX_FILE)
    _refuse_to_replace([matrix, *([WORKFLOW] if workflow else [])], force=force)
    plans = _plans(models or (), shipped, read_environment().cache)
    text = starter_matrix(plans, chosen, shipped)
    loaded = _loaded(text)
    files = {matrix: text}
    install = requirement(Path())
    if workflow:
        files[WORKFLOW] = render_repository(loaded, install)
    own_noxfile = NOXFILE.exists() and not (force and _OURS in NOXFILE.read_text(encoding="utf-8", errors="replace"))
    if not own_noxfile:
        files[NOXFILE] = noxfile(install)
    ignored = GITIGNORE.read_text(encoding="utf-8") if GITIGNORE.exists() else ""
    if DEFAULT_OUTPUT.as_posix() not in ignored:
        files[GITIGNORE] = f"{ignored.rstrip()}\n{DEFAULT_OUTPUT.as_posix()}/\n".lstrip()
    for path, content in files.items():
        _write(path, content)
        echo(f"wrote {path}")
    if install.startswith("./"):
        echo(f"wrote {install.partition('[')[0]}: the hwmatrix that runs here, which no index has; commit it, too")
    if own_noxfile:
        echo(f"{NOXFILE} is yours and is not changed; add this session to it:\n\n{nox_session(install)}\n")
    echo(f"next: hwmatrix matrix, or nox -s matrix; reports are written to {DEFAULT_OUTPUT}, which git ignores")


def _refuse_to_replace(paths: list[Path], *, force: bool) -> None:
    there = [path for path in paths if path.exists()]
    if there and not force:
        raise ConfigError([Problem(where=str(path), what="it already exists", hint="--force replaces it") for path in there])


def _plans(models: list[str] | tuple[str, ...], shipped: MatrixSpec, cache: Path) -> list[ModelPlan]:
    """The named models, each once.

    Raises:
        ConfigError: no model is named; lists unknown names and checkpoints that cannot or must not be loaded.
    """
    if not models:
        hint = "hub ids, folders of checkpoints, or types of transformers: --models openai-community/gpt2 ./my-model gemma3"
        raise ConfigError([Problem(where="hwmatrix init", what="no model is named", hint=hint)])
    types, plans, problems = TypeModels.beside(shipped), [], []
    for model in dict.fromkeys(models):
        try:
            plan = _plan(model, types, cache)
        except CellFailure as failure:
            problems.append(Problem(where=f"--models {model}", what=str(failure), hint=failure.error_type))
            continue
        if plan is None:
            near = near_miss(model.removeprefix(TYPE_PREFIX), types.found.by_name)
            hint = f"a hub id contains the owner (owner/name), a folder must exist; types of transformers: {near}"
            problems.append(Problem(where="--models", what=f"{model!r} is unknown", hint=hint))
        elif not re.fullmatch(NAME_PATTERN, plan.architecture):
            problems.append(Problem(where=f"--models {model}", what=f"{plan.architecture!r} is not a valid architecture name"))
        elif plan.unbuildable is not None:
            problems.append(Problem(where=f"--models {model}", what=f"it cannot be built: {plan.unbuildable}", hint="name a checkpoint"))
        else:
            plans.append(plan)
    if problems:
        raise ConfigError(problems)
    return list({(plan.weights, plan.hub_id, plan.architecture): plan for plan in reversed(plans)}.values())[::-1]


def _plan(model: str, types: TypeModels, cache: Path) -> ModelPlan | None:
    """The model of a folder, a type of transformers, or a checkpoint of the hub; None if it is none of these.

    For checkpoints in hwmatrix's own matrix.yaml nothing is downloaded; for others, the configuration is read. A name without an owner
    (``bert-base-uncased``) can only refer to the former.
    """
    spec, length = types.spec, types.spec.sizes[Size.FULL].sequence_length
    if model.startswith((".", "/", "~")) or Path(model).is_dir():
        folder = Path(model).expanduser()
        plan = plan_for(folder.resolve().name, folder.absolute(), Size.FULL, 1, length)
        return dataclasses.replace(plan, weights=str(folder) if folder.is_absolute() else f"./{folder.as_posix()}")
    made = None if "/" in model else types.named(model, Size.TINY)
    if made is not None:
        return dataclasses.replace(made, name=made.architecture)
    for name, listed in spec.models.items():
        if listed.hub_id and model in (listed.hub_id, listed.hub_id.rpartition("/")[2]):
            return dataclasses.replace(model_plan(name, spec, Size.FULL), name=model, weights=HUB, unbuildable=None)
    if "/" not in model:
        return None
    return plan_for(model, hub.fetch_config(model, None, cache), Size.FULL, 1, length, hub_id=model, weights=HUB)


def _loaded(text: str) -> LoadedMatrix:
    """Load the generated text like any matrix.yaml."""
    with tempfile.TemporaryDirectory(prefix="hwmatrix-init-") as folder:
        path = Path(folder) / MATRIX_FILE
        path.write_text(text, encoding="utf-8")
        return load(path)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError([Problem(where=str(path), what=f"cannot be written: {error}", hint="run it in a folder of your own")]) from error
