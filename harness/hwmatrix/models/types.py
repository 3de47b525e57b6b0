"""The model types that the installed transformers can build, each with the class that stands for it: what suite ``all`` runs.

Read from transformers' tables of strings, so that neither torch nor transformers is imported.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata

from hwmatrix.models import mappings
from hwmatrix.models.factory.rules import override, rules
from hwmatrix.models.taxonomy import taxonomy
from hwmatrix.records import Family

_BASE = "MODEL"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelType:
    """A model type of transformers: the class that stands for it, and the auto mapping (``CAUSAL_LM``) which names that class."""

    name: str
    model_class: str
    mapping: str
    family: Family


def installed_version() -> str | None:
    """The version of the transformers that is installed here; None: it is not."""
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return None


def model_types() -> tuple[ModelType, ...]:
    """Every type that some auto mapping of the installed transformers has a class for, by name. Empty where it is not installed."""
    return _types_of(_frozen(mappings.installed()))


def _frozen(found: mappings.Mappings) -> tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], ...]:
    return tuple((name, tuple(pairs.items())) for name, pairs in found.items())


@functools.cache
def _types_of(found: tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], ...]) -> tuple[ModelType, ...]:
    tables = {name: dict(pairs) for name, pairs in found}
    names = sorted({kind for pairs in tables.values() for kind in pairs})
    return tuple(_type(name, tables) for name in names)


def _type(name: str, tables: dict[str, dict[str, tuple[str, ...]]]) -> ModelType:
    family = _family(name)
    listed = [*rules().classes[family], *tables]
    mapping = next(table for table in listed if name in tables.get(table, {}))
    return ModelType(name=name, model_class=override(name).model_class or tables[mapping][name][0], mapping=mapping, family=family)


def _family(name: str) -> Family:
    known = taxonomy()
    kind = known.architectures.get(name)
    return known.family(kind) if kind is not None else Family.OTHER
