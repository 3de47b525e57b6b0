"""The classification table: taxonomy.yaml, validated, and indexed by head, task and type."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
from typing import Annotated, Any, Final, Literal, TypeVar

import pydantic

from hwmatrix.basics.plain_yaml import parsed
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
        """Refuse undefined subfamilies."""
        tables = (self.heads, self.usual_heads, self.tasks, self.usual_tasks, self.methods, self.words, self.usual_words)
        named = {name for table in (*tables, self.architectures) for name in table}
        unknown = (named | {*self.mappings.values(), *self.usual_mappings.values()}) - self.subfamilies.keys()
        if unknown:
            raise ValueError(f"not among the subfamilies: {', '.join(sorted(unknown))}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taxonomy:
    """What is known about kinds of models. Each table maps a fact about a model to the name of a subfamily.

    The tables are those of taxonomy.yaml, which explains them. ``structures`` maps an architecture to its structure,
    ``outside`` an architecture without a family to its purpose.
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
        """The same table with these architectures only, to test it on types that it does not know."""
        kept = {name: subfamily for name, subfamily in self.architectures.items() if name in architectures}
        return dataclasses.replace(self, architectures=kept)

    @functools.cached_property
    def joined(self) -> dict[str, str]:
        """All architectures, with or without a family, by their letters and digits in lower case: ``blip2`` for ``blip-2``."""
        return {joined(name): name for name in (*self.outside, *self.architectures)}


def joined(text: str) -> str:
    """The letters and digits of a text, in lower case."""
    return "".join(filter(str.isalnum, text)).lower()


@functools.cache
def taxonomy() -> Taxonomy:
    """The packaged table."""
    text = (importlib.resources.files("hwmatrix.models") / "taxonomy.yaml").read_text(encoding="utf-8")
    return parse(text)


def parse(text: str) -> Taxonomy:
    """Parse the text of a taxonomy.yaml.

    Raises:
        ValueError: a key or subfamily does not exist, or a word occurs twice in a table.
    """
    file = pydantic.TypeAdapter(_File).validate_python(parsed(text))
    return Taxonomy(
        subfamilies=file.subfamilies,
        compatible=frozenset(frozenset(pair) for pair in file.compatible),
        confidence=file.confidence,
        heads=_inverted("heads", file.heads),
        usual_heads=_inverted("usual_heads", file.usual_heads),
        tasks=_inverted("tasks", file.tasks),
        usual_tasks=_inverted("usual_tasks", file.usual_tasks),
        methods=_inverted("methods", file.methods),
        mappings=file.mappings,
        usual_mappings=file.usual_mappings,
        words=_inverted("words", file.words),
        usual_words=_inverted("usual_words", file.usual_words),
        sizes=_inverted("sizes", file.sizes),
        sizes_of=file.sizes_of,
        structures=_inverted("structures", file.structures),
        outside=_inverted("outside", file.outside),
        architectures=_inverted("architectures", file.architectures),
    )


def _inverted(table: str, kinds: dict[Kind, tuple[str, ...]]) -> dict[str, Kind]:
    """Map each word to its kind."""
    found: dict[str, Kind] = {}
    for kind, words in kinds.items():
        for word in words:
            if word in found:
                raise ValueError(f"{table}: {word!r} is listed under {found[word]} and under {kind}")
            found[word] = kind
    return found
