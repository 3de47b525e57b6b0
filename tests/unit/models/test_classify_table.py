"""The taxonomy, and the tables of the installed transformers."""

from __future__ import annotations

import importlib.resources
import logging
import sys
from typing import TYPE_CHECKING

import pytest

from hwmatrix.models import mappings
from hwmatrix.models.classify import classify
from hwmatrix.models.taxonomy import parse, taxonomy
from hwmatrix.models.words import read_words
from hwmatrix.records import Family, Structure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXT = (importlib.resources.files("hwmatrix.models") / "taxonomy.yaml").read_text(encoding="utf-8")
MODELING = """
from collections import OrderedDict

MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES = OrderedDict(
    [
        ("brandnew", "BrandNewForConditionalGeneration"),
        ("two", ("TwoForConditionalGeneration", "TwoModel")),
    ]
)
MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES = OrderedDict(
    [
        *list(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items()),
        ("listener", "ListenerForConditionalGeneration"),
    ]
)
MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES = OrderedDict([("onlyclassifies", "OnlyClassifiesHead")])
MODEL_FOR_AUDIO_TOKENIZATION_NAMES = OrderedDict([("codecs", "Codecs")])
SOMETHING_ELSE_NAMES = 7
"""


@pytest.fixture
def transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fake package transformers with only its file of mappings. Importing it fails."""
    package = tmp_path / "transformers"
    (package / "models" / "auto").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('transformers was imported')", encoding="utf-8")
    file = package / "models" / "auto" / "modeling_auto.py"
    file.write_text(MODELING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for module in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, module)
    mappings.read.cache_clear()
    yield file
    mappings.read.cache_clear()


def test_every_family_has_architectures() -> None:
    table = taxonomy()
    assert {table.family(subfamily) for subfamily in table.architectures.values()} == set(Family) - {Family.OTHER}
    assert len(table.architectures) > 500


def test_structures_and_architectures_agree() -> None:
    table = taxonomy()
    unknown = [name for name, structure in table.structures.items() if name not in table.architectures and not name.endswith("_text")]
    assert unknown == []
    assert {kind.structure for kind in table.subfamilies.values()} | set(table.structures.values()) == set(Structure)


def test_no_architecture_is_both_in_a_family_and_outside() -> None:
    assert taxonomy().outside.keys() & taxonomy().architectures.keys() == set()


def test_no_two_architectures_have_the_same_spelling() -> None:
    table = taxonomy()
    assert len(table.joined) == len(table.architectures) + len(table.outside)


@pytest.mark.parametrize(
    ("written", "instead", "error"),
    [
        ("  contrastive: >-", "  contrasting: >-", "not among the subfamilies: contrasting"),
        ("    bert big_bird", "    bert bert big_bird", "'bert' is listed under masked_lm and under masked_lm"),
        ("version: 1", "version: 2", "version"),
        ("version: 1", "version: 1\nnovelty: {}", "novelty"),
        ("head: 0.98", "head: 1.0", "less than 1"),
    ],
)
def test_a_wrong_table_is_refused(written: str, instead: str, error: str) -> None:
    source = TEXT if written in TEXT else TEXT.replace("albert bert big_bird", "albert\n    bert big_bird")
    assert written in source
    with pytest.raises(ValueError, match=error):
        parse(source.replace(written, instead, 1))


def test_a_table_of_some_architectures() -> None:
    table = taxonomy().only(frozenset({"vit", "no-such"}))
    assert list(table.architectures) == ["vit"]
    assert len(taxonomy().architectures) > 500
    assert classify("bert", known=table).evidence == "name"
    assert classify("bert", known=table).architecture is None


@pytest.mark.parametrize(
    ("text", "architecture", "subfamily"),
    [
        ("bert", "bert", "masked_lm"),
        ("Qwen2.5-VL-7B-Instruct", "qwen2_5_vl", "vision_language"),
        ("LlavaNextVideo", "llava_next_video", "vision_language"),
        ("blip2-opt-2.7b", "blip-2", "vision_language"),  # the first of two
        ("llava-v1.6-mistral-7b-hf", "llava", "vision_language"),
        ("deepseek-vl-7b", "deepseek_vl", "vision_language"),
        ("thing-A4B-it", None, "causal_lm"),  # not bit, which would span the number
        ("gpt2-asr", None, "speech_recognizer"),
        ("llava-asr", "llava", "vision_language"),  # takes several kinds of input
        ("camembert-thing", "camembert", "masked_lm"),
    ],
)
def test_words(text: str, architecture: str | None, subfamily: str) -> None:
    reading = read_words(text, taxonomy())
    assert reading is not None
    assert (reading.architecture, reading.subfamily) == (architecture, subfamily)


@pytest.mark.parametrize("text", ["", "-", "42", "xyzzy", "💥"])
def test_words_without_meaning(text: str) -> None:
    assert read_words(text, taxonomy()) is None


@pytest.mark.usefixtures("transformers")
def test_mappings_are_read_and_not_imported() -> None:
    found = mappings.installed()
    assert found["IMAGE_TEXT_TO_TEXT"] == {
        "brandnew": ("BrandNewForConditionalGeneration",),
        "two": ("TwoForConditionalGeneration", "TwoModel"),
    }
    assert found["MULTIMODAL_LM"] == {**found["IMAGE_TEXT_TO_TEXT"], "listener": ("ListenerForConditionalGeneration",)}
    assert found["AUDIO_TOKENIZATION"] == {"codecs": ("Codecs",)}
    assert "SOMETHING_ELSE" not in found
    assert "transformers" not in sys.modules


@pytest.mark.usefixtures("transformers")
def test_types_that_only_transformers_lists() -> None:
    for options in ({"architecture": "brandnew"}, {"model_class": "BrandNewForConditionalGeneration"}):
        found = classify("x", **options)  # type: ignore[arg-type]
        assert (found.family, found.evidence, found.confidence) == (Family.MULTIMODAL, "mapping", taxonomy().confidence.mapping)
        assert found.source.startswith("transformers' mapping IMAGE_TEXT_TO_TEXT, which lists the ")
    assert classify("x", architecture="codecs").subfamily == "audio_codec"
    assert classify("x", architecture="onlyclassifies").confidence == taxonomy().confidence.usual_head


@pytest.mark.usefixtures("transformers")
def test_the_table_comes_before_transformers(transformers: Path) -> None:
    before = classify("x", architecture="bert", model_class="BertModel")
    transformers.write_text(MODELING.replace("brandnew", "bert").replace("BrandNew", "Bert"), encoding="utf-8")
    mappings.read.cache_clear()
    assert classify("x", architecture="bert", model_class="BertModel") == before


@pytest.mark.parametrize("content", ["def broken(:", "\x00", None])
def test_mappings_that_cannot_be_read_are_logged(transformers: Path, content: str | None, caplog: pytest.LogCaptureFixture) -> None:
    if content is None:
        transformers.unlink()
    else:
        transformers.write_text(content, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert mappings.installed() == {}
    assert "only hwmatrix's own table is used" in caplog.text
    assert classify("x", architecture="bert").family is Family.EMBEDDING


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert mappings.installed() == {}
