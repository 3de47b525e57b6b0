"""Models that are made from transformers types, for ``--models gemma3`` and for suites with ``models: types``."""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import TYPE_CHECKING, Final

from hwmatrix.matrix.spec import MatrixSpec
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.models.factory.pins import newest
from hwmatrix.models.factory.rules import override
from hwmatrix.models.types import TypeList, compare, listing, pinned
from hwmatrix.records import TYPE_PREFIX, ModelPlan, Size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hwmatrix.models.types import ModelType

_TINY_ONLY: Final = "a model made from its type alone is tiny: for its full size, give it an entry in matrix.yaml"
_PIN: Final = re.compile(r"^transformers==([^\s;]+)", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeModels:
    """The model types of transformers, as models in addition to those of matrix.yaml."""

    spec: MatrixSpec
    found: TypeList

    @classmethod
    def beside(cls, spec: MatrixSpec) -> TypeModels:
        """The types of the installed transformers, else of the newest pinned list."""
        return cls(spec=spec, found=listing())

    def named(self, name: str, size: Size) -> ModelPlan | None:
        """The model of a type, by the type's name with or without ``type:``. None if there is no such type."""
        kind = self.found.by_name.get(name.removeprefix(TYPE_PREFIX))
        return None if kind is None else self._plan(kind, size)

    def every(self) -> tuple[ModelPlan, ...]:
        """A tiny model of every type."""
        return tuple(self._plan(kind, Size.TINY) for kind in self.found.types)

    def missing(self) -> tuple[ModelPlan, ...]:
        """A tiny model of every type, except those for which matrix.yaml has a model that can be built."""
        covered = {model.architecture for model in self.spec.models.values() if model.tiny.unbuildable is None}
        return tuple(self._plan(kind, Size.TINY) for kind in self.found.types if kind.name not in covered)

    def _plan(self, kind: ModelType, size: Size) -> ModelPlan:
        defaults, known = self.spec.sizes[size], override(kind.name)
        name = f"{TYPE_PREFIX}{kind.name}" if kind.name in self.spec.models else kind.name
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
