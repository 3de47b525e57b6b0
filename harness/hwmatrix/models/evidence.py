"""What each known fact says about a model's kind, and how credible it is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.models import mappings
from hwmatrix.models.structure import is_of_diffusers
from hwmatrix.models.taxonomy import joined
from hwmatrix.models.words import Reading, read_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hwmatrix.models.taxonomy import Taxonomy

_STEM_ENDS: Final = re.compile(r"(For[A-Z]\w*|LMHeadModel|Model|Encoder|Decoder|Pipeline|Backbone)$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """What is known about a model, besides its name. ``architecture`` is a model_type, ``tasks`` are the hub's tags."""

    model_class: str | None = None
    architecture: str | None = None
    tasks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Witness:
    """One piece of evidence about what a model is.

    ``kind`` is a field of ``taxonomy.Confidence``, ``evidence`` the word for it in ``records.Classification``. ``subfamily`` is
    None if the model is known and belongs to no family. ``architecture`` is the one that was recognized.
    """

    kind: str
    evidence: str
    subfamily: str | None
    confidence: float
    source: str
    architecture: str | None = None


def witnesses(model: Known, known: Taxonomy) -> list[Witness]:
    """All witnesses. Of equally credible ones the first wins, so the class comes before the architecture, which is less specific."""
    stems = list(_stems(model, known))
    recognized = any(witness.architecture for witness in stems)
    return [
        *_heads(model.model_class, known),
        *_architectures(model.architecture, known),
        *(() if recognized else _auto_mappings(model, known)),
        *_tasks(model.tasks, known),
        *stems,
        *_methods(model.methods, known),
        *_diffusers(model.config, known),
    ]


def most_credible(heard: Iterable[Witness]) -> Witness | None:
    """The witness with the highest confidence; of equals, the first."""
    return max(heard, key=lambda witness: witness.confidence, default=None)


def from_name(name: str, known: Taxonomy) -> Witness | None:
    """The witness in a name: its last part, else an architecture in the owner's name."""
    owner, _, last = name.rpartition("/")
    reading = read_words(last, known)
    if reading:
        kind = "type_in_name" if reading.architecture else "words_of_name"
        return _from_reading(kind, "name", reading, f"{reading.source} in the name", known)
    reading = read_words(owner, known)
    if reading and reading.architecture and reading.subfamily:
        return _witness("words_of_name", "name", reading.subfamily, f"{reading.source} in the owner's name", known)
    return None


def _heads(model_class: str | None, known: Taxonomy) -> Iterator[Witness]:
    if joined((model_class or "").removesuffix("Model")) in known.joined:
        return  # AyaVisionModel is the whole of aya_vision, not a vision model of aya
    for kind, table, usual in (("head", known.heads, ""), ("usual_head", known.usual_heads, ", usually")):
        head = max((head for head in table if (model_class or "").endswith(head)), key=len, default=None)
        if head:
            yield _witness(kind, "class", table[head], f"the class's head {head}{usual}", known)
            return


def _architectures(architecture: str | None, known: Taxonomy) -> Iterator[Witness]:
    if not architecture:
        return
    name = architecture if architecture in known.architectures else known.joined.get(joined(architecture), architecture)
    if name in known.architectures:
        source = f"the architecture {name}"
        yield _witness("architecture", "architecture", known.architectures[name], source, known, architecture=name)
    elif name in known.outside:
        source = f"{name} is for {known.outside[name]}, which no family covers"
        yield _witness("architecture", "architecture", None, source, known, architecture=name)
    else:
        reading = read_words(architecture, known)
        if reading and reading.subfamily:
            source = f"{reading.source} in the architecture's name {architecture}"
            yield _witness("words_of_architecture", "architecture", reading.subfamily, source, known)


def _auto_mappings(model: Known, known: Taxonomy) -> Iterator[Witness]:
    """The first auto mapping of the installed transformers that lists the class, else the architecture.

    Not for what the table lists: a machine that plans a run has no transformers and must give the same answer.
    """
    if not (model.architecture or model.model_class) or (model.architecture and joined(model.architecture) in known.joined):
        return
    listed = mappings.installed()
    for table in (known.mappings, known.usual_mappings):
        for what, described in ((model.model_class, "the class"), (model.architecture, "the architecture")):
            found = next((name for name in table if what and _has(listed.get(name, {}), what)), None)
            if found:
                source = f"transformers' mapping {found}, which lists {described} {what}"
                kind = "mapping" if table is known.mappings else "usual_head"
                yield _witness(kind, "mapping", table[found], source, known)
                return


def _has(mapping: dict[str, tuple[str, ...]], what: str) -> bool:
    return what in mapping or any(what in classes for classes in mapping.values())


def _tasks(tasks: tuple[str, ...], known: Taxonomy) -> Iterator[Witness]:
    for task in tasks:
        for kind, table, usual in (("task", known.tasks, ""), ("usual_task", known.usual_tasks, ", usually")):
            if task in table:
                yield _witness(kind, "task", table[task], f"the task {task}{usual}", known)


def _stems(model: Known, known: Taxonomy) -> Iterator[Witness]:
    """The witness in the first half of a class name: ``Bert`` of ``BertForMaskedLM``."""
    stem = _STEM_ENDS.sub("", model.model_class or "")
    reading = read_words(stem, known) if stem else None
    if reading and reading.architecture:
        source = f"the architecture {reading.architecture} in the class's name"
        yield _from_reading("stem", "class", reading, source, known)
    elif reading and not model.architecture:
        yield _from_reading("words_of_class", "class", reading, f"{reading.source} in the class's name", known)


def _methods(methods: tuple[str, ...], known: Taxonomy) -> Iterator[Witness]:
    for method in methods:
        if method in known.methods:
            yield _witness("method", "method", known.methods[method], f"the method {method}, usually", known)


def _diffusers(config: Mapping[str, Any], known: Taxonomy) -> Iterator[Witness]:
    if is_of_diffusers(config):
        yield _witness("words_of_class", "architecture", "image_generator", "a configuration of the diffusers library", known)


def _from_reading(kind: str, evidence: str, reading: Reading, source: str, known: Taxonomy) -> Witness:
    if reading.subfamily is None and reading.architecture:
        source += f", which is for {known.outside[reading.architecture]} and belongs to no family"
    return _witness(kind, evidence, reading.subfamily, source, known, architecture=reading.architecture)


def _witness(kind: str, evidence: str, subfamily: str | None, source: str, known: Taxonomy, *, architecture: str | None = None) -> Witness:
    confidence: float = getattr(known.confidence, kind)
    return Witness(kind=kind, evidence=evidence, subfamily=subfamily, confidence=confidence, source=source, architecture=architecture)
