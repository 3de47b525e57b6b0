"""The packaged matrix.yaml: valid, complete, and consistent with the code and the documentation."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from hwmatrix.matrix import spec
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import RunFacts, Selection, make_plan, model_plan
from hwmatrix.models.families import family_of
from hwmatrix.records import Dtype, Family, Isolation, MeasureRule, Plan, Size

ROOT = Path(__file__).parents[3]
LOADED = load(ROOT / "matrix.yaml")
MATRIX = LOADED.spec
REQUIRED = "bert roberta gpt2 llama mixtral mamba t5 vit swin clip whisper wav2vec2 llava xclip videomae".split()  # noqa: SIM905 - shorter


def plan_of_suite(name: str) -> Plan:
    facts = RunFacts(
        run_id="r", created_at="2026-01-02T03:04:05", command="a test", hwmatrix_version="0", commit=None, isolation=Isolation.NONE
    )
    return make_plan(LOADED, Selection(suite=name), facts)


def test_has_the_models_and_every_family() -> None:
    assert set(REQUIRED) <= MATRIX.models.keys()
    assert {model.family for model in MATRIX.models.values()} == set(Family) - {Family.OTHER}


@pytest.mark.parametrize("name", sorted(MATRIX.models))
def test_the_family_matches_the_class(name: str) -> None:
    model = MATRIX.models[name]
    assert family_of(model.architecture, model.model_class).family is model.family


@pytest.mark.parametrize("name", sorted(MATRIX.models))
def test_every_model_names_its_hub_checkpoint(name: str) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", MATRIX.models[name].hub_id or "")


def test_every_required_model_is_buildable_tiny() -> None:
    assert [name for name in REQUIRED if MATRIX.models[name].tiny.unbuildable] == []


def test_unbuildable_models_have_a_reason() -> None:
    stated = {(name, size.value): model.variant(size).unbuildable for name, model in MATRIX.models.items() for size in Size}
    unbuildable = {key: reason for key, reason in stated.items() if reason}
    assert unbuildable.keys() == {("mixtral", "full"), ("llava", "full")}
    assert {key: model_plan(key[0], MATRIX, Size(key[1])).unbuildable for key in unbuildable} == unbuildable


def test_suites() -> None:
    """As documented, all their models can be built, and only suites of every type, class or precision are not timed."""
    planned = {name: plan_of_suite(name) for name in MATRIX.suites if MATRIX.suites[name].models != "types"}
    assert planned.keys() >= {"smoke", "default", "performance"}
    assert {model.name for model in planned["default"].models} == MATRIX.models.keys()
    for name, size in (("smoke", Size.TINY), ("performance", Size.FULL)):
        assert {(model.size, model.unbuildable) for model in planned[name].models} == {(size, None)}
        assert len({model.family for model in planned[name].models}) >= 4
        assert len(planned[name].models) < len(MATRIX.models)
    assert {model.size for model in planned["default"].models} == {Size.TINY}
    assert [name for name, suite in MATRIX.suites.items() if not suite.timing] == ["precisions", "all", "diffusion"]
    assert {model.family for model in planned["diffusion"].models} == {Family.DIFFUSION}
    assert (MATRIX.suites["all"].models, MATRIX.suites["all"].size) == ("types", Size.TINY)


def test_only_the_suite_of_all_types_is_measured_for_less_time() -> None:
    shorter = [name for name in MATRIX.suites if MATRIX.measure_of(name) != MATRIX.measure]
    assert shorter == ["all"]
    sweep, usual = MATRIX.measure_of("all"), MATRIX.measure
    assert (sweep.warmup_s, sweep.min_s, sweep.max_s) < (usual.warmup_s, usual.min_s, usual.max_s)
    assert sweep.min_s < usual.min_s
    assert sweep.max_s < usual.max_s


def test_sizes_targets_and_tolerances() -> None:
    tiny, full = MATRIX.sizes[Size.TINY], MATRIX.sizes[Size.FULL]
    assert tiny.timeout_s < full.timeout_s
    assert tiny.memory_mb < full.memory_mb
    assert tiny.sequence_length < full.sequence_length
    assert tiny.batch == full.batch == 1, "the reports compare the latency of one sample"
    assert MATRIX.images.reference in {target.image for target in MATRIX.targets.values()}
    errors = [MATRIX.tolerances[dtype].relative_error for dtype in (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16)]
    assert errors == sorted(set(errors)), "fewer bits need a larger tolerance"


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
