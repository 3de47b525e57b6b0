from __future__ import annotations

from pathlib import Path

import pytest

from hwmatrix.knowledge.names import shipped_model, shipped_names
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.models.listed_sizes import ListedSize, listed_sizes
from hwmatrix.records import Size

SPEC = load(Path(__file__).parents[3] / "matrix.yaml").spec
FIELDS = ("name", "size", "family", "architecture", "model_class", "hub_id", "weights", "config", "batch", "sequence_length")


@pytest.mark.parametrize("listed", listed_sizes(), ids=lambda listed: listed.model)
def test_a_packaged_model_is_that_of_matrix_yaml(listed: ListedSize) -> None:
    name = listed.model
    plan, shipped = model_plan(name, SPEC, Size.FULL), shipped_model(name)
    assert {field: getattr(shipped, field) for field in FIELDS} == {field: getattr(plan, field) for field in FIELDS}
    assert plan.hub_id is not None
    assert shipped_model(plan.hub_id) == shipped_model(plan.hub_id.rpartition("/")[2].upper()) == shipped


def test_packaged_names_are_known_everywhere() -> None:
    assert [shipped_model(name).name for name in shipped_names() if shipped_model(name)] == [listed.model for listed in listed_sizes()]
    assert all("/" in name for name in shipped_names())


@pytest.mark.parametrize(("name", "model"), [("facebook/wav2vec2-base", "wav2vec2"), ("clip_vit-base-patch32", "clip"), ("t5-small", "t5")])
def test_other_spellings(name: str, model: str) -> None:
    shipped = shipped_model(name)
    assert shipped is not None
    assert shipped.name == model


@pytest.mark.parametrize("name", ["", "ber", "bert-of-somebody", "somebody/bert", "openai/gpt2-"])
def test_other_names_are_not_packaged_models(name: str) -> None:
    assert shipped_model(name) is None
