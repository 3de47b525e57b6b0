"""What processes do that share a cache of classifications: a module of its own, which a new process can import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwmatrix.classifier.cache import ClassificationCache, Question
from hwmatrix.records import Classification, Family

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS: Final = 8


def answer(name: str) -> Classification:
    return Classification(
        model_name=name,
        architecture=None,
        model_class=None,
        family=Family.VISION,
        subfamily=None,
        structure=None,
        confidence=0.5,
        evidence="name",
        source="a test",
    )


def work(path: Path, number: int) -> None:
    """Ask and keep, some questions of one's own and some that all ask."""
    cache = ClassificationCache(path)
    for each in range(ROUNDS):
        for name in (f"own-{number}-{each}", f"shared-{each}"):
            question = Question(model_name=name)
            found = cache.get(question)
            assert found in {None, answer(name)}
            cache.put(question, answer(name))
