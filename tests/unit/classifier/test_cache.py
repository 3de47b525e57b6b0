"""The cache of classifications: what it stores, when it is rebuilt or refused. It never makes an answer fail."""

from __future__ import annotations

import dataclasses
import fcntl
import logging
from typing import TYPE_CHECKING

import duckdb
import pytest
from factory_rows import example

from hwmatrix.classifier import cache as classification_cache
from hwmatrix.classifier.cache import SCHEMA, ClassificationCache, Question, versions
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
    return tmp_path / "deep" / "models.duckdb"


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


def test_the_rows_are_readable_with_sql(path: Path, cache: ClassificationCache) -> None:
    cache.put(BERT, ANSWER)
    with duckdb.connect(str(path), read_only=True) as connection:
        row = connection.execute("SELECT model_name, family, subfamily, confidence, tasks FROM classifications").fetchone()
        assert connection.execute("SELECT value FROM meta").fetchone() == (SCHEMA,)
    assert row == ("bert-base-uncased", "embedding", "masked_lm", 0.9, ["fill-mask"])


@pytest.mark.parametrize("content", [b"{}", b"\0" * 20_000, b"DUCK" * 5_000])
@pytest.mark.parametrize("first", ["get", "put"])
def test_a_broken_file_is_renamed_and_recreated(
    path: Path, cache: ClassificationCache, content: bytes, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    if first == "get":
        assert cache.get(BERT) is None
    cache.put(BERT, ANSWER)
    assert cache.get(BERT) == ANSWER
    assert path.with_name("models.duckdb.broken").read_bytes() == content
    assert [said for said in warnings(caplog) if "is broken and starts empty" in said]


def test_a_file_damaged_later_is_recreated(path: Path, cache: ClassificationCache) -> None:
    cache.put(BERT, ANSWER)
    whole = path.read_bytes()
    path.write_bytes(whole[:12_288] + bytes(byte ^ 0xFF for byte in whole[12_288:]))
    assert cache.get(BERT) is None
    cache.put(BERT, ANSWER)
    assert cache.get(BERT) == ANSWER
    assert path.with_name("models.duckdb.broken").exists()


def test_an_older_cache_is_rebuilt_in_place(path: Path, cache: ClassificationCache) -> None:
    cache.put(BERT, ANSWER)
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE meta SET value = 'hwmatrix/classifications/0'")
        connection.execute("ALTER TABLE classifications DROP COLUMN record")
    assert cache.get(BERT) is None
    cache.put(BERT, ANSWER)
    assert cache.get(BERT) == ANSWER
    assert not path.with_name("models.duckdb.broken").exists()


def test_an_unreadable_record_is_computed_again(path: Path, cache: ClassificationCache, caplog: pytest.LogCaptureFixture) -> None:
    cache.put(BERT, ANSWER)
    with duckdb.connect(str(path)) as connection:
        connection.execute("""UPDATE classifications SET record = '{"family": 1}'""")
    assert cache.get(BERT) is None
    assert "classified again" in warnings(caplog)[0]


def test_a_database_with_other_content_is_refused_and_not_changed(tmp_path: Path) -> None:
    matrix = example(tmp_path / "matrix.duckdb")
    before = matrix.read_bytes()
    cache = ClassificationCache(matrix)
    for ask in (lambda: cache.get(BERT), lambda: cache.put(BERT, ANSWER)):
        with pytest.raises(StoreError, match="not a cache of classifications") as caught:
            ask()
        assert caught.value.advice
    assert matrix.read_bytes() == before
    assert list(tmp_path.glob("*.broken")) == []


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="it is a folder"):
        ClassificationCache(tmp_path).get(BERT)
    with pytest.raises(StoreError, match="it is a folder"):
        ClassificationCache(tmp_path).put(BERT, ANSWER)


def test_an_unwritable_place_is_logged_and_not_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ClassificationCache(tmp_path / "file" / "models.duckdb")
    assert cache.get(BERT) is None
    cache.put(BERT, ANSWER)
    assert "is not cached in" in warnings(caplog)[0]


def test_a_lock_of_another_process_is_waited_for_then_the_cache_is_skipped(
    path: Path, cache: ClassificationCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(classification_cache, "_WAIT_S", 0.05)
    path.parent.mkdir()
    with path.with_name("models.duckdb.lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        cache.put(BERT, ANSWER)
    assert "another process is using it" in warnings(caplog)[0]
    assert not path.exists()
    cache.put(BERT, ANSWER)
    assert cache.get(BERT) == ANSWER


def test_a_file_opened_by_another_process_does_not_count_as_broken(
    path: Path, cache: ClassificationCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.put(BERT, ANSWER)

    def locked(*_: object, **__: object) -> None:
        raise duckdb.IOException("IO Error: Could not set lock on file: Conflicting lock is held in python (PID 1)")

    monkeypatch.setattr(duckdb, "connect", locked)
    assert cache.get(BERT) is None
    cache.put(BERT, ANSWER)
    assert "Could not set lock" in warnings(caplog)[0]
    assert not path.with_name("models.duckdb.broken").exists()


def test_a_full_disk_is_logged_and_not_an_error(
    path: Path, cache: ClassificationCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.put(BERT, ANSWER)

    def full(*_: object) -> None:
        raise duckdb.IOException("IO Error: Could not write file: No space left on device")

    monkeypatch.setattr(cache, "_write", full)
    cache.put(dataclasses.replace(BERT, tasks=()), ANSWER)
    assert "No space left" in warnings(caplog)[0]
    assert cache.get(BERT) == ANSWER
    assert not path.with_name("models.duckdb.broken").exists()
