"""What the words in a model's name, an unknown architecture or a class name say about the model."""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import TYPE_CHECKING, Final

from hwmatrix.records import Family

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hwmatrix.models.taxonomy import Taxonomy

COUNT: Final = re.compile(r"(?<![A-Za-z0-9.])(?:\d+x)?[AEae]?\d+(?:\.\d+)?[BbMm](?![A-Za-z0-9])")
"""A number of parameters in a name: ``7b``, ``1.3B``, ``350M``, ``8x7B``, ``A3B`` (active ones), ``E4B`` (effective ones)."""
_PIECE: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""A run of digits, or of letters split at capitals: ``Qwen2.5-VL`` is Qwen, 2, 5, VL."""
_SHORTEST_PART: Final = 4
"""The least letters of a known architecture to be recognized within a word: ``roberta`` in ``distilroberta``."""
_SHORTEST_END: Final = 3
"""The least letters of a purpose word to be recognized at the end of another word, and of a beginning that two names share."""
Pieces = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """What words say. ``architecture`` is the known architecture that they name; if it is None, they only hint at the subfamily.

    ``subfamily`` is None if the architecture belongs to no family.
    """

    subfamily: str | None
    architecture: str | None
    source: str


def read_words(text: str, known: Taxonomy) -> Reading | None:
    """What a text of words and numbers says about a model; None if it says nothing.

    The first known architecture in separate words decides: names begin with the model's line, followed by its parts and sizes. A purpose
    word beside it (``vision``, ``asr``) overrides it if the two differ. If there is neither, these decide, in this order: architectures
    with the same beginning, a known architecture within a word, words that count only if nothing else decides, and a number of
    billions, which is typical of language models.
    """
    runs = [tuple(piece.lower() for piece in _PIECE.findall(part)) for part in COUNT.split(text)]
    named = next((found for run in runs if (found := _named(run, known)).architecture), _Named())
    word = _purpose([*named.beside, *(piece for run in runs if run is not named.run for piece in run)], known.words)
    if named.architecture is None:
        hints = (_reading_of(word, known.words), *(_same_line(run, known) for run in runs), *(_within(run, known) for run in runs))
        usual = _reading_of(_purpose([piece for run in runs for piece in run], known.usual_words), known.usual_words)
        return next(filter(None, (*hints, usual, _language_model_size(text))), None)
    subfamily = known.architectures.get(named.architecture)
    if subfamily is None:
        return Reading(subfamily=None, architecture=named.architecture, source=repr(named.architecture))
    family = known.family(subfamily)
    if word and family is not Family.MULTIMODAL and known.family(known.words[word]) is not family:
        return Reading(subfamily=known.words[word], architecture=None, source=f"{word!r} beside {named.architecture!r}")
    return Reading(subfamily=subfamily, architecture=named.architecture, source=repr(named.architecture))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Named:
    """A known architecture in a run of words, and the other words of the run."""

    architecture: str | None = None
    run: Pieces = ()
    beside: Pieces = ()


def _named(run: Pieces, known: Taxonomy) -> _Named:
    """The first known architecture in a run of words; of several that begin at the same word, the longest."""
    for first in range(len(run)):
        for end in range(len(run), first, -1):
            spelt = "".join(run[first:end])
            if spelt in known.joined:
                return _Named(architecture=known.joined[spelt], run=run, beside=(*run[:first], *run[end:]))
    return _Named()


def _purpose(pieces: Sequence[str], words: dict[str, str]) -> str | None:
    """The first purpose word, in the table's order: a separate word, or the end of one (``FastVLM``)."""
    for word in words:
        if any(piece == word or (len(word) >= _SHORTEST_END and piece.endswith(word)) for piece in pieces):
            return word
    return None


def _reading_of(word: str | None, words: dict[str, str]) -> Reading | None:
    return Reading(subfamily=words[word], architecture=None, source=repr(word)) if word else None


def _same_line(run: Pieces, known: Taxonomy) -> Reading | None:
    """The most frequent subfamily of the known architectures with the same beginning. The longest shared beginning counts."""
    for beginning in _beginnings(run):
        kin = [name for short, name in known.joined.items() if short.startswith(beginning) and name in known.architectures]
        kin = [name for name in kin if not _has_purpose(name, known)]
        if kin:
            subfamily = collections.Counter(known.architectures[name] for name in kin).most_common(1)[0][0]
            return Reading(subfamily=subfamily, architecture=None, source=f"the beginning that it shares with {min(kin, key=len)!r}")
    return None


def _beginnings(run: Pieces) -> Iterator[str]:
    for end in range(len(run), 0, -1):
        beginning = "".join(run[:end])
        if len(beginning) >= _SHORTEST_END and not beginning.isdigit():
            yield beginning


def _has_purpose(architecture: str, known: Taxonomy) -> bool:
    """Whether an architecture's name has a purpose word: then it is not typical of its line."""
    return _purpose([piece.lower() for piece in _PIECE.findall(architecture)], known.words) is not None


def _within(run: Pieces, known: Taxonomy) -> Reading | None:
    """A known architecture at the end of a word, else at its beginning."""
    for word in run:
        for fits in (word.endswith, word.startswith):
            parts = [name for name in known.joined if len(name) >= _SHORTEST_PART and fits(name)]
            architecture = known.joined[max(parts, key=len)] if parts else None
            if architecture in known.architectures:
                source = f"{architecture!r} within {word!r}"
                return Reading(subfamily=known.architectures[architecture], architecture=None, source=source)
    return None


def _language_model_size(text: str) -> Reading | None:
    counted = next((match.group() for match in COUNT.finditer(text) if match.group()[-1] in "Bb"), None)
    return Reading(subfamily="causal_lm", architecture=None, source=f"{counted!r}, as in names of language models") if counted else None
