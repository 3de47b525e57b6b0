"""The matrix.yaml that users get: valid, complete, and in agreement with what the code and the documentation say."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from hwmatrix.matrix import spec
from hwmatrix.matrix.load import load
from hwmatrix.models.families import family_of
from hwmatrix.records import Dtype, Family, MeasureRule, Size

ROOT = Path(__file__).parents[3]
MATRIX = load(ROOT / "matrix.yaml").spec
REQUIRED = "bert roberta gpt2 llama mixtral mamba t5 vit swin clip whisper wav2vec2 llava xclip videomae".split()  # noqa: SIM905 - shorter


def test_has_the_models_and_every_family() -> None:
    assert set(REQUIRED) <= MATRIX.models.keys()
    assert {model.family for model in MATRIX.models.values()} == set(Family) - {Family.OTHER}


@pytest.mark.parametrize("name", sorted(MATRIX.models))
def test_family_is_the_one_that_its_class_has(name: str) -> None:
    model = MATRIX.models[name]
    assert family_of(model.architecture, model.model_class).family is model.family


@pytest.mark.parametrize("name", sorted(MATRIX.models))
def test_every_model_names_what_it_stands_for(name: str) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", MATRIX.models[name].hub_id or "")


def test_every_required_model_is_buildable_tiny() -> None:
    assert [name for name in REQUIRED if MATRIX.models[name].tiny.unbuildable] == []


def test_what_cannot_be_built_says_why() -> None:
    stated = {(name, size.value): model.variant(size).unbuildable for name, model in MATRIX.models.items() for size in Size}
    unbuildable = {key: reason for key, reason in stated.items() if reason}
    assert unbuildable.keys() == {
        ("mixtral", "full"),
        ("llava", "full"),
        ("stable-diffusion", "tiny"),
        ("stable-diffusion", "full"),
    }
    assert all(len(reason) > 40 for reason in unbuildable.values())


def test_suites() -> None:
    suites = MATRIX.suites
    assert suites["smoke"].models == ("bert", "gpt2", "vit", "t5", "whisper", "clip")
    assert suites["smoke"].size is suites["default"].size is Size.TINY
    assert suites["default"].models == "all"
    assert (suites["all"].models, suites["all"].size, suites["all"].timing) == ("types", Size.TINY, False)
    assert all(suite.timing for name, suite in suites.items() if name != "all")
    assert MATRIX.measure_of("all") == dataclasses.replace(MATRIX.measure, warmup_s=0.1, min_s=0.15, max_s=1.0)
    assert all(MATRIX.measure_of(name) == MATRIX.measure for name in (None, *suites) if name != "all")
    assert suites["performance"].size is Size.FULL
    assert suites["performance"].models == ("bert", "gpt2", "vit", "t5", "whisper", "clip", "llama")


def test_sizes_targets_and_tolerances() -> None:
    assert MATRIX.sizes[Size.TINY] == spec.SizeSpec(batch=1, sequence_length=16, timeout_s=120, memory_mb=4096)
    assert MATRIX.sizes[Size.FULL] == spec.SizeSpec(batch=1, sequence_length=128, timeout_s=600, memory_mb=16384)
    assert MATRIX.targets["openvino"].options == {"device": "CPU"}
    assert MATRIX.images.reference in {target.image for target in MATRIX.targets.values()}
    errors = [MATRIX.tolerances[dtype].relative_error for dtype in (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16)]
    assert errors == sorted(errors)


def test_documentation_explains_every_key() -> None:
    text = (ROOT / "docs" / "matrix-yaml.md").read_text(encoding="utf-8")
    kinds = (
        spec.MatrixSpec,
        spec.ImagesSpec,
        spec.SizeSpec,
        spec.ToleranceSpec,
        spec.TargetSpec,
        spec.ModelSpec,
        spec.VariantSpec,
        spec.SuiteSpec,
        spec.ExpectSpec,
        spec.GithubSpec,
    )
    for kind in kinds:
        for field in dataclasses.fields(kind):
            key = "class" if field.name == "model_class" else field.name
            assert f"`{key}`" in text, f"{kind.__name__}.{key} is not in docs/matrix-yaml.md"
    for field in dataclasses.fields(MeasureRule):
        assert f"`{field.name}`" in text


def test_documentation_lists_every_model() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert [name for name in MATRIX.models if f"`{name}`" not in text] == []
