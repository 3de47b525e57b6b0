"""The document of ``hwmatrix types``, and its JSON Schema. Every key is always present; unknown values are null."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import pydantic
from pydantic.dataclasses import dataclass

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.models.diffusion.recipes import recipe_named
from hwmatrix.models.factory.pins import PinnedList, newest
from hwmatrix.models.factory.rules import overrides
from hwmatrix.models.types import Difference, compare, listing, pinned, pinned_versions
from hwmatrix.records import Family

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.models.factory.rules import Override
    from hwmatrix.models.types import ModelType, TypeList

TYPES_SCHEMA: Final = "hwmatrix/types/1"
NEWEST: Final = "newest"
"""May be given instead of a version: the newest version that has a pinned list."""
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_STRICT: Final = pydantic.ConfigDict(extra="forbid")
_SEPARATE_FIELDS: Final = frozenset({"reason", "impossible", "text_path"})


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class OverrideEntry:
    """An exception for one type: its reason, and which keys it sets.

    ``impossible`` says why no model can be built, ``text_path`` why the model gets only text.
    """

    reason: str
    sets: tuple[str, ...]
    impossible: str | None
    text_path: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class TypeEntry:
    """One model type.

    ``mapping`` is the auto mapping of transformers that names the class. ``status`` (``pass`` or the type of an error), ``inputs`` (kinds
    of input that the tiny model was given) and ``message`` come from the pinned list; null: the list does not have the type.
    """

    name: str
    model_class: str
    mapping: str | None
    family: Family
    status: str | None
    inputs: tuple[str, ...] | None
    message: str | None
    override: OverrideEntry | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class DifferenceEntry:
    """A change of one type since the other list: ``what`` is ``new``, ``gone``, ``class`` or ``family``."""

    name: str
    what: str
    before: str | None
    now: str | None
    passed: bool


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class TypesDocument:
    """The model types. ``version`` is that of transformers, ``pinned`` that of the list with the statuses (null: there is no list).

    ``note`` says why the types are not those of an installed transformers, or what its tables lack. ``compared_with`` and
    ``differences`` are null if nothing was compared.
    """

    version: str
    installed: bool
    note: str | None
    pinned: str | None
    types: tuple[TypeEntry, ...]
    compared_with: str | None
    differences: tuple[DifferenceEntry, ...] | None
    schema: str = TYPES_SCHEMA


def types_document(names: Sequence[str] = (), *, family: Family | None = None, since: str | None = None) -> TypesDocument:
    """The types of the installed transformers, or of the newest pinned list, restricted to these names and this family.

    ``since`` is a version to compare with (``newest``: the newest that has a list). None: nothing is compared.

    Raises:
        ConfigError: there is no such type, or no list for that version.
        StoreError: a list is damaged.
    """
    found = listing()
    unknown = [name for name in dict.fromkeys(names) if name not in found.by_name]
    if unknown:
        what = f"transformers {found.version} has no such type"
        raise ConfigError([Problem(where=name, what=what, hint=_hint(name, found)) for name in unknown])
    before = _since(since) if since is not None else None
    pins = pinned(found.version)
    entries = pins.types if pins is not None else {}
    known = overrides()
    wanted = [kind for kind in found.types if (not names or kind.name in names) and (family is None or kind.family is family)]
    differences = compare(before, found.types) if before is not None else None
    return TypesDocument(
        version=found.version,
        installed=found.installed,
        note=found.note or None,
        pinned=pins.version if pins is not None else None,
        types=tuple(_entry(kind, entries, known) for kind in wanted),
        compared_with=before.version if before is not None else None,
        differences=None if differences is None else tuple(DifferenceEntry(**dataclasses.asdict(each)) for each in differences),
    )


def as_data(document: TypesDocument) -> dict[str, Any]:
    """The document as plain values, the schema first."""
    data: dict[str, Any] = pydantic.TypeAdapter(TypesDocument).dump_python(document, mode="json")
    return {"schema": data.pop("schema"), **data}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of what ``hwmatrix types --format json`` prints."""
    body = pydantic.TypeAdapter(TypesDocument).json_schema(mode="serialization")
    return {"$schema": _DIALECT, "$id": TYPES_SCHEMA, **body, "title": "hwmatrix types"}


def said(difference: DifferenceEntry) -> str:
    """A difference as text."""
    return str(Difference(**dataclasses.asdict(difference)))


def _hint(name: str, found: TypeList) -> str:
    if recipe_named(name) is not None:
        return f"it is a class of diffusers: hwmatrix matrix --models {name}"
    return near_miss(name, found.by_name)


def _since(version: str) -> PinnedList:
    found = newest() if version == NEWEST else pinned(version)
    if found is None:
        hint = near_miss(version, pinned_versions())
        raise ConfigError([Problem(where="--compare", what=f"there is no pinned list of transformers {version!r}", hint=hint)])
    return found


def _entry(kind: ModelType, pins: Mapping[str, Any], known: Mapping[str, Override]) -> TypeEntry:
    entry, besides = pins.get(kind.name), known.get(kind.name)
    return TypeEntry(
        name=kind.name,
        model_class=kind.model_class,
        mapping=kind.mapping,
        family=kind.family,
        status=entry.status if entry is not None else None,
        inputs=tuple(sorted(entry.inputs)) if entry is not None else None,
        message=entry.message if entry is not None else None,
        override=_override(besides) if besides is not None else None,
    )


def _override(entry: Override) -> OverrideEntry:
    fields = [field.name for field in dataclasses.fields(entry) if field.name not in _SEPARATE_FIELDS]
    keys = tuple(name for name in fields if getattr(entry, name))
    return OverrideEntry(reason=entry.reason, sets=keys, impossible=entry.impossible, text_path=entry.text_path)
