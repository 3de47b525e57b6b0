"""The cache of classifications: what it stores, and which files it refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from hwmatrix.classifier import cache as classification_cache
from hwmatrix.classifier.cache import ClassificationCache, Question, versions
from hwmatrix.errors import StoreError
from hwmatrix.records import Classification, Family, SizeTier, Structure

if TYPE_CHECKING:
    from pathlib import Path

BERT = Question(model_name="bert-base-uncased", tasks=("fill-mask",))
ANSWER = Classification(
    model_name="bert-base-uncased",
    architecture="bert",
    model_class=None,
    family=Family.EMBEDDING,
    subfamily="masked_lm",
    structure=Structure.ENCODER_ONLY,
    confidence=0.9,
    evidence="task",
    source="a test",
    parameters=110_000_000,
    size_tier=SizeTier.MEDIUM,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "models.sqlite"


@pytest.fixture
def cache(path: Path) -> ClassificationCache:
    return ClassificationCache(path)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_no_file_is_created_before_something_is_stored(path: Path, cache: ClassificationCache) -> None:
    assert cache.get(BERT) is None
    assert not path.parent.exists()


def test_an_answer_is_restored_completely(path: Path, cache: ClassificationCache) -> None:
    cache.put(BERT, ANSWER)
    assert cache.get(BERT) == ANSWER
    assert ClassificationCache(path).get(BERT) == ANSWER
    nothing = dataclasses.replace(ANSWER, family=None, subfamily=None, confidence=0.0, structure=None, size_tier=None, parameters=None)
    cache.put(BERT, nothing)
    assert cache.get(BERT) == nothing


@pytest.mark.parametrize(
    "change",
    [
        {"model_name": "Bert-base-uncased"},
        {"model_class": "BertModel"},
        {"architecture": "bert"},
        {"tasks": ()},
        {"methods": ("generate",)},
        {"config": "{}"},
    ],
)
def test_every_part_of_a_question_is_in_the_key(cache: ClassificationCache, change: dict[str, str]) -> None:
    cache.put(BERT, ANSWER)
    assert cache.get(dataclasses.replace(BERT, **change)) is None


def test_answers_of_another_version_are_ignored(cache: ClassificationCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(BERT, ANSWER)
    assert versions()["hwmatrix"]
    monkeypatch.setattr(classification_cache, "versions", lambda: {"hwmatrix": "9.9", "transformers": None})
    assert cache.get(BERT) is None


def test_an_unreadable_answer_is_computed_again(path: Path, cache: ClassificationCache, caplog: pytest.LogCaptureFixture) -> None:
    cache.put(BERT, ANSWER)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("""UPDATE classifications SET answer = '{"family": 1}'""")
    assert cache.get(BERT) is None
    assert "classified again" in warnings(caplog)[0]


@pytest.mark.parametrize("content", [b"{}", b"\0" * 20_000])
def test_a_file_with_other_content_is_refused_and_not_changed(path: Path, cache: ClassificationCache, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for ask in (lambda: cache.get(BERT), lambda: cache.put(BERT, ANSWER)):
        with pytest.raises(StoreError, match="not a cache of classifications"):
            ask()
    assert path.read_bytes() == content


def test_an_unwritable_place_is_logged_and_not_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ClassificationCache(tmp_path / "file" / "models.sqlite")
    assert cache.get(BERT) is None
    cache.put(BERT, ANSWER)
    ClassificationCache(tmp_path).put(BERT, ANSWER)  # a folder
    assert len([said for said in warnings(caplog) if "is not used" in said]) == 2


def test_threads_share_a_new_file(path: Path) -> None:
    """SQLite locks the file the same for threads, each with a connection of its own, as for processes."""
    questions = [Question(model_name=f"model {number}") for number in range(16)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda question: ClassificationCache(path).put(question, ANSWER), questions))
    assert all(ClassificationCache(path).get(question) == ANSWER for question in questions)
