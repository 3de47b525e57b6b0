"""Families on a machine without transformers, which plans a run."""

from __future__ import annotations

import sys

import pytest

from hwmatrix.errors import FactoryError
from hwmatrix.models.classify import classify
from hwmatrix.models.families import family_of
from hwmatrix.models.taxonomy import taxonomy
from hwmatrix.records import Family


@pytest.fixture(autouse=True)
def _no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("transformers", "transformers.models.auto.modeling_auto"):
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(
    ("architecture", "class_name", "family", "confidence"),
    [
        ("vit", "ViTForImageClassification", Family.VISION, "high"),
        ("wav2vec2", "Wav2Vec2ForCTC", Family.AUDIO, "high"),
        ("videomae", "VideoMAEForVideoClassification", Family.VIDEO, "high"),
        ("clip", "CLIPVisionModel", Family.VISION, "high"),
        ("whisper", "WhisperForConditionalGeneration", Family.AUDIO, "medium"),
        ("t5", "T5ForConditionalGeneration", Family.TEXT_GENERATION, "medium"),
        ("llava", "LlavaForConditionalGeneration", Family.MULTIMODAL, "medium"),
        ("clip", "CLIPModel", Family.MULTIMODAL, "medium"),
        ("xclip", "XCLIPModel", Family.VIDEO, "medium"),
        ("bert", "BertModel", Family.EMBEDDING, "medium"),
        ("wav2vec2", "Wav2Vec2ForSequenceClassification", Family.AUDIO, "medium"),
        ("brand-new", "BrandNewForCausalLM", Family.TEXT_GENERATION, "low"),
        ("brand-new", "BrandNewForMaskedLM", Family.EMBEDDING, "low"),
        ("brand_new_vl", "BrandNewVLForConditionalGeneration", Family.MULTIMODAL, "low"),
    ],
)
def test_known(architecture: str, class_name: str, family: Family, confidence: str) -> None:
    verdict = family_of(architecture, class_name)
    assert (verdict.family, verdict.confidence) == (family, confidence)
    found = classify("x", architecture=architecture, model_class=class_name)
    assert (found.family, found.source) == (family, verdict.source)


def test_an_unknown_class_has_advice() -> None:
    with pytest.raises(FactoryError, match=r"matrix\.yaml with family: one of embedding, text_generation") as caught:
        family_of("brand-new", "BrandNewForConditionalGeneration")
    assert caught.value.error_type == "family_unknown"


def test_a_class_outside_all_families_is_reported() -> None:
    with pytest.raises(FactoryError, match="autoformer is for time series, which no family covers: give it an entry"):
        family_of("autoformer", "AutoformerModel")


def test_another_table() -> None:
    table = taxonomy().only(frozenset({"vit"}))
    assert family_of("vit", "ViTModel", table).confidence == "medium"
    with pytest.raises(FactoryError):
        family_of("brand-new", "BertModel", table)
