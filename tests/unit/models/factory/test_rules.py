"""The factory's rules and overrides, and their effect on configurations. No torch is needed."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from hwmatrix.models.factory.rules import Override, Tensor, overrides, rules
from hwmatrix.models.factory.shrink import GENTLE, SMALL, tiny_config
from hwmatrix.models.types import model_types
from hwmatrix.records import Family

PLAIN = Override(reason="nothing but the rules")


class Config:
    """A configuration like those of transformers, whose arguments become fields."""

    defaults: dict[str, Any] = {}  # noqa: RUF012 - a fixture

    def __init__(self, **values: Any) -> None:
        self.values = self.defaults | values

    def to_dict(self) -> dict[str, Any]:
        return dict(self.values)


def config(**defaults: Any) -> type[Config]:
    return type("Made", (Config,), {"defaults": defaults})


def shrunk(level: str = SMALL, over: Override = PLAIN, **defaults: Any) -> dict[str, Any]:
    made: Config = tiny_config(config(**defaults), over, level)
    return made.values


def test_every_override_is_for_an_existing_type() -> None:
    known = {kind.name for kind in model_types()}
    assert len(overrides()) > 100
    assert not overrides().keys() - known


def test_each_field_has_one_rule_and_every_family_has_classes() -> None:
    limits = rules().limits
    assert limits["small"]["num_hidden_layers"] == limits["gentle"]["num_hidden_layers"] == 2
    assert not limits["small"].keys() & set(rules().shared_heads)
    assert rules().classes.keys() == set(Family) - {Family.DIFFUSION}, "whose classes are those of diffusers"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "either a shape or values"),
        ({"shape": [1], "values": [1]}, "either a shape or values"),
        ({"shape": [1], "kind": "ids"}, "needs below"),
        ({"shape": [1], "below": 3}, "needs below"),
        ({"shape": [1], "kind": "words"}, "kind"),
    ],
)
def test_invalid_descriptions_of_inputs_are_refused(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=words):
        pydantic.TypeAdapter(Tensor).validate_python(entry)


def test_an_override_needs_a_reason() -> None:
    with pytest.raises(pydantic.ValidationError, match="reason"):
        pydantic.TypeAdapter(Override).validate_python({"config": {"a": 1}})
    with pytest.raises(pydantic.ValidationError, match="confg"):
        pydantic.TypeAdapter(Override).validate_python({"reason": "a near miss of a key", "confg": {}})


def test_numbers_are_reduced_and_never_increased() -> None:
    small = shrunk(hidden_size=4096, intermediate_size=96, num_hidden_layers=1, num_attention_heads=32, vocab_size=128_000)
    assert small["hidden_size"] == 64
    assert small["intermediate_size"] == 96
    assert small["num_hidden_layers"] == 1
    assert (small["num_attention_heads"], small["vocab_size"]) == (4, 512)


@pytest.mark.parametrize(("heads", "shared", "wanted"), [(32, 32, 4), (32, 8, 2), (32, 1, 1), (2, 2, 2), (4, None, 4)])
def test_grouped_query_attention_stays_grouped(heads: int, shared: int | None, wanted: int) -> None:
    assert shrunk(hidden_size=4096, num_attention_heads=heads, num_key_value_heads=shared)["num_key_value_heads"] == wanted


def test_one_layer_of_each_kind_is_kept_and_lists_are_shortened() -> None:
    kinds = ["slow"] * 5 + ["fast"] + ["slow"] * 5 + ["odd"]
    small = shrunk(num_hidden_layers=12, layer_types=kinds, ratios=list(range(12)), other=[1, 2, 3])
    assert small["layer_types"] == ["slow", "fast", "odd"]
    assert small["num_hidden_layers"] == 3
    assert small["ratios"] == [0, 5, 11]
    assert small["other"] == [1, 2, 3]


def test_two_layers_are_kept_if_all_are_of_one_kind() -> None:
    small = shrunk(num_hidden_layers=12, layer_types=["same"] * 12)
    assert (small["num_hidden_layers"], small["layer_types"]) == (2, ["same", "same"])


def test_token_ids_are_moved_into_the_vocabulary_and_stay_distinct() -> None:
    small = shrunk(
        image_token_id=100_001,
        eos_token_id=2,
        text_config={"vocab_size": 100_100, "bos_token_id": 100_000, "eos_token_id": [100_001, 2]},
    )
    inner = small["text_config"]
    assert inner["vocab_size"] == 512
    assert small["eos_token_id"] == 2
    assert inner["eos_token_id"] == [small["image_token_id"], 2]
    moved = {small["image_token_id"], inner["bos_token_id"]}
    assert len(moved) == 2
    assert all(500 < token < 512 for token in moved)


def test_stages_keep_their_number_and_widths_their_proportions() -> None:
    small = shrunk(depths=[3, 4, 23, 3], hidden_sizes=[256, 512, 1024, 2048], num_heads=[3, 6, 12, 24], embed_dim=96)
    assert small["depths"] == [1, 1, 1, 1]
    assert small["hidden_sizes"] == [16, 16, 32, 64]
    assert small["num_heads"] == [1, 2, 4, 8]
    assert small["embed_dim"] == 32


def test_images_have_a_few_patches_per_side() -> None:
    assert shrunk(image_size=224, patch_size=16)["image_size"] == 64
    assert shrunk(image_size=[448, 224], patch_size=14)["image_size"] == [56, 56]
    assert shrunk(image_size=32, patch_size=16)["image_size"] == 32


def test_sections_of_a_rotary_embedding_add_up_to_half_a_head() -> None:
    small = shrunk(hidden_size=4096, num_attention_heads=32, head_dim=128, rope_parameters={"mrope_section": [16, 24, 24]})
    assert sum(small["rope_parameters"]["mrope_section"]) == small["head_dim"] // 2


def test_derived_fields_are_left_to_the_class() -> None:
    given: list[dict[str, Any]] = []

    class Recording(Config):
        defaults = {"id2label": {0: "a"}, "transformers_version": "1", "hidden_size": 8}  # noqa: RUF012 - a fixture

        def __init__(self, **values: Any) -> None:
            super().__init__(**values)
            given.append(values)

    tiny_config(Recording, PLAIN, SMALL)
    assert given == [{}, {"hidden_size": 8}]


def test_an_override_is_merged_over_the_rules_including_nested_configurations() -> None:
    over = Override(reason="two layers do not show it", config={"vision_config": {"depth": 4}, "hidden_size": 48})
    small = shrunk(over=over, hidden_size=1024, vision_config={"depth": 32, "hidden_size": 1280})
    assert small["hidden_size"] == 48
    assert small["vision_config"] == {"depth": 4, "hidden_size": 64}


def test_gentle_rules_change_only_depth_and_counts() -> None:
    small = shrunk(GENTLE, hidden_size=1024, num_hidden_layers=24, vocab_size=30_000, num_attention_heads=16, num_key_value_heads=4)
    assert small == {"hidden_size": 1024, "num_hidden_layers": 2, "vocab_size": 512, "num_attention_heads": 16, "num_key_value_heads": 4}
