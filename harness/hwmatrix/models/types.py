"""The model types that transformers can build, each with its class: the content of suite ``all``.

They are read from the tables in the source of the installed transformers, without importing it or torch. If it is not installed, or its
tables have another form, they come from the newest pinned list.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING, Final

from hwmatrix.models import mappings
from hwmatrix.models.diffusion.recipes import recipe_named
from hwmatrix.models.factory.pins import PinnedList, newest, pinned, pinned_versions
from hwmatrix.models.factory.rules import override, rules
from hwmatrix.models.taxonomy import taxonomy
from hwmatrix.records import TYPE_PREFIX, Family

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Difference",
    "ModelType",
    "TypeList",
    "compare",
    "installed_version",
    "is_type",
    "listing",
    "model_types",
    "pinned",
    "pinned_versions",
]

UNKNOWN: Final = "(unknown version)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelType:
    """A model type of transformers: the class to build for it, and the auto mapping (``CAUSAL_LM``) that lists the class.

    ``mapping`` is None if the type comes from a pinned list.
    """

    name: str
    model_class: str
    mapping: str | None
    family: Family


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeList:
    """The types of one version of transformers, by name. ``installed``: this version is installed here.

    ``note`` says why it is not, or what is missing in its tables; it may be empty.
    """

    version: str
    types: tuple[ModelType, ...]
    installed: bool
    note: str = ""

    @functools.cached_property
    def by_name(self) -> dict[str, ModelType]:
        """The types by name."""
        return {kind.name: kind for kind in self.types}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """The change of one type since a pinned list: ``what`` is ``new``, ``gone``, ``class`` or ``family``.

    ``before`` and ``now`` are its classes or families. ``passed``: it passed in the list.
    """

    name: str
    what: str
    before: str | None
    now: str | None
    passed: bool

    def __str__(self) -> str:
        before = " (it passed)" if self.passed else ""
        if self.what == "new":
            return f"new: {self.name} ({self.now})"
        if self.what == "gone":
            return f"gone: {self.name} ({self.before}){before}"
        return f"another {self.what}: {self.name}: {self.now} instead of {self.before}{before}"


def installed_version() -> str | None:
    """The version of the installed transformers; None if it is not installed."""
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return None


def model_types() -> tuple[ModelType, ...]:
    """Every type for which an auto mapping of transformers lists a class, by name. :func:`listing` gives the version."""
    return listing().types


def listing() -> TypeList:
    """The types of the installed transformers, else those of the newest pinned list.

    Raises:
        StoreError: transformers is not installed, and the pinned list is damaged.
    """
    found = mappings.installed()
    version = installed_version() or UNKNOWN
    if not found:
        pins = newest()
        why = f"transformers {version} stores its tables of models in a form that hwmatrix cannot read"
        if importlib.util.find_spec("transformers") is None:
            why = "transformers is not installed here"
        return TypeList(
            version=pins.version, types=_pinned_types(pins), installed=False, note=f"{why}: the types are those of {pins.version}"
        )
    lacking = sorted({name for names in rules().classes.values() for name in names} - found.keys())
    note = f"transformers {version} has no tables {', '.join(lacking)}: their types are missing, or are built by another class"
    return TypeList(version=version, types=_types_of(_frozen(found)), installed=True, note=note if lacking else "")


def is_type(name: str) -> bool:
    """Whether this is the name of a type of transformers or of a class of diffusers, with or without the prefix ``type:``."""
    bare = name.removeprefix(TYPE_PREFIX)
    return bare in listing().by_name or recipe_named(bare) is not None


def compare(before: PinnedList, now: Iterable[ModelType]) -> tuple[Difference, ...]:
    """The changes since a pinned list: new types, then types that are gone, then types with another class or family."""
    kinds = {kind.name: kind for kind in now}
    old = before.types
    found = [
        Difference(name=name, what="new", before=None, now=kinds[name].model_class, passed=False)
        for name in sorted(kinds.keys() - old.keys())
    ]
    found += [
        Difference(name=name, what="gone", before=old[name].model_class, now=None, passed=old[name].passes)
        for name in sorted(old.keys() - kinds.keys())
    ]
    for name in sorted(old.keys() & kinds.keys()):
        entry, kind = old[name], kinds[name]
        if entry.model_class != kind.model_class:
            found.append(Difference(name=name, what="class", before=entry.model_class, now=kind.model_class, passed=entry.passes))
        elif entry.family is not kind.family:
            found.append(Difference(name=name, what="family", before=entry.family.value, now=kind.family.value, passed=entry.passes))
    return tuple(found)


def _pinned_types(pins: PinnedList) -> tuple[ModelType, ...]:
    return tuple(
        ModelType(name=name, model_class=entry.model_class, mapping=None, family=entry.family) for name, entry in sorted(pins.types.items())
    )


def _frozen(found: mappings.Mappings) -> tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], ...]:
    return tuple((name, tuple(pairs.items())) for name, pairs in found.items())


@functools.cache
def _types_of(found: tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], ...]) -> tuple[ModelType, ...]:
    tables = {name: {kind: classes for kind, classes in pairs if classes} for name, pairs in found}
    names = sorted({kind for pairs in tables.values() for kind in pairs})
    return tuple(_type(name, tables) for name in names)


def _type(name: str, tables: dict[str, dict[str, tuple[str, ...]]]) -> ModelType:
    family = _family(name, tables)
    listed = [*rules().classes.get(family, ()), *tables]
    mapping = next(table for table in listed if name in tables.get(table, {}))
    return ModelType(name=name, model_class=override(name).model_class or tables[mapping][name][0], mapping=mapping, family=family)


def _family(name: str, tables: dict[str, dict[str, tuple[str, ...]]]) -> Family:
    """The family in the table of types. For a type that it does not list, the family by the rules of ``classify``.

    The first of its classes that has a family decides, from the most specific of transformers' tables to the least.
    """
    known = taxonomy()
    if name in known.architectures:
        return known.family(known.architectures[name])
    if name in known.outside:
        return Family.OTHER
    from hwmatrix.models.classify import classify

    first = [*known.mappings, *known.usual_mappings]
    ordered = sorted(tables, key=lambda table: first.index(table) if table in first else len(first))
    classes = [found for table in ordered for found in tables[table].get(name, ())]
    heard = (classify("model", architecture=name, model_class=found) for found in classes)
    return next((said.family for said in heard if said.family is not None), Family.OTHER)
