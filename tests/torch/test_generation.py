"""Cells that generate: prompts, forced continuations, and faults of the cache that are found at the right step and component."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from generation_faults import FAULTS, NEW, RULE, Fault, bundle_for, changed_layers, ended, late_nan, random_model, stale_slot, type_model

from hwmatrix.errors import FactoryError
from hwmatrix.models import generation
from hwmatrix.models.build import build_model, load_model
from hwmatrix.models.bundle import find_or_build
from hwmatrix.models.inputs import make_inputs
from hwmatrix.models.learning.tasks import Copy
from hwmatrix.records import Dtype
from hwmatrix.targets.torch.cpu import TorchCpu

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import ModelPlan

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

MODELS = ("gpt2", "llama", "mixtral", "mamba", "t5", "whisper", "llava")


@pytest.fixture
def bundle_of(shared_cache: Path) -> Callable[[str], tuple[ModelPlan, Bundle]]:
    """Builds or finds the bundle of such a model."""

    def made(name: str) -> tuple[ModelPlan, Bundle]:
        plan = random_model(name)
        return plan, find_or_build(plan, shared_cache / "bundles")

    return made


@pytest.mark.parametrize("name", MODELS)
def test_cached_generation_of_the_default_models_is_right(name: str, bundle_of: Any) -> None:
    plan, bundle = bundle_of(name)
    asked = bundle.generation()
    lengths = ["traced", "shorter", "longer", "padded"]
    texts = {"whisper": lengths[:1], "t5": lengths}.get(name, [*lengths, "uncached"])
    assert [prompt.name for prompt in asked.forced] == texts
    steps = {prompt.name: prompt.logits.shape[:2] for prompt in asked.forced}
    assert steps == {text: (1 if text == "uncached" else NEW, 1) for text in texts}
    for prompt in asked.forced:
        assert len(prompt.steps) == steps[prompt.name][0]
    found = ended(plan, bundle, rule=RULE)
    facts = found["facts"]
    assert found["verdict"] == "pass", found["error"]
    assert facts["relative_error"] < 1e-5
    assert {"load", "prepare", "prefill", "decode", "compare", "measure"} == set(facts["stages"])
    assert len(facts["itl_ms"]) == NEW - 1
    assert min(facts["ttft_ms"], facts["tpot_ms"], *facts["itl_ms"]) > 0
    assert facts["cache_mb"] > 0
    assert facts.get("prompt_tokens") == (None if name == "whisper" else 16)
    assert ("cache_error" in facts) == ("uncached" in texts)
    assert facts.get("cache_error", 0.0) < 1e-5
    assert "failing_step" not in facts


def test_prompts_differ_in_length_and_none_has_special_tokens() -> None:
    plan = random_model("gpt2")
    model: Any = build_model(plan)
    traced, shorter, longer, padded, uncached = generation.prompts(model, make_inputs(model, plan), steps=NEW, seed=0)
    lengths = [prompt.inputs["input_ids"].shape[1] for prompt in (traced, shorter, longer, padded)]
    assert lengths == [16, 8, 21, 11]
    assert padded.inputs["attention_mask"].tolist() == [[0] * 3 + [1] * 8]
    assert padded.inputs["input_ids"][:, 3:].equal(shorter.inputs["input_ids"])
    assert longer.inputs["input_ids"][:, :16].equal(traced.inputs["input_ids"])
    whole = torch.cat([traced.inputs["input_ids"], traced.tokens], dim=1)
    assert uncached.inputs["input_ids"].equal(whole[:, :-1])
    assert uncached.tokens.equal(whole[:, -1:])
    assert uncached.inputs["attention_mask"].shape == uncached.inputs["input_ids"].shape
    for prompt in (traced, shorter, longer):
        assert prompt.inputs["attention_mask"].all()
        assert prompt.tokens.shape == (1, NEW)
        assert model.config.eos_token_id not in (*prompt.tokens.flatten().tolist(), *prompt.inputs["input_ids"].flatten().tolist())


def test_prompts_of_given_lengths_are_those_the_model_has_positions_for() -> None:
    plan = random_model("gpt2", config={"n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 200, "n_positions": 64})
    model: Any = build_model(plan)
    without = generation.prompts(model, make_inputs(model, plan), steps=NEW, seed=0)
    found = generation.prompts(model, make_inputs(model, plan), steps=NEW, seed=0, lengths=(4, 58, 59))
    assert [prompt.name for prompt in found[len(without) :]] == ["length-4", "length-58"]
    for before, after in zip(without, found, strict=False):
        assert before.tokens.equal(after.tokens)
        assert all(tensor.equal(after.inputs[name]) for name, tensor in before.inputs.items())
    for prompt, length in zip(found[-2:], (4, 58), strict=True):
        assert prompt.inputs["input_ids"].shape == prompt.inputs["attention_mask"].shape == (1, length)
        assert prompt.inputs["input_ids"][:, :4].equal(without[0].inputs["input_ids"][:, :4])


def test_several_codes_for_each_position_are_no_text() -> None:
    plan = random_model("gpt2")
    model: Any = build_model(plan)
    with pytest.raises(FactoryError, match=r"several codes for each position, of shape \[1, 16, 5\]"):
        generation.prompts(model, {"input_ids": torch.ones(1, 16, 5, dtype=torch.int64)}, steps=NEW, seed=0)


def test_position_ids_are_left_to_generate() -> None:
    plan = random_model("gpt2")
    model: Any = build_model(plan)
    inputs = {**make_inputs(model, plan), "position_ids": torch.arange(16)[None]}
    assert all("position_ids" not in prompt.inputs for prompt in generation.prompts(model, inputs, steps=NEW, seed=0))


def test_the_padding_of_an_encoder_is_behind_its_text() -> None:
    plan = random_model("t5")
    model: Any = build_model(plan)
    padded = generation.prompts(model, make_inputs(model, plan), steps=NEW, seed=0)[-1]
    assert padded.inputs["attention_mask"].tolist() == [[1] * 8 + [0] * 3]


def test_an_image_stays_whole_in_every_prompt() -> None:
    plan = random_model("llava")
    model: Any = build_model(plan)
    for prompt in generation.prompts(model, make_inputs(model, plan), steps=NEW, seed=0):
        assert int((prompt.inputs["input_ids"] == model.config.image_token_index).sum()) == 4
        assert prompt.inputs["pixel_values"].shape == (1, 3, 28, 28)


def test_an_image_in_as_many_parts_as_tokens_stays_whole_and_places_follow_their_tokens() -> None:
    plan = random_model("gpt2")
    model: Any = build_model(plan)
    places = torch.arange(64).reshape(1, 16, 4)
    of_the_image = {"pixel_attention_mask": torch.ones(1, 16, dtype=torch.int64), "pixel_values": torch.ones(1, 16, 48)}
    inputs = {**make_inputs(model, plan), "bbox": places, **of_the_image}
    _, shorter, longer, padded, uncached = generation.prompts(model, inputs, steps=NEW, seed=0)
    for prompt in (shorter, longer, padded, uncached):
        assert all(prompt.inputs[name].equal(tensor) for name, tensor in of_the_image.items())
        assert prompt.inputs["bbox"].shape[:2] == prompt.inputs["input_ids"].shape
    assert shorter.inputs["bbox"].equal(places[:, :8])
    assert padded.inputs["bbox"].equal(torch.cat([torch.zeros(1, 3, 4, dtype=torch.int64), places[:, :8]], dim=1))
    assert longer.inputs["bbox"].equal(torch.cat([places, places[:, -1:].expand(1, 5, 4)], dim=1))


def test_what_stands_for_an_image_may_be_named_by_a_part_of_the_model() -> None:
    plan = random_model("gpt2")
    model: Any = build_model(plan)
    inputs = make_inputs(model, plan)
    inputs["input_ids"][:, :13] = 77
    of_parts = {"vision_config": {"image_token_id": 77, "id2label": {0: "cat"}}}
    with mock.patch.object(type(model.config), "to_dict", return_value=of_parts):
        _, shorter, *_ = generation.prompts(model, inputs, steps=NEW, seed=0)
    assert shorter.inputs["input_ids"].shape == (1, 14), "all that stands for the image, and one token of the text"


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("janus", [NEW, NEW, NEW, NEW, 1]),  # its own generate drops the processor that forces tokens
        ("lfm2_vl", [NEW, NEW, NEW, NEW, 1]),  # its image has as many parts as its text has tokens
        ("phi4_multimodal", [NEW, NEW, NEW, NEW, 1]),  # a part of it names the token that stands for an image
        ("qwen4_exp", [NEW, NEW, NEW, NEW, 1]),  # its cache has three convolutions in a layer
        ("udop", [NEW, NEW, NEW, NEW]),  # each token has a place on a page
        ("xlstm", [NEW, NEW, NEW, NEW, 1]),  # its cache rounds widths
    ],
)
def test_a_type_that_needs_care_generates(kind: str, steps: list[int], shared_cache: Path) -> None:
    forced = bundle_for(type_model(kind), shared_cache / "bundles").generation().forced
    assert [len(prompt.steps) for prompt in forced] == steps, "one pass for each token"


def test_an_example_ends_where_its_first_answer_is_due() -> None:
    model: Any = build_model(random_model("llama"))
    example = Copy(words=torch.arange(10, 26), length=16).draw(2, torch.Generator().manual_seed(0))
    prompt = generation.answered(model, example, 5, 3)
    assert prompt.name == "example3"
    assert prompt.inputs["input_ids"].shape == (2, 9)  # eight tokens and the separator
    assert prompt.tokens.equal(prompt.inputs["input_ids"][:, :5])


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("bert", {}, "transformers cannot generate with BertForMaskedLM"),
        (
            "llama",
            {"config": {"max_position_embeddings": 16}, "new_tokens": 12},
            "too few positions: the longest prompt and its continuation take 19",
        ),
    ],
)
def test_what_cannot_generate_has_a_reason_and_its_forward_pass_is_tested(
    name: str, changes: dict[str, Any], reason: str, shared_cache: Path
) -> None:
    plan = random_model(name)
    plan = dataclasses.replace(plan, **(changes | {"config": {**plan.config, **changes.get("config", {})}}))
    bundle = find_or_build(plan, shared_cache / "bundles")
    found = ended(plan, bundle)
    assert (found["verdict"], found["error"]["type"]) == ("factory_error", "no_generation")
    assert reason in found["error"]["message"]
    assert ended(dataclasses.replace(plan, new_tokens=0), bundle)["verdict"] == "pass"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_the_cache_is_found_where_it_is(fault: Fault, bundle_of: Any) -> None:
    plan, bundle = bundle_of("llama")
    with fault.planted("cpu"):
        found = ended(plan, bundle)
    facts = found["facts"]
    assert found["verdict"] == "mismatch", found
    assert (facts["failing_prompt"], facts["failing_component"], facts["failing_step"]) == fault.first("cpu")
    assert found["error"]["type"] == fault.kind
    assert "the logits of step" in found["error"]["message"]


def test_nan_in_a_late_step_names_the_step(bundle_of: Any) -> None:
    plan, bundle = bundle_of("llama")
    with late_nan():
        found = ended(plan, bundle)
    facts = found["facts"]
    assert (found["verdict"], found["error"]["type"]) == ("mismatch", "non_finite_output")
    assert (facts["failing_prompt"], facts["failing_component"], facts["failing_step"]) == ("traced", "decode", 5)


def test_longer_prompts_are_compared_and_timed(tmp_path: Path) -> None:
    plan = random_model("llama", prompt_lengths=(8, 40))
    bundle = find_or_build(plan, tmp_path)
    assert [prompt.name for prompt in bundle.generation().forced][-2:] == ["length-8", "length-40"]
    facts = ended(plan, bundle, rule=RULE)["facts"]
    assert facts["lengths"] == (8, 40)
    assert len(facts["lengths_ttft_ms"]) == len(facts["lengths_tpot_ms"]) == 2
    assert min(*facts["lengths_ttft_ms"], *facts["lengths_tpot_ms"]) > 0
    assert facts["lengths_cache_mb"][1] / facts["lengths_cache_mb"][0] == pytest.approx((40 + NEW - 1) / (8 + NEW - 1))
    with changed_layers(lambda layer, keys, values: (keys, values * (0.5 if layer.keys.shape[-2] >= 39 else 1.0))):
        wrong = ended(plan, bundle)
    assert (wrong["verdict"], wrong["facts"]["failing_prompt"]) == ("mismatch", "length-40")


@pytest.mark.parametrize("component", ["decode", "prefill"])
def test_memory_that_is_never_freed_is_found_by_its_growth_and_changes_no_verdict(component: str, bundle_of: Any) -> None:
    plan, bundle = bundle_of("llama")
    kept: list[bytes] = []
    real = TorchCpu.generate

    def generate(target: Any, prompt: Any, on_step: Any, *, forced: bool) -> Any:
        if component == "prefill":
            kept.append(b"x" * NEW * 2**20)
        return real(target, prompt, on_step, forced=forced)

    def leaks(_layer: Any, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if component == "decode":
            kept.append(b"x" * 2**19)
        return keys, values

    with changed_layers(leaks), mock.patch.object(TorchCpu, "generate", generate):
        found = ended(plan, bundle, rule=dataclasses.replace(RULE, min_samples=24, half_width=0.0, max_s=2.0))
    facts = found["facts"]
    assert found["verdict"] == "pass", found
    layers = len(load_model(bundle.model_dir, bundle.model_class, Dtype.FLOAT32, cache=True).model.layers)
    each = 512 * layers * (NEW - 1) / NEW if component == "decode" else 1024
    assert facts["growth_kb"] == pytest.approx(each, rel=0.1)


def test_an_error_in_a_step_names_the_step(bundle_of: Any) -> None:
    plan, bundle = bundle_of("llama")

    def fails(layer: Any, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if layer.keys.shape[-2] >= 18:
            raise RuntimeError("no slot is left")
        return keys, values

    with changed_layers(fails):
        found = ended(plan, bundle)
    facts = found["facts"]
    assert (found["verdict"], found["error"]["message"]) == ("error", "no slot is left")
    assert (facts["failing_prompt"], facts["failing_component"], facts["failing_step"]) == ("traced", "decode", 3)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT16, Dtype.BFLOAT16])
def test_a_narrow_precision_is_judged_by_the_noise_floor_of_its_steps(dtype: Dtype, bundle_of: Any) -> None:
    plan, bundle = bundle_of("llama")
    floor = bundle.generation().floors[dtype].outputs
    assert floor is not None
    assert list(floor) == [str(step) for step in range(NEW)]
    assert all(1e-5 < error < 0.1 for error in floor.values())
    found = ended(plan, bundle, dtype=dtype)
    assert found["verdict"] == "pass", found["error"]
    assert 0 < found["facts"]["excess"] < 8
    with stale_slot():
        assert ended(plan, bundle, dtype=dtype)["verdict"] == "mismatch"


def test_a_trained_model_continues_examples_of_its_task(tmp_path: Path) -> None:
    plan = dataclasses.replace(random_model("gpt2"), trained=True)
    bundle = find_or_build(plan, tmp_path)
    asked = bundle.generation()
    assert len(asked.free) == 8
    facts = ended(plan, bundle)["facts"]
    assert (facts["quality"], facts["quality_inputs"], facts["quality_metric"]) == (1.0, 8, "exact_match")
    model = load_model(bundle.model_dir, bundle.model_class, Dtype.FLOAT32, cache=True)
    first = asked.free[0]
    chosen: list[int] = []
    inputs = {name: torch.from_numpy(array) for name, array in first.inputs.items()}
    tokens = torch.from_numpy(first.tokens)
    generation.generate(model, inputs, tokens, lambda _, logits: chosen.append(int(logits.argmax())), forced=False)
    assert chosen == first.tokens[0].tolist()  # of its own accord
    with changed_layers(lambda _, keys, values: (keys, values * math.nan)):
        broken = ended(plan, bundle)
    assert (broken["verdict"], broken["error"]["type"]) == ("mismatch", "non_finite_output")
    assert "quality" not in broken["facts"]
    assert all(
        math.isfinite(value) for value in broken["facts"].values() if isinstance(value, float)
    )  # else its parent refuses the verdict
