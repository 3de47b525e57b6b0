"""The classification table: taxonomy.yaml, validated, and indexed by head, task and type."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
from typing import Annotated, Any, Final, Literal, TypeVar

import pydantic
import yaml

from hwmatrix.records import Family, SizeTier, Structure

Kind = TypeVar("Kind")
_STRICT: Final = pydantic.ConfigDict(extra="forbid")


def _split(value: Any) -> Any:
    """Lists of words are written as one string."""
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], pydantic.BeforeValidator(_split)]
Share = Annotated[float, pydantic.Field(gt=0, lt=1)]


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=_STRICT)
class Subfamily:
    """A kind of model within a family, and the structure that it usually has."""

    family: Family
    structure: Structure


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=_STRICT)
class Confidence:
    """How often each kind of evidence gave the right family, as measured: docs/classification.md says what the kinds are."""

    head: Share
    architecture: Share
    mapping: Share
    task: Share
    stem: Share
    type_in_name: Share
    words_of_class: Share
    words_of_architecture: Share
    words_of_name: Share
    method: Share
    usual_head: Share
    usual_task: Share


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=_STRICT)
class _File:
    """taxonomy.yaml as it is written: subfamily first."""

    version: Literal[1]
    confidence: Confidence
    subfamilies: dict[str, Subfamily]
    compatible: tuple[tuple[Family, Family], ...]
    heads: dict[str, Words]
    usual_heads: dict[str, Words]
    tasks: dict[str, Words]
    usual_tasks: dict[str, Words]
    methods: dict[str, Words]
    mappings: dict[str, str]
    usual_mappings: dict[str, str]
    words: dict[str, Words]
    usual_words: dict[str, Words]
    sizes: dict[SizeTier, Words]
    sizes_of: dict[Family, dict[str, SizeTier]]
    structures: dict[Structure, Words]
    outside: dict[str, Words]
    architectures: dict[str, Words]

    def __post_init__(self) -> None:
        """Refuse a subfamily that nobody defined."""
        tables = (self.heads, self.usual_heads, self.tasks, self.usual_tasks, self.methods, self.words, self.usual_words)
        named = {name for table in (*tables, self.architectures) for name in table}
        unknown = (named | {*self.mappings.values(), *self.usual_mappings.values()}) - self.subfamilies.keys()
        if unknown:
            raise ValueError(f"not among the subfamilies: {', '.join(sorted(unknown))}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taxonomy:
    """What is known of kinds of models: each table leads from what is read of a model to the name of a subfamily.

    The tables are those of taxonomy.yaml, which explains them. ``structures`` leads from an architecture to its structure,
    ``outside`` to what an architecture without a family is for.
    """

    subfamilies: dict[str, Subfamily]
    compatible: frozenset[frozenset[Family]]
    confidence: Confidence
    heads: dict[str, str]
    usual_heads: dict[str, str]
    tasks: dict[str, str]
    usual_tasks: dict[str, str]
    methods: dict[str, str]
    mappings: dict[str, str]
    usual_mappings: dict[str, str]
    words: dict[str, str]
    usual_words: dict[str, str]
    sizes: dict[str, SizeTier]
    sizes_of: dict[Family, dict[str, SizeTier]]
    structures: dict[str, Structure]
    outside: dict[str, str]
    architectures: dict[str, str]

    def family(self, subfamily: str) -> Family:
        """The family that a subfamily belongs to."""
        return self.subfamilies[subfamily].family

    def agree(self, one: Family, other: Family) -> bool:
        """Whether both families can be true of one model."""
        return one is other or frozenset({one, other}) in self.compatible

    def only(self, architectures: frozenset[str]) -> Taxonomy:
        """The same table as if it knew no other architectures than these: how it is tested on types that it never saw."""
        kept = {name: subfamily for name, subfamily in self.architectures.items() if name in architectures}
        return dataclasses.replace(self, architectures=kept)

    @functools.cached_property
    def joined(self) -> dict[str, str]:
        """Architectures, those outside the families too, by their letters and digits alone, in lower case: ``blip-2`` is ``blip2``."""
        return {joined(name): name for name in (*self.outside, *self.architectures)}


def joined(text: str) -> str:
    """The letters and digits of a text, in lower case."""
    return "".join(filter(str.isalnum, text)).lower()


@functools.cache
def taxonomy() -> Taxonomy:
    """The table that hwmatrix comes with."""
    text = (importlib.resources.files("hwmatrix.models") / "taxonomy.yaml").read_text(encoding="utf-8")
    return parse(text)


def parse(text: str) -> Taxonomy:
    """A table from the text of a taxonomy.yaml.

    Raises:
        ValueError: it is wrong: a key or a subfamily that does not exist, or a word that stands in two places of a table.
    """
    file = pydantic.TypeAdapter(_File).validate_python(yaml.safe_load(text))
    return Taxonomy(
        subfamilies=file.subfamilies,
        compatible=frozenset(frozenset(pair) for pair in file.compatible),
        confidence=file.confidence,
        heads=_turned("heads", file.heads),
        usual_heads=_turned("usual_heads", file.usual_heads),
        tasks=_turned("tasks", file.tasks),
        usual_tasks=_turned("usual_tasks", file.usual_tasks),
        methods=_turned("methods", file.methods),
        mappings=file.mappings,
        usual_mappings=file.usual_mappings,
        words=_turned("words", file.words),
        usual_words=_turned("usual_words", file.usual_words),
        sizes=_turned("sizes", file.sizes),
        sizes_of=file.sizes_of,
        structures=_turned("structures", file.structures),
        outside=_turned("outside", file.outside),
        architectures=_turned("architectures", file.architectures),
    )


def _turned(table: str, kinds: dict[Kind, tuple[str, ...]]) -> dict[str, Kind]:
    """From kind -> words to word -> kind."""
    found: dict[str, Kind] = {}
    for kind, words in kinds.items():
        for word in words:
            if word in found:
                raise ValueError(f"{table}: {word!r} stands under {found[word]} and under {kind}")
            found[word] = kind
    return found
