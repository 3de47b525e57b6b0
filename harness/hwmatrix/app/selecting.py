"""Resolves ``--models``: names of matrix.yaml, types of transformers, classes of diffusers, hub ids, checkpoint folders."""

from __future__ import annotations

import dataclasses
import os
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.app.type_models import TypeModels
from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import CellFailure, ConfigError, NothingSelectedError, Problem
from hwmatrix.knowledge.names import is_folder, listed_name
from hwmatrix.matrix.plan import DEFAULT_SUITE, Selection, none_of
from hwmatrix.matrix.shipped import CONSTRAINTS, image_files
from hwmatrix.models import hub
from hwmatrix.models.build import HUB, RECIPE, TRAINED
from hwmatrix.models.checkpoint import plan_for
from hwmatrix.models.classify import classify
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.models.types import TypeList, listing
from hwmatrix.records import TYPE_PREFIX, Axes, Dtype, Isolation, ModelPlan, Plan, Size, Structure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwmatrix.matrix.load import LoadedMatrix

ALL: Final = "all"
"""Stands for every precision of the selected targets."""


def select(
    matrix: LoadedMatrix,
    *,
    models: Sequence[str],
    targets: Sequence[str] = (),
    architectures: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    suite: str | None = None,
    size: Size | None = None,
    everything: bool = False,
    timing: bool | None = None,
    generation: bool | None = None,
    forward: bool = True,
    axes: Axes | None = None,
    cache: Path,
    say: Callable[[str], None] | None = None,
) -> Selection:
    """Resolve the named models. A folder or a hub id that matrix.yaml does not list is inspected now; a type of transformers is not.

    ``architectures`` may also contain the words of ``records.Structure``: they select all architectures with that structure. ``say`` gets
    messages for the user: which entry an alias refers to, what a suite of all types consists of, and which targets have none of ``dtypes``.

    Raises:
        ConfigError: unknown names, each with a suggestion; checkpoints that cannot or must not be loaded; all types in full size.
        NothingSelectedError: no model has one of the architectures.
    """
    listed = matrix.spec.suites.get(suite or ("" if models else DEFAULT_SUITE))
    problems: list[Problem] = []
    resolved = _resolve(models, matrix, size or (listed.size if suite and listed else Size.TINY), cache, problems)
    types, types_of = resolved.types, None
    say = say or (lambda _: None)
    for line in (*resolved.messages, *_untested(matrix, targets, dtypes)):
        say(line)
    if listed is not None and listed.models == "types" and not resolved.names and not everything:
        if size is Size.FULL:
            what = "a suite of all types of transformers is tiny: its models are made from their types alone"
            problems.append(Problem(where="--size", what=what, hint="leave it out, or name models: --models bert --size full"))
        known = TypeModels.beside(matrix.spec)
        types, types_of = known.missing(), known.found.version
        for line in known.told(image_files(matrix.path.absolute().parent).get(CONSTRAINTS)):
            say(line)
    if listed is not None and listed.models == "diffusion" and not resolved.names and not everything:
        types = TypeModels.beside(matrix.spec).diffusion()
    problems += [
        Problem(where="--dtypes", what=f"there is no precision {name!r}", hint=near_miss(name, [dtype.value for dtype in Dtype]))
        for name in dtypes
        if name not in {*Dtype, ALL}
    ]
    selected_architectures = _architectures(architectures, matrix, (*resolved.extra, *types), problems)
    if problems:
        raise ConfigError(problems)
    if architectures and not selected_architectures:
        raise NothingSelectedError(f"no model of {matrix.path.name} is {' or '.join(architectures)}", advice="Ask for others, or add one.")
    return Selection(
        suite=suite,
        models=resolved.names,
        extra=resolved.extra,
        types=types,
        types_of=types_of,
        timing=timing,
        generation=generation,
        forward=forward,
        architectures=selected_architectures,
        targets=tuple(targets),
        dtypes=_tested(matrix, targets) if ALL in dtypes else tuple(dict.fromkeys(map(Dtype, dtypes))),
        axes=axes or Axes(),
        size=size,
        everything=everything,
    )


def _untested(matrix: LoadedMatrix, targets: Sequence[str], dtypes: Sequence[str]) -> list[str]:
    """The targets among these, or all, that have none of the precisions, in words."""
    return [
        f"{name}: {none_of(dtypes, target.every_dtype)}"
        for name, target in matrix.spec.targets.items()
        if dtypes and {*dtypes} <= {*Dtype} and (not targets or name in targets) and not {*dtypes} & {*target.every_dtype}
    ]


def _tested(matrix: LoadedMatrix, targets: Sequence[str]) -> tuple[Dtype, ...]:
    """Every precision of the named targets, or of all."""
    chosen = [target for name, target in matrix.spec.targets.items() if not targets or name in targets]
    return tuple(dict.fromkeys(dtype for target in chosen for dtype in target.every_dtype))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Resolved:
    """The resolved models: names of matrix.yaml and of types, other models, and the models of the types. ``messages`` are for the user."""

    names: tuple[str, ...]
    extra: tuple[ModelPlan, ...]
    types: tuple[ModelPlan, ...]
    messages: tuple[str, ...]


def _resolve(models: Sequence[str], matrix: LoadedMatrix, size: Size, cache: Path, problems: list[Problem]) -> _Resolved:
    """Resolve each name as an entry of matrix.yaml, a folder, a hub id or a type, in this order. Others are added to ``problems``."""
    names: dict[str, None] = {}
    messages: list[str] = []
    extra: dict[str, ModelPlan] = {}
    types: dict[str, ModelPlan] = {}
    for model in dict.fromkeys(models):
        if (entry := listed_name(model, matrix.spec, cache=cache)) is not None:
            names[entry] = None
            messages += [_alias_message(model, entry, matrix)] if entry != model else []
        elif is_folder(model) or _is_hub_id(model):
            try:
                plan = _unlisted_plan(model, matrix, cache)
                taken = {*matrix.spec.models, *(other.name for other in extra.values())}
                extra.setdefault(plan.selector, _with_unique_name(plan, taken))
            except CellFailure as failure:
                problems.append(Problem(where=f"--models {model}", what=str(failure), hint=failure.error_type))
        else:
            known = TypeModels.beside(matrix.spec)
            made = known.named(model, size)
            if made is None:
                problems.append(_unknown_problem(model, matrix, known))
            else:
                types[made.name] = made
    return _Resolved(names=(*names, *types), extra=tuple(extra.values()), types=tuple(types.values()), messages=tuple(messages))


def _alias_message(name: str, entry: str, matrix: LoadedMatrix) -> str:
    """The message for an alias: which entry runs, and with which weights."""
    model, file = matrix.spec.models[entry], matrix.path.name
    if model.weights not in {RECIPE, TRAINED}:
        return f"{name}: runs {entry} of {file} (weights: {model.weights})"
    recipe = f"{entry} of {file}, the recipe of {model.hub_id or entry}"
    return f"{name}: runs {recipe}; its weights are made here, not downloaded (for the published ones name a checkpoint's folder)"


def _unknown_problem(model: str, matrix: LoadedMatrix, known: TypeModels) -> Problem:
    near = near_miss(model.removeprefix(TYPE_PREFIX), matrix.spec.models, besides=known.names)
    hint = f"{near}; or a type of transformers (hwmatrix types), a class of diffusers, a hub id (owner/name), or a checkpoint's folder"
    return Problem(where="--models", what=f"{model!r} is not in {matrix.path.name}", hint=hint)


def fetch_weights(plan: Plan, cache: Path) -> Plan:
    """Fetch the weights of models with ``weights: hub``. If that fails, the plan records the reason, and the other models run.

    Paths of local checkpoints in matrix.yaml become absolute, because containers mount them at the same path, and the user of containers
    must be able to read them.
    """
    in_container = plan.isolation is Isolation.CONTAINER
    return dataclasses.replace(plan, models=tuple(_fetched(model, cache, in_container=in_container) for model in plan.models))


def _fetched(model: ModelPlan, cache: Path, *, in_container: bool) -> ModelPlan:
    try:
        if model.weights == HUB:
            return hub.resolve(model, cache)
        if model.weights not in {RECIPE, FACTORY}:
            folder = Path(model.weights).absolute()
            if not folder.is_dir():
                return dataclasses.replace(model, unbuildable=f"{folder} is not a folder: name a checkpoint's folder")
            if (unreadable := _unreadable(folder, in_container=in_container)) is not None:
                return dataclasses.replace(model, unbuildable=unreadable)
            return dataclasses.replace(model, weights=str(folder))
    except CellFailure as failure:
        return dataclasses.replace(model, unbuildable=str(failure))
    return model


def _unreadable(folder: Path, *, in_container: bool) -> str | None:
    """What of a checkpoint the user cannot read who loads it, and what to do; None: nothing."""
    others = in_container and os.geteuid() == 0  # root's containers run as a user who owns nothing
    for path in (folder, *sorted(folder.rglob("*"))):
        needed = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
        readable = path.stat().st_mode & needed == needed if others else os.access(path, os.R_OK)
        if not readable:
            who = "the user of containers" if others else "this user"
            return f"{path} cannot be read by {who}: chmod -R a+rX {shlex.quote(str(folder))}"
    return None


def _architectures(words: Sequence[str], matrix: LoadedMatrix, extra: tuple[ModelPlan, ...], problems: list[Problem]) -> tuple[str, ...]:
    """Expand words for architectures and structures into architectures. Unknown words are added to ``problems``."""
    if not words:
        return ()
    classes = {model.architecture: model.model_class for model in matrix.spec.models.values()}
    classes |= {model.architecture: model.model_class for model in extra}
    structures = {name: classify("model", architecture=name, model_class=kind).structure for name, kind in classes.items()}
    words_of_structure = {structure.value for structure in Structure}
    found: list[str] = []
    types: TypeList | None = None
    for word in words:
        if word in structures:
            found.append(word)
        elif word in words_of_structure:
            found += [architecture for architecture, structure in structures.items() if structure == word]
        else:
            types = types or listing()
            hint = near_miss(word, {*structures, *words_of_structure}, besides=types.by_name)
            if word in types.by_name:
                hint = f"it is a type of transformers: --models {word}"
            problems.append(Problem(where="--architectures", what=f"{word!r} is neither in {matrix.path.name} nor a structure", hint=hint))
    return tuple(dict.fromkeys(found))


def _is_hub_id(model: str) -> bool:
    owner, slash, name = model.partition("/")
    return bool(owner and slash and name) and "/" not in name


def _with_unique_name(plan: ModelPlan, taken: set[str]) -> ModelPlan:
    """Names must be unique in a plan: if a folder has the name of another model, its whole path becomes its name."""
    return dataclasses.replace(plan, name=plan.selector) if plan.name in taken else plan


def _unlisted_plan(model: str, matrix: LoadedMatrix, cache: Path) -> ModelPlan:
    """The plan of a checkpoint that matrix.yaml does not list: always in full size, since it has its own dimensions."""
    size = Size.FULL
    defaults = matrix.spec.sizes[size]
    if is_folder(model):
        folder = Path(model).expanduser().absolute()
        plan = plan_for(folder.name, folder, size, defaults.batch, defaults.sequence_length)
    else:
        folder = hub.fetch(model, None, cache)
        plan = plan_for(model, folder, size, defaults.batch, defaults.sequence_length, hub_id=model)
    return dataclasses.replace(plan, selector=model if plan.hub_id else str(folder))
