"""Tiny models from types alone: what the rules keep of an architecture, and what inputs are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.errors import FactoryError
from hwmatrix.models.build import build_from, load_model
from hwmatrix.models.factory.make import FACTORY, MOST_PARAMETERS, adjusted, attempts, modalities
from hwmatrix.models.factory.rules import override
from hwmatrix.models.factory.shrink import SMALL, tiny_config
from hwmatrix.models.factory.synthesis import synthesise
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.models.types import model_types
from hwmatrix.records import Dtype, ModelPlan, Size

if TYPE_CHECKING:
    from pathlib import Path

    import torch

pytestmark = pytest.mark.torch


def plan_of(name: str) -> ModelPlan:
    kind = next(kind for kind in model_types() if kind.name == name)
    return ModelPlan(name=name, size=Size.TINY, family=kind.family, architecture=name, model_class=kind.model_class, weights=FACTORY)


def config_of(name: str) -> Any:
    import transformers

    return tiny_config(transformers.CONFIG_MAPPING[name], override(name), SMALL)


def made(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    plan = plan_of(name)
    _, config = next(attempts(plan))
    model = build_from(plan, config, most=MOST_PARAMETERS)
    return model, synthesise(model, plan, override(name))


def loaded(name: str, folder: Path, *, attention: str | None) -> tuple[Any, dict[str, torch.Tensor]]:
    """The model as it comes back from a folder, and its inputs."""
    plan = plan_of(name)
    if not (folder / name).exists():
        _, config = next(attempts(plan))
        adjusted(build_from(plan, config, most=MOST_PARAMETERS), plan).save_pretrained(folder / name)
    model = load_model(folder / name, plan.model_class, Dtype.FLOAT32, attention=attention)
    return model, synthesise(model, plan, override(name))


def first_output(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    import torch

    with torch.inference_mode():
        return next(iter(flatten_outputs(model(**inputs, **call_options(model))).values()))


def test_named_layers_that_are_gone_become_the_last_one_and_windows_stay_whole_tokens() -> None:
    vision = config_of("qwen2_5_vl").vision_config
    assert (vision.depth, vision.fullatt_block_indexes) == (2, [1])
    assert vision.window_size == vision.patch_size * vision.spatial_merge_size


@pytest.mark.parametrize("name", ["colpali", "colqwen2"])
def test_a_model_that_wraps_another_gets_the_image_tokens_of_that_one(name: str) -> None:
    model, inputs = made(name)
    token = model.config.vlm_config.image_token_id
    placed = int((inputs["input_ids"] == token).sum())
    assert placed
    assert bool((inputs["input_ids"][:, :placed] == token).all()), "the image stands before the text"
    assert inputs["attention_mask"].shape == inputs["input_ids"].shape


def test_kinds_of_tokens_follow_the_tokens() -> None:
    model, inputs = made("gemma3")
    is_image = inputs["input_ids"] == model.config.image_token_id
    assert bool(is_image.any())
    assert inputs["token_type_ids"].tolist() == is_image.long().tolist()


def test_patches_have_the_places_of_a_square_row_by_row() -> None:
    _, inputs = made("gemma4_unified")
    assert inputs["image_position_ids"].tolist() == [[[0, 0], [1, 0], [0, 1], [1, 1]]]


def test_a_model_that_passes_arguments_on_is_asked_through_the_one_within() -> None:
    model, inputs = made("dots3_note")
    assert int((inputs["input_ids"] == model.config.audio_token_id).sum()) == 16  # 128 frames, eight of them a token


def test_gates_that_start_closed_are_opened() -> None:
    model, inputs = made("idefics")
    text = first_output(model, inputs)
    other = first_output(model, inputs | {"pixel_values": -inputs["pixel_values"]})
    assert float((text - other).abs().max()) > 1e-3 * float(text.abs().max()), "the image does not reach the logits"


@pytest.mark.parametrize(
    ("packages", "told"),
    [
        (
            ("torch", "timm_is_missing"),
            r"it needs torch and timm_is_missing, which the images lack: .* add them to images/cpu/requirements\.txt",
        ),
        (("timm_is_missing",), r"it needs timm_is_missing, which the images lack: .* add it to images/cpu/requirements\.txt"),
        (("torch",), None),
    ],
)
def test_a_type_that_needs_more_packages_says_which_and_is_tried_where_they_are(packages: tuple[str, ...], told: str | None) -> None:
    import dataclasses
    import unittest.mock

    entry = override("edgetam")
    assert entry.packages == ("timm", "torchvision")
    entry = dataclasses.replace(entry, packages=packages)
    with unittest.mock.patch("hwmatrix.models.factory.make.override", return_value=entry):
        if told is None:
            _, config = next(attempts(plan_of("edgetam")))
            assert config.vision_config.backbone_config.architecture == "repvit_m1"
            return
        with pytest.raises(FactoryError, match=told) as caught:
            next(attempts(plan_of("edgetam")))
        assert caught.value.error_type == "unbuildable"


def test_a_gentler_level_that_a_class_refuses_does_not_hide_the_first() -> None:
    """dots3_note's own sizes fit the small level alone; without its level, the gentle one is tried after it, and refused."""
    import dataclasses
    import unittest.mock

    entry = dataclasses.replace(override("dots3_note"), level=None)
    with unittest.mock.patch("hwmatrix.models.factory.make.override", return_value=entry):
        assert [level for level, _ in attempts(plan_of("dots3_note"))] == [SMALL]


def test_resolutions_keep_their_tiles_and_the_image_comes_whole_and_in_tiles() -> None:
    config = config_of("llava_next")
    side = config.vision_config.image_size
    assert config.image_grid_pinpoints[:3] == [[side, 2 * side], [2 * side, side], [2 * side, 2 * side]]
    model, inputs = made("llava_next")
    assert inputs["image_sizes"].tolist() == [[2 * side, side]]
    assert tuple(inputs["pixel_values"].shape) == (1, 3, 3, side, side)
    features = model.get_image_features(inputs["pixel_values"], inputs["image_sizes"]).pooler_output
    assert int((inputs["input_ids"] == model.config.image_token_index).sum()) == sum(len(image) for image in features)


@pytest.mark.parametrize(("name", "sizes"), [("llava", 0), ("mistral3", 1), ("aya_vision", 0)])
def test_sizes_of_images_are_given_where_a_model_must_know_them(name: str, sizes: int) -> None:
    assert list(made(name)[1]).count("image_sizes") == sizes


def test_an_image_of_any_size_is_rows_of_patches_with_a_mask_and_a_shape() -> None:
    model, inputs = made("siglip2")
    vision = model.config.vision_config
    assert tuple(inputs["pixel_values"].shape) == (1, 16, vision.num_channels * vision.patch_size**2)
    assert inputs["spatial_shapes"].tolist() == [[4, 4]]
    assert inputs["pixel_attention_mask"].tolist() == [[1] * 16]


def test_numbered_patches_count_rows_and_columns_from_one() -> None:
    _, inputs = made("pix2struct")
    places = inputs["flattened_patches"][0, :, :2].long().tolist()
    assert places[:5] == [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1]]
    assert places[-1] == [4, 4]


def test_spectrograms_have_a_mask_as_long_as_they_are() -> None:
    _, inputs = made("musicflamingo")
    frames = inputs["input_features"].shape[-1]
    assert inputs["input_features_mask"].tolist() == [[1] * frames]


def test_tokens_stand_in_the_order_of_the_override() -> None:
    model, inputs = made("qwen2_5_omni_thinker")
    config, ids = model.config, inputs["input_ids"][0].tolist()
    image = [config.vision_start_token_id, *[config.image_token_index] * 4, config.vision_end_token_id]
    sound = [config.audio_start_token_id, *[config.audio_token_index] * 16, config.audio_end_token_id]
    assert ids[: len(image + sound)] == image + sound


def test_what_stands_for_images_and_for_films_is_the_kind_named_first() -> None:
    _, inputs = made("molmo2")
    assert inputs["mm_token_type_ids"].tolist() == [[1] * 8 + [0] * 8]


@pytest.mark.parametrize("name", ["mimi", "encodec"])
def test_codes_of_a_codec_depend_on_the_sound(name: str) -> None:
    """A fresh codebook holds zeros alone, and narrow layers let the sound fade out: with either, every sound has the same codes."""
    import torch

    plan = plan_of(name)
    _, config = next(attempts(plan))
    model = adjusted(build_from(plan, config, most=MOST_PARAMETERS), plan)
    inputs = synthesise(model, plan, override(name))
    with torch.inference_mode():
        codes, others = (model(**values).audio_codes for values in (inputs, {"input_values": inputs["input_values"].flip(-1)}))
    assert len(codes.unique()) > 2
    assert not torch.equal(codes, others)


def test_gain_gives_weights_that_keep_the_size_of_what_goes_through_and_leaves_the_others() -> None:
    import torch

    plan = plan_of("dac")
    _, config = next(attempts(plan))
    before, after = (build_from(plan, config, most=MOST_PARAMETERS) for _ in range(2))
    adjusted(after, plan)
    gain = override("dac").gain
    assert gain is not None
    weights = [model.encoder.block[0].conv1.weight.detach() for model in (before, after)]
    gains = [float(weight.std()) * weight[0].numel() ** 0.5 for weight in weights]
    assert gains[0] < gain / 2
    assert gains[1] == pytest.approx(gain, rel=1e-3)
    assert torch.equal(before.encoder.snake1.alpha, after.encoder.snake1.alpha), "ones, a little moved, are no weights around zero"
    assert adjusted(before, plan_of("bert")) is before


def test_no_tokens_tie_in_the_index_of_dots3_note_text() -> None:
    """Which of tokens that tie are seen is each runtime's own choice, and says nothing of it."""
    import torch
    from transformers.models.dots3_note.modeling_dots3_note import Dots3NoteTextIndexer

    chosen: list[torch.Tensor] = []

    class Recorded(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.Tensor.topk:
                chosen.append(args[0].sort(dim=-1, descending=True).values[..., args[1] - 1 : args[1] + 1])
            return function(*args, **(kwargs or {}))

    model, inputs = made("dots3_note_text")
    with torch.inference_mode(), Recorded():
        model(**inputs)
    borders = torch.cat([border.flatten(0, -2) for border in chosen if border.shape[:2] == inputs["input_ids"].shape])
    seen = borders[borders[:, 0] > torch.finfo(borders.dtype).min / 2]
    indexers = sum(isinstance(module, Dots3NoteTextIndexer) for module in model.modules())
    assert indexers == 2
    assert len(seen) == indexers * 9, "of 16 tokens, those that see eight or more"
    assert float((seen[:, 0] - seen[:, 1]).min()) > 1e-4


def test_no_token_of_deepseek_v4_has_the_same_expert_twice() -> None:
    """As in its checkpoints; adding and replacing the weight of such an expert give different numbers."""
    model, _ = made("deepseek_v4")
    tables = [buffer for name, buffer in model.named_buffers() if name.endswith("tid2eid")]
    assert len(tables) == 1
    assert all(len(set(row)) == len(row) for row in tables[0].tolist())


def test_a_part_stands_for_a_chain_of_models_without_a_forward_pass() -> None:
    plan = plan_of("bark")
    assert plan.model_class == "BarkSemanticModel"
    _, config = next(attempts(plan))
    assert config.model_type == "semantic"
    model, inputs = made("bark")
    assert first_output(model, inputs).shape[-1] == config.output_vocab_size


def test_attention_that_is_wrong_when_eager_is_not_eager(tmp_path: Path) -> None:
    import torch

    for name, wanted in (("nemotron_asr_streaming_encoder", "sdpa"), ("bert", "eager")):
        model, inputs = loaded(name, tmp_path, attention="eager")
        assert model.config._attn_implementation == wanted
        assert bool(torch.isfinite(first_output(model, inputs)).all())


def test_features_are_counted_by_the_method_that_names_its_arguments() -> None:
    """The outer method of granite_speech passes on what it is given without a name, that of moss_transcribe_diarize in part."""
    for name in ("granite_speech", "moss_transcribe_diarize"):
        model, inputs = made(name)
        placed = int((inputs["input_ids"] == model.config.audio_token_id).sum())
        assert 0 < placed < inputs["input_ids"].shape[1]


def test_a_mask_of_padding_is_false_where_there_is_none() -> None:
    _, inputs = made("gemma3n_audio")
    assert inputs["audio_mel_mask"].shape == inputs["audio_mel"].shape[:2]
    assert not bool(inputs["audio_mel_mask"].any())


def test_places_in_time_height_and_width_are_those_that_the_model_works_out_itself() -> None:
    import torch

    model, inputs = made("qwen2_vl")
    assert inputs["position_ids"].shape == (3, *inputs["input_ids"].shape)
    left = {name: tensor for name, tensor in inputs.items() if name != "position_ids"}
    assert torch.equal(first_output(model, inputs), first_output(model, left))


def test_frames_are_a_film_where_the_text_has_a_token_for_films_alone() -> None:
    model, inputs = made("instructblipvideo")
    assert modalities(model, inputs, ignored=frozenset())["given"] == ["text", "video"]


def test_lists_of_a_number_for_each_stage_stay_whole_where_a_count_of_layers_counts_the_stages() -> None:
    config = config_of("swinv2")
    assert len(config.depths) == len(config.num_heads) == len(config.pretrained_window_sizes) == config.num_layers == 4


def test_what_a_class_works_out_from_sizes_follows_the_new_sizes() -> None:
    prompts = config_of("sam").prompt_encoder_config
    assert prompts.image_embedding_size == prompts.image_size // prompts.patch_size


def test_residual_branches_that_start_at_nothing_are_opened() -> None:
    import transformers

    assert transformers.ConvNextConfig().layer_scale_init_value < 1e-5
    assert config_of("convnext").layer_scale_init_value == 0.5
    assert config_of("beit").layer_scale_init_value == 0.5


@pytest.mark.parametrize("name", ["efficientnet", "mobilenet_v2", "mobilevit", "slanet", "rt_detr", "swin"])
def test_something_of_an_image_is_left_at_the_end_of_many_layers(name: str) -> None:
    import torch

    plan = plan_of(name)
    model, inputs = made(name)
    model = adjusted(model, plan).eval()
    other = {**inputs, "pixel_values": torch.randn(inputs["pixel_values"].shape, generator=torch.Generator().manual_seed(1))}
    before, after = first_output(model, inputs), first_output(model, other)
    assert float((before - after).abs().max()) > 1e-4 * float(before.abs().max())


def test_patches_that_a_vision_tower_takes_under_another_name_are_an_image() -> None:
    model, inputs = made("qwen2_5_vl_vision")
    assert set(inputs) == {"hidden_states", "grid_thw"}
    assert modalities(model, inputs, ignored=frozenset()) == {"takes": ["image"], "given": ["image"], "text_path_only": False}


@pytest.mark.parametrize("name", ["grounding-dino", "mm-grounding-dino"])
def test_attention_that_is_wrong_in_a_part_is_another_there_alone(name: str, tmp_path: Path) -> None:
    """Each phrase between delimiters sees itself alone: eager attention would add the mask of truth values as 0 and 1."""
    model, inputs = loaded(name, tmp_path, attention="eager")
    parts = (model.config, model.config.text_config, model.config.backbone_config)
    assert [part._attn_implementation for part in parts] == ["eager", "sdpa", "eager"]
    seen: list[torch.Tensor] = []
    model.model.text_backbone.register_forward_hook(lambda _module, _arguments, output: seen.append(output.last_hidden_state[0]))
    ids = inputs["input_ids"].clone()
    first_output(model, inputs)
    ids[0, 4] += 100  # of the second phrase, which ends with the delimiter at 7
    first_output(model, inputs | {"input_ids": ids})
    moved = (seen[0] - seen[1]).abs().amax(dim=1) > 1e-6
    assert moved.nonzero().flatten().tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("name", ["paligemma", "colpali", "grounding-dino", "mm-grounding-dino"])
def test_inputs_as_processors_give_them_let_all_attentions_agree(name: str, tmp_path: Path) -> None:
    reference, inputs = loaded(name, tmp_path, attention="eager")
    expected = first_output(reference, inputs)
    users, _ = loaded(name, tmp_path, attention=None)
    assert float((first_output(users, inputs) - expected).norm() / expected.norm()) < 1e-4


def test_a_prompt_sees_itself_in_both_directions_and_an_answer_what_is_before_it() -> None:
    model, inputs = made("paligemma")
    kinds = inputs["token_type_ids"][0]
    assert kinds.shape[0] == inputs["input_ids"].shape[1]
    before = first_output(model, inputs)[0]
    ids = inputs["input_ids"].clone()
    for place, reached in ((17, range(20)), (19, [19])):  # the last token of the prompt, the last of the answer
        ids[0, place] = (ids[0, place] + 50) % 400
        moved = (first_output(model, inputs | {"input_ids": ids})[0] - before).abs().amax(dim=1) > 1e-6
        assert moved.nonzero().flatten().tolist() == list(reached)
        ids = inputs["input_ids"].clone()
