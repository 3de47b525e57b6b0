"""Checkpoints that ship a processor: real inputs through it, the metric that fits the outputs, and why there is none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers
from factory_plans import cell_plan, target_plan
from fake_target import outcome_of
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from hwmatrix.generate.model_code import model_code
from hwmatrix.models.bundle import bundle_key, find_or_build
from hwmatrix.models.checkpoint import plan_for
from hwmatrix.models.samples import media
from hwmatrix.models.samples.processing import calibration_samples, evaluation_samples
from hwmatrix.records import Dtype, Size, Tolerance
from hwmatrix.runner import cell
from hwmatrix.runner.job import CellJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import ModelPlan

NARROW = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
LENGTH = 48


def tokenizer(*, vocabulary: int = 400, sentences: int = 64) -> Any:
    """A tokenizer of word pieces, trained on the first of the texts themselves."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = Tokenizer(models.WordPiece(unk_token=special[1]))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    samples = zip(range(sentences), evaluation_samples(), strict=False)
    made.train_from_iterator(
        [sample.sentence for _, sample in samples], trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=special)
    )
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=inputs, **names)


def bert(kind: str = "BertModel", **changes: Any) -> Any:
    return getattr(transformers, kind)(transformers.BertConfig(**(NARROW | {"vocab_size": 400} | changes)))


def gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=400, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def vit(kind: str = "ViTForImageClassification") -> Any:
    return getattr(transformers, kind)(transformers.ViTConfig(image_size=32, patch_size=8, num_labels=10, **NARROW))


def clip() -> Any:
    text = NARROW | {"vocab_size": 400, "eos_token_id": 3, "bos_token_id": 2}
    vision = NARROW | {"image_size": 32, "patch_size": 8}
    return transformers.CLIPModel(transformers.CLIPConfig(projection_dim=16, text_config=text, vision_config=vision))


def wav2vec2() -> Any:
    convolutions = {"conv_dim": (16,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    return transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(vocab_size=32, **convolutions, **NARROW))


def t5() -> Any:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=400, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, decoder_start_token_id=0)
    )


def llava() -> Any:
    text = transformers.LlamaConfig(vocab_size=400, max_position_embeddings=128, **NARROW)
    vision = transformers.CLIPVisionConfig(image_size=32, patch_size=8, **NARROW)
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=399, vision_feature_layer=-1)
    return transformers.LlavaForConditionalGeneration(config)


def texts_with_images() -> Any:
    words = tokenizer(vocabulary=399)
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    options: dict[str, Any] = {"image_token": "<image>", "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return transformers.LlavaProcessor(clip_images(), words, patch_size=8, **options)


def images() -> Any:
    return transformers.ViTImageProcessor(size={"height": 32, "width": 32})


def clip_images() -> Any:
    return transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})


def saved(folder: Path, model: Any, *parts: Any) -> Path:
    torch.manual_seed(0)
    for part in (model, *parts):
        part.save_pretrained(folder)
    return folder


def plan_of(folder: Path) -> ModelPlan:
    return plan_for(folder.name, folder, Size.FULL, 1, LENGTH)


@pytest.mark.parametrize(
    ("make", "parts", "metric", "inputs", "count"),
    [
        (bert, (tokenizer,), "pair_ranking", {"input_ids": (1, LENGTH), "attention_mask": (1, LENGTH), "token_type_ids": (1, LENGTH)}, 32),
        (
            gpt2,
            (tokenizer,),
            "top1_agreement",
            {"input_ids": (1, LENGTH), "attention_mask": (1, LENGTH), "token_type_ids": (1, LENGTH)},
            32,
        ),
        (
            t5,
            (tokenizer,),
            "top1_agreement",
            {"input_ids": (1, LENGTH), "attention_mask": (1, LENGTH), "decoder_input_ids": (1, LENGTH)},
            32,
        ),
        (vit, (images,), "top1_agreement", {"pixel_values": (1, 3, 32, 32)}, 16),
        (lambda: vit("ViTModel"), (images,), "pair_ranking", {"pixel_values": (1, 3, 32, 32)}, 16),
        (
            clip,
            (tokenizer, clip_images),
            "retrieval_accuracy",
            {"input_ids": (1, LENGTH), "attention_mask": (1, LENGTH), "pixel_values": (1, 3, 32, 32)},
            16,
        ),
        (
            llava,
            (texts_with_images,),
            "top1_agreement",
            {"input_ids": (1, LENGTH + 16), "attention_mask": (1, LENGTH + 16), "pixel_values": (1, 3, 32, 32)},
            32,
        ),
        (wav2vec2, (transformers.Wav2Vec2FeatureExtractor,), "top1_agreement", {"input_values": (1, 32_000)}, 16),
    ],
    ids=["encoder", "text", "text to text", "classes of images", "images", "texts and images", "images in texts", "speech"],
)
def test_a_checkpoint_is_evaluated_on_what_its_own_processor_gives(  # noqa: PLR0917 - the columns of the table above
    make: Callable[[], Any],
    parts: tuple[Callable[[], Any], ...],
    metric: str,
    inputs: dict[str, tuple[int, ...]],
    count: int,
    tmp_path: Path,
) -> None:
    folder = saved(tmp_path / "mine", make(), *(part() for part in parts))
    bundle = find_or_build(plan_of(folder), tmp_path)
    assert {name: array.shape for name, array in bundle.input_arrays().items()} == inputs
    held_out = bundle.held_out()
    assert held_out is not None
    assert held_out.answers.metric == metric
    assert {name: array.shape for name, array in held_out.inputs.items()} == {name: (count, *shape) for name, shape in inputs.items()}
    assert bundle.task_detail is not None
    assert "prepared by its own" in bundle.task_detail
    facts = ended(bundle, plan_of(folder))
    assert facts["quality_agreement"] == 1.0  # the reference itself, but for the implementation of attention
    assert facts["quality_metric"] == metric
    assert (facts.get("quality_reference") is None) == (metric == "top1_agreement")
    (main,) = {"pixel_values", "input_values"} & inputs.keys() or {"input_ids"}
    evaluated = {array.tobytes() for array in held_out.inputs[main]}
    assert len({sample[main].tobytes() for sample in bundle.calibration()} - evaluated) == 8
    masks = [sample["attention_mask"] for sample in bundle.calibration() if "attention_mask" in sample]
    if masks and texts_with_images not in parts:
        assert not all(mask.all() for mask in masks)  # else a quantized graph has no range for masks


def ended(bundle: Bundle, plan: ModelPlan) -> dict[str, Any]:
    """What a cell on the CPU finds out."""
    told: list[dict[str, Any]] = []
    job = CellJob(
        cell=cell_plan(),
        model=plan,
        target=target_plan(),
        bundle=bundle.path,
        rule=None,
        tolerances={Dtype.FLOAT32: Tolerance(relative_error=1e-3, reason="a test")},
    )
    cell.execute(job, told.append)
    outcome = outcome_of(told)
    assert outcome["verdict"] == "pass", outcome
    return dict(outcome["facts"])


def test_an_image_is_placed_by_the_checkpoint_s_template_for_chats(tmp_path: Path) -> None:
    processor = texts_with_images()
    parts = "{% for part in messages[0]['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    processor.chat_template = "the shop opens " + parts
    bundle = find_or_build(plan_of(saved(tmp_path / "mine", llava(), processor)), tmp_path)
    assert bundle.held_out() is not None, bundle.task_detail
    (ids,) = bundle.input_arrays()["input_ids"]
    assert (ids == 399).sum() == 16
    assert ids[1] != 399, "the template begins with words"


def test_sentences_are_padded_and_padding_does_not_count(tmp_path: Path) -> None:
    bundle = find_or_build(plan_of(saved(tmp_path / "mine", bert(), tokenizer())), tmp_path)
    held_out = bundle.held_out()
    assert held_out is not None
    assert held_out.weights is not None
    mask = held_out.inputs["attention_mask"]
    assert 0.0 < mask.mean() < 1.0
    np.testing.assert_allclose(held_out.weights.sum(-1), 1.0, rtol=1e-5)
    assert ((held_out.weights > 0) == (mask > 0)).all()
    assert bundle.input_arrays()["attention_mask"].all()  # speed is measured on a whole sequence


def test_a_sentence_in_an_unknown_language_is_no_reason_for_random_inputs(tmp_path: Path) -> None:
    english = tokenizer(sentences=16)
    assert set(english("明天商店营业到晚上八点。", add_special_tokens=False)["input_ids"]) == {english.unk_token_id}
    bundle = find_or_build(plan_of(saved(tmp_path / "mine", bert(), english)), tmp_path)
    assert bundle.held_out() is not None, bundle.task_detail


def test_sentences_are_pooled_as_the_checkpoint_says(tmp_path: Path) -> None:
    folder = saved(tmp_path / "mine", bert(), tokenizer())
    mean = bundle_key(plan_of(folder))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}), encoding="utf-8")
    assert bundle_key(plan_of(folder)) != mean
    held_out = find_or_build(plan_of(folder), tmp_path).held_out()
    assert held_out is not None
    assert held_out.weights is not None
    assert (held_out.weights[..., 0] == 1.0).all()
    assert (held_out.weights[..., 1:] == 0.0).all()


def test_another_tokenizer_is_another_bundle(tmp_path: Path) -> None:
    folder = saved(tmp_path / "mine", bert(), tokenizer())
    first = bundle_key(plan_of(folder))
    tokenizer(vocabulary=300).save_pretrained(folder)
    assert bundle_key(plan_of(folder)) != first


def with_code(folder: Path) -> None:
    """A tokenizer that asks for code of its own. Running it would leave a file."""
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings |= {"auto_map": {"AutoTokenizer": ["mine.Mine", None]}, "tokenizer_class": "Mine"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "mine.py").write_text(f"open({str(folder / 'executed')!r}, 'w')\n", encoding="utf-8")


def broken(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")


@pytest.mark.parametrize(
    ("make", "parts", "change", "reason"),
    [
        (bert, (), None, "ships no tokenizer, image processor or feature extractor"),
        (lambda: bert(vocab_size=3), (tokenizer,), None, "and the model has 3 tokens"),
        (bert, (tokenizer,), with_code, "tokenizer_config.json asks for code of its own"),
        (bert, (tokenizer,), broken, "cannot be loaded"),
        (vit, (tokenizer,), None, "does not give pixel_values"),
        (llava, (tokenizer,), None, "it ships no processor that puts them there"),
        (lambda: bert("BertForQuestionAnswering"), (tokenizer,), None, "no metric fits its outputs (end_logits, start_logits)"),
    ],
    ids=["no processor", "three tokens", "code", "broken", "another processor", "no processor for both", "no metric"],
)
def test_without_samples_inputs_are_random_and_the_reason_is_kept(
    make: Callable[[], Any], parts: tuple[Callable[[], Any], ...], change: Callable[[Path], None] | None, reason: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "mine", make(), *(part() for part in parts))
    if change is not None:
        change(folder)
    bundle = find_or_build(plan_of(folder), tmp_path)
    assert bundle.task_detail is not None
    assert bundle.task_detail.startswith("random inputs: ")
    assert reason in bundle.task_detail
    assert (bundle.held_out(), bundle.calibration()) == (None, [])
    assert not (folder / "executed").exists()
    facts = ended(bundle, plan_of(folder))
    assert facts["quality_detail"] == bundle.task_detail
    assert "quality" not in facts


def test_a_script_gets_the_tokens_and_says_what_is_random(tmp_path: Path) -> None:
    folder = saved(tmp_path / "mine", clip(), tokenizer(), clip_images())
    bundle = find_or_build(plan_of(folder), tmp_path)
    code = {made.name: made for made in model_code(plan_of(folder), tmp_path).inputs}
    assert code["input_ids"].ids == bundle.input_arrays()["input_ids"].tolist()
    assert "torch.randn((1, 3, 32, 32), generator=generator)  # random, where the run has a sample prepared by" in code["pixel_values"].code


def test_samples_are_the_same_every_time_and_calibration_has_others() -> None:
    first, again = ([next(samples) for _ in range(70)] for samples in (evaluation_samples(), evaluation_samples()))
    assert first == again
    others = [sample for _, sample in zip(range(20), calibration_samples(), strict=False)]
    assert not {sample.sentence for sample in first} & {sample.sentence for sample in others}
    assert not {(sample.kind, sample.view) for sample in first} & {(sample.kind, sample.view) for sample in others}
    for one, other in zip(first[::2], first[1::2], strict=True):
        assert one.kind == other.kind
        assert one.sentence != other.sentence
        assert one.view != other.view


def test_pictures_and_sounds_of_a_class_differ_by_view_only_a_little() -> None:
    assert (media.picture(3, 0) == media.picture(3, 0)).all()
    assert (media.picture(3, 0) != media.picture(3, 1)).any()
    assert media.picture(0, 0).shape == (256, 256, 3)
    assert len({media.caption(kind) for kind in range(media.CLASSES)}) == media.CLASSES
    for kind in range(media.CLASSES):
        wave = media.sound(kind, 0)
        assert wave.shape == (32_000,)
        assert 0.1 < abs(wave).max() < 1.0
    assert len(media.film(5, 0, 4)) == 4
