"""From ``--models`` to models: names of matrix.yaml, hub ids, checkpoint folders."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from hwmatrix.errors import CellFailure, ConfigError, NothingSelectedError, Problem
from hwmatrix.matrix.load import near_miss
from hwmatrix.matrix.plan import Selection
from hwmatrix.models import hub
from hwmatrix.models.checkpoint import plan_for
from hwmatrix.models.classify import classify
from hwmatrix.records import ModelPlan, Plan, Size, Structure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.matrix.load import LoadedMatrix


def select(
    matrix: LoadedMatrix,
    *,
    models: Sequence[str],
    targets: Sequence[str] = (),
    architectures: Sequence[str] = (),
    suite: str | None = None,
    size: Size | None = None,
    everything: bool = False,
    cache: Path,
) -> Selection:
    """Sort out what was named. A folder or a hub id that matrix.yaml does not list is looked into now.

    ``architectures`` may also have the words of ``records.Structure``: they stand for all architectures that are built so.

    Raises:
        ConfigError: every name that means nothing, with a near miss; every checkpoint that cannot or must not be loaded.
        NothingSelectedError: no model is built as the architectures ask for.
    """
    named: list[str] = []
    extra: dict[str, ModelPlan] = {}
    problems: list[Problem] = []
    listed = matrix.spec.suites.get(suite or "")
    extra_size = size or (listed.size if listed else Size.TINY)
    for model in dict.fromkeys(models):
        if model in matrix.spec.models:
            named.append(model)
        elif _is_folder(model) or _is_hub_id(model):
            try:
                plan = _foreign(model, extra_size, matrix, cache)
                taken = {*matrix.spec.models, *(other.name for other in extra.values())}
                extra.setdefault(plan.selector, _with_own_name(plan, taken))
            except CellFailure as failure:
                problems.append(Problem(where=f"--models {model}", what=str(failure), hint=failure.error_type))
        else:
            hint = f"{near_miss(model, matrix.spec.models)}; or a hub id (owner/name), or a checkpoint's folder"
            problems.append(Problem(where="--models", what=f"{model!r} is not in {matrix.path.name}", hint=hint))
    of_words = _architectures(architectures, matrix, tuple(extra.values()), problems)
    if problems:
        raise ConfigError(problems)
    if architectures and not of_words:
        raise NothingSelectedError(f"no model of {matrix.path.name} is {' or '.join(architectures)}", advice="Ask for others, or add one.")
    return Selection(
        suite=suite,
        models=tuple(named),
        extra=tuple(extra.values()),
        architectures=of_words,
        targets=tuple(targets),
        size=size,
        everything=everything,
    )


def fetch_weights(plan: Plan, cache: Path) -> Plan:
    """Fetch what ``weights: hub`` asks for. A model that cannot be had is told so in the plan: the others run.

    Local checkpoints of matrix.yaml become absolute, since the images see them under the same path.
    """
    return dataclasses.replace(plan, models=tuple(_fetched(model, cache) for model in plan.models))


def _fetched(model: ModelPlan, cache: Path) -> ModelPlan:
    try:
        if model.weights == "hub":
            return hub.resolve(model, cache)
        if model.weights != "recipe":
            folder = Path(model.weights).absolute()
            if not folder.is_dir():
                return dataclasses.replace(model, unbuildable=f"{folder} is no folder: name a checkpoint's folder")
            return dataclasses.replace(model, weights=str(folder))
    except CellFailure as failure:
        return dataclasses.replace(model, unbuildable=str(failure))
    return model


def _architectures(words: Sequence[str], matrix: LoadedMatrix, extra: tuple[ModelPlan, ...], problems: list[Problem]) -> tuple[str, ...]:
    """Words for architectures and for structures as architectures. One that is neither is added to ``problems``."""
    if not words:
        return ()
    classes = {model.architecture: model.model_class for model in matrix.spec.models.values()}
    classes |= {model.architecture: model.model_class for model in extra}
    structures = {name: classify("model", architecture=name, model_class=kind).structure for name, kind in classes.items()}
    words_of_structure = {structure.value for structure in Structure}
    found: list[str] = []
    for word in words:
        if word in structures:
            found.append(word)
        elif word in words_of_structure:
            found += [architecture for architecture, structure in structures.items() if structure == word]
        else:
            hint = near_miss(word, {*structures, *words_of_structure})
            problems.append(Problem(where="--architectures", what=f"{word!r} is not in {matrix.path.name}, and no structure", hint=hint))
    return tuple(dict.fromkeys(found))


def _is_folder(model: str) -> bool:
    return model.startswith((".", "/", "~")) or Path(model).is_dir()


def _is_hub_id(model: str) -> bool:
    owner, slash, name = model.partition("/")
    return bool(owner and slash and name) and "/" not in name


def _with_own_name(plan: ModelPlan, taken: set[str]) -> ModelPlan:
    """A folder may be called like another model, and a name stands for one model in a plan: then its whole path is its name."""
    return dataclasses.replace(plan, name=plan.selector) if plan.name in taken else plan


def _foreign(model: str, size: Size, matrix: LoadedMatrix, cache: Path) -> ModelPlan:
    defaults = matrix.spec.sizes[size]
    if _is_folder(model):
        folder = Path(model).expanduser().absolute()
        plan = plan_for(folder.name, folder, size, defaults.batch, defaults.sequence_length)
    else:
        folder = hub.fetch(model, None, cache)
        plan = plan_for(model, folder, size, defaults.batch, defaults.sequence_length, hub_id=model)
    return dataclasses.replace(plan, selector=model if plan.hub_id else str(folder))
