"""Models that are made from their type alone: types of transformers (``--models gemma3``) and classes of diffusers (``--models sd3``).

Suites with ``models: types`` have all of the former, those with ``models: diffusion`` all of the latter.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import TYPE_CHECKING, Final

from hwmatrix.matrix.spec import MatrixSpec
from hwmatrix.models.diffusion.recipes import DiffusionRecipe, recipe_named, recipes
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.models.factory.pins import newest
from hwmatrix.models.factory.rules import override
from hwmatrix.models.types import TypeList, compare, listing, pinned
from hwmatrix.records import TYPE_PREFIX, Family, ModelPlan, Size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hwmatrix.models.types import ModelType

_TINY_ONLY: Final = "a model made from its type alone is tiny: for its full size, give it an entry in matrix.yaml"
_PIN: Final = re.compile(r"^transformers==([^\s;]+)", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeModels:
    """The model types of transformers and the recipes for classes of diffusers, as models in addition to those of matrix.yaml."""

    spec: MatrixSpec
    found: TypeList

    @classmethod
    def beside(cls, spec: MatrixSpec) -> TypeModels:
        """The types of the installed transformers, else of the newest pinned list."""
        return cls(spec=spec, found=listing())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all types and recipes."""
        return (*self.found.by_name, *recipes())

    def named(self, name: str, size: Size) -> ModelPlan | None:
        """The model of a type, by its name with or without ``type:``. None if there is no such type.

        A class of diffusers is found by the name of its recipe or its own.
        """
        bare = name.removeprefix(TYPE_PREFIX)
        kind = self.found.by_name.get(bare)
        if kind is not None:
            return self._plan(kind, size)
        recipe = recipe_named(bare)
        return None if recipe is None else self._diffusion_plan(*recipe, size)

    def every(self) -> tuple[ModelPlan, ...]:
        """A tiny model of every type and every recipe."""
        return (*(self._plan(kind, Size.TINY) for kind in self.found.types), *self._every_recipe())

    def missing(self) -> tuple[ModelPlan, ...]:
        """A tiny model of every type, except those for which matrix.yaml has a model that can be built."""
        covered = {model.architecture for model in self.spec.models.values() if model.tiny.unbuildable is None}
        return tuple(self._plan(kind, Size.TINY) for kind in self.found.types if kind.name not in covered)

    def diffusion(self) -> tuple[ModelPlan, ...]:
        """A tiny model of every recipe, except those for whose class matrix.yaml has a model that can be built."""
        covered = {model.model_class for model in self.spec.models.values() if model.tiny.unbuildable is None}
        return tuple(plan for plan in self._every_recipe() if plan.model_class not in covered)

    def _every_recipe(self) -> tuple[ModelPlan, ...]:
        return tuple(self._diffusion_plan(name, recipe, Size.TINY) for name, recipe in recipes().items())

    def _diffusion_plan(self, name: str, recipe: DiffusionRecipe, size: Size) -> ModelPlan:
        defaults, called = self.spec.sizes[size], self._name(name)
        return ModelPlan(
            name=called,
            selector=called,
            size=size,
            family=Family.DIFFUSION,
            architecture=name,
            model_class=recipe.model_class,
            weights=FACTORY,
            batch=1,  # the inputs of some recipes are for one image
            sequence_length=defaults.sequence_length,
            unbuildable=None if size is Size.TINY else _TINY_ONLY,
        )

    def _name(self, kind: str) -> str:
        """The name of a type's model: that of the type, unless matrix.yaml has given it to another."""
        return f"{TYPE_PREFIX}{kind}" if kind in self.spec.models else kind

    def _plan(self, kind: ModelType, size: Size) -> ModelPlan:
        defaults, known, name = self.spec.sizes[size], override(kind.name), self._name(kind.name)
        return ModelPlan(
            name=name,
            selector=name,
            size=size,
            family=kind.family,
            architecture=kind.name,
            model_class=kind.model_class,
            weights=FACTORY,
            batch=defaults.batch,
            sequence_length=known.sequence or defaults.sequence_length,
            unbuildable=known.impossible if size is Size.TINY else _TINY_ONLY,
        )

    def told(self, constraints: Path | None) -> Iterator[str]:
        """Messages about a run of all types: their source, new and removed types, and whether the images have another version."""
        version = self.found.version
        if self.found.note:
            yield self.found.note
        if pinned(version) is None:
            since = newest()
            counts = collections.Counter(difference.what for difference in compare(since, self.found.types))
            changed = f"{counts['new']} types new, {counts['gone']} gone, {counts['class']} of another class"
            yield f"transformers {version} has no pinned list; since {since.version}: {changed} (hwmatrix types --compare {since.version})"
        there = None if constraints is None else pinned_in(constraints)
        if there is not None and there != version:
            yield f"the types are those of transformers {version}, but the images have {there}: install the same version here"


def pinned_in(constraints: Path) -> str | None:
    """The version of transformers that the images have, by images/constraints.txt; None if it does not pin one."""
    try:
        found = _PIN.search(constraints.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):  # building the images reports a missing file
        return None
    return found[1] if found else None
