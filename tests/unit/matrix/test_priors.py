"""The design documents' tables as data: complete, strict, and with their contradictions."""

from __future__ import annotations

import importlib.resources

import pydantic
import pytest

from hwmatrix.matrix.priors import Expectation, all_priors, examples_for, priors_for, read_priors
from hwmatrix.records import Backend, Family, Level

TEXT = (importlib.resources.files("hwmatrix.matrix") / "priors.yaml").read_text(encoding="utf-8")
SUMMARY, ENHANCEMENT, GUIDE = (
    "Hardware Integration Summary",
    "Hardware and Model Integration Enhancement Summary",
    "Hardware-Model Integration Guide",
)


def said(family: Family, hardware: Backend) -> dict[str, str]:
    return {prior.document: prior.expectation.value for prior in priors_for(family, hardware)}


def test_every_table_is_complete() -> None:
    six = {Backend.CUDA, Backend.ROCM, Backend.MPS, Backend.OPENVINO, Backend.WEBNN, Backend.WEBGPU}
    cells = {(prior.document, prior.family, prior.hardware) for prior in all_priors()}
    families = set(Family) - {Family.OTHER, Family.DIFFUSION}  # no table mentions them
    expected = {
        (document, family, hardware) for document in (SUMMARY, ENHANCEMENT) for family in families - {Family.VIDEO} for hardware in six
    }
    expected |= {(GUIDE, family, hardware) for family in families for hardware in six}
    expected |= {("Hardware Backend Support", family, Backend.CPU) for family in {*families, Family.DIFFUSION}}
    assert cells == expected
    assert len(all_priors()) == len(cells)


@pytest.mark.parametrize(
    ("family", "hardware", "expected"),
    [
        (Family.EMBEDDING, Backend.OPENVINO, {SUMMARY: "Medium", ENHANCEMENT: "High", GUIDE: "REAL"}),
        (Family.EMBEDDING, Backend.WEBNN, {SUMMARY: "High", ENHANCEMENT: "Medium", GUIDE: "REAL"}),
        (Family.TEXT_GENERATION, Backend.WEBGPU, {SUMMARY: "Low", ENHANCEMENT: "none", GUIDE: "REAL"}),
        (Family.TEXT_GENERATION, Backend.WEBNN, {SUMMARY: "none", ENHANCEMENT: "none", GUIDE: "REAL"}),
        (Family.AUDIO, Backend.ROCM, {SUMMARY: "Medium", ENHANCEMENT: "Low", GUIDE: "REAL"}),
        (Family.AUDIO, Backend.WEBGPU, {SUMMARY: "none", ENHANCEMENT: "none", GUIDE: "SIMULATION"}),
        (Family.VIDEO, Backend.WEBNN, {GUIDE: "SIMULATION"}),
        (Family.VISION, Backend.QNN, {}),
    ],
)
def test_contradictions_stay_visible(family: Family, hardware: Backend, expected: dict[str, str]) -> None:
    assert said(family, hardware) == expected


def test_an_entry_may_have_a_level_and_be_marked_unsupported() -> None:
    summary, enhancement, guide = priors_for(Family.MULTIMODAL, Backend.MPS)
    assert (summary.level, summary.works) == (Level.LOW, False)
    assert str(summary) == f"Low, marked as not supported ({SUMMARY})"
    assert (enhancement.level, enhancement.works) == (Level.NONE, False)
    assert (guide.level, guide.works) == (None, False)


def test_the_meaning_of_expectations() -> None:
    works = {prior.expectation: prior.works for prior in all_priors() if not prior.refused}
    assert works == {
        Expectation.HIGH: True,
        Expectation.MEDIUM: True,
        Expectation.LOW: True,
        Expectation.NONE: False,
        Expectation.REAL: True,
        Expectation.SIMULATION: False,
        Expectation.BASELINE: True,
    }
    assert {prior.level for prior in all_priors()} == {*Level, None}


def test_examples_are_found_by_name_and_hub_id() -> None:
    guide, enhancement = examples_for("google-bert/bert-base-uncased")
    assert (guide.recommended_hardware, guide.requirements.min_memory_mb, guide.document) == (Backend.CPU, 2000, GUIDE)
    assert (enhancement.recommended_hardware, enhancement.requirements.min_memory_mb) == (Backend.CUDA, 4000)
    (vit,) = examples_for("ViT-base-patch16-224")
    assert (vit.family, vit.subfamily, vit.recommended_hardware) == (Family.VISION, "image_classifier", Backend.OPENVINO)
    assert vit.recommended_template == "hf_vision_template.py"
    assert examples_for("bert") == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("version: 1", "version: 2"),
        ("audio: {cuda: High", "sound: {cuda: High"),
        ("audio: {cuda: High", "audio: {cudda: High"),
        ("audio: {cuda: High", "audio: {cuda: Fine"),
        ("refused: true}", "refuzed: true}"),
        ("batch_size: 1}", "batch_size: 0}"),
        ("min_memory_mb: 2000", "min_memory_mb: 9000"),
        ("- document: guide", "- document: gide"),
        ("examples:", "exampels:"),
    ],
)
def test_a_mistake_is_refused(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(pydantic.ValidationError):
        read_priors(TEXT.replace(old, new))
