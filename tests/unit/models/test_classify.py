"""Classification on a machine without transformers."""

from __future__ import annotations

import dataclasses
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

import hwmatrix
from hwmatrix.errors import ConfigError
from hwmatrix.models import mappings
from hwmatrix.models.classify import classify, classify_model
from hwmatrix.models.taxonomy import taxonomy
from hwmatrix.records import Family, SizeTier, Structure

if TYPE_CHECKING:
    from conftest import Guard

CONFIDENCE = taxonomy().confidence


@pytest.fixture(autouse=True)
def _no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "installed", dict)


def said(*arguments: Any, **options: Any) -> tuple[str | None, str | None]:
    found = classify_model(*arguments, **options)
    return found["family"], found["subfamily"]


@pytest.mark.parametrize(
    ("name", "family", "subfamily", "structure", "tier"),
    [
        ("bert-base-uncased", "embedding", "masked_lm", "encoder-only", "medium"),
        ("roberta-base", "embedding", "masked_lm", "encoder-only", "medium"),
        ("gpt2", "text_generation", "causal_lm", "decoder-only", "medium"),
        ("t5-small", "text_generation", "seq2seq_lm", "encoder-decoder", "small"),
        ("vit-base-patch16-224", "vision", "image_classifier", "encoder-only", "small"),
        ("microsoft/swin-tiny-patch4-window7-224", "vision", "image_classifier", "encoder-only", "small"),
        ("facebook/detr-resnet-50", "vision", "object_detector", "encoder-decoder", None),
        ("nvidia/segformer-b0-finetuned-ade-512-512", "vision", "segmenter", "encoder-only", None),
        ("clip-vit-base-patch32", "multimodal", "contrastive", "encoder-only", "medium"),
        ("openai/whisper-tiny", "audio", "speech_recognizer", "speech", "small"),
        ("facebook/wav2vec2-base", "audio", "speech_recognizer", "speech", "small"),
        ("MIT/audio-spectrogram-transformer", "audio", "audio_classifier", "speech", None),
        ("llava-hf/llava-1.5-7b-hf", "multimodal", "vision_language", "decoder-only", "large"),
        ("xclip", "video", "video_text", "encoder-only", "medium"),
        ("MCG-NJU/videomae-base", "video", "video_classifier", "encoder-only", "small"),
        ("mistralai/Mixtral-8x7B-v0.1", "text_generation", "causal_lm", "mixture-of-experts", "xlarge"),
        ("state-spaces/mamba-130m-hf", "text_generation", "causal_lm", "state-space", "medium"),
        ("stable-diffusion", "diffusion", "image_generator", "diffusion", None),
        ("stabilityai/stable-diffusion-xl-base-1.0", "diffusion", "image_generator", "diffusion", "large"),
    ],
)
def test_names(name: str, family: str, subfamily: str, structure: str, tier: str | None) -> None:
    found = classify_model(name)
    assert (found["family"], found["subfamily"], found["structure"], found["size_tier"]) == (family, subfamily, structure, tier)
    assert (found["model_name"], found["evidence"], found["confidence"]) == (name, "name", CONFIDENCE.type_in_name)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("distilroberta-base", "embedding"),  # a known architecture inside a word
        ("someone/my-distilgpt2", "text_generation"),
        ("acme/turbo-asr", "audio"),  # a purpose
        ("acme/Llama-Guard-Vision", "multimodal"),  # a purpose and an architecture
        ("acme/QuickVLM-9B", "multimodal"),
        ("acme/thing-9B", "text_generation"),  # billions of parameters
        ("acme/thing-patch16-224", "vision"),
        ("Qwen/Qwen9-7B-Chat", "text_generation"),  # a model line
    ],
)
def test_words_in_names_have_less_confidence(name: str, family: str) -> None:
    found = classify_model(name)
    assert (found["family"], found["evidence"]) == (family, "name")
    assert found["confidence"] == CONFIDENCE.words_of_name < CONFIDENCE.type_in_name


def test_an_owner_s_name_hardly_counts() -> None:
    found = classify_model("funnel-transformer/small")
    assert (found["family"], found["confidence"]) == ("embedding", CONFIDENCE.words_of_name)
    assert found["source"].startswith("'funnel' in the owner's name")
    assert classify_model("gpt2/xyzzy-asr")["family"] == "audio"


@pytest.mark.parametrize(
    "name", ["my-custom-model", "openai/xyzzy", "huggingface/autoformers", "x", "someone/final-v2", "AAAAAAAA", "123", "_hidden"]
)
def test_unknown_models(name: str) -> None:
    found = classify_model(name)
    assert (found["family"], found["subfamily"], found["structure"], found["confidence"]) == (None, None, None, 0.0)
    assert found["evidence"] == "none"
    assert found["source"] == "nothing says what it is: give its class, its tasks or its configuration"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("./mine", "is a path (hwmatrix classify --models PATH reads the configuration of a checkpoint's folder)"),
        ("/models/bert", "is a path"),
        ("~/bert", "is a path"),
        ("a/b/c", "is a path"),
        ("C:\\models\\bert", "is a path"),
        ("stable diffusion", "is not a valid model name"),
        ("bert\x00", "is not a valid model name"),
        ("bert\n", "is not a valid model name"),
        ("bèrt", "is not a valid model name"),
        ("a..b", "is not a valid model name"),
        ("-bert", "is not a valid model name"),
        ("<script>", "is not a valid model name"),
        ("a" * 300, "at most 200 letters"),
        ("💥", "is not a valid model name"),
    ],
)
def test_invalid_names(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        classify_model(name)
    (problem,) = caught.value.problems
    assert hint in str(problem)
    assert caught.value.exit_code == 2


def test_with_an_architecture_the_name_does_not_matter() -> None:
    found = classify("/models/my bert", architecture="vit")
    assert (found.family, found.model_name, found.size_tier) == (Family.VISION, "/models/my bert", None)
    with pytest.raises(ConfigError, match="is a path"):
        classify("/models/bert", model_class="BertModel")


@pytest.mark.parametrize("words", ["fill-mask", [1], ["fill-mask", None]])
def test_tasks_and_methods_are_lists_of_words(words: Any) -> None:
    with pytest.raises(ConfigError, match=r"tasks: .* is not a list of strings"):
        classify_model("bert", tasks=words)
    with pytest.raises(ConfigError, match=r"methods: .* is not a list of strings"):
        classify_model("bert", methods=words)


def test_an_unknown_task_is_mentioned_and_ignored() -> None:
    found = classify_model("x", tasks=["fill_mask", "telepathy"])
    assert found["family"] is None
    assert found["source"].endswith("; unknown task 'fill_mask' (did you mean 'fill-mask'?); unknown task 'telepathy'")


@pytest.mark.parametrize(
    ("arguments", "family", "subfamily", "evidence", "kind"),
    [
        ({"model_class": "ViTForImageClassification"}, "vision", "image_classifier", "class", "head"),
        ({"model_class": "BertForMaskedLM"}, "embedding", "masked_lm", "class", "stem"),
        ({"model_class": "BertForSequenceClassification"}, "embedding", "text_classifier", "class", "stem"),
        ({"model_class": "T5ForConditionalGeneration"}, "text_generation", "seq2seq_lm", "class", "stem"),
        ({"model_class": "Qwen2VLForConditionalGeneration"}, "multimodal", "vision_language", "class", "stem"),
        ({"model_class": "BrandNewForCausalLM"}, "text_generation", "causal_lm", "class", "usual_head"),
        ({"model_class": "BrandNewAsrModel"}, "audio", "speech_recognizer", "class", "words_of_class"),
        ({"model_class": "StableDiffusionXLPipeline"}, "diffusion", "image_generator", "class", "stem"),
        ({"model_class": "AyaVisionModel"}, "multimodal", "vision_language", "class", "stem"),
        ({"tasks": ["image-text-to-text"]}, "multimodal", "vision_language", "task", "task"),
        ({"tasks": ["automatic-speech-recognition"]}, "audio", "speech_recognizer", "task", "task"),
        ({"tasks": ["text-classification"]}, "embedding", "text_classifier", "task", "usual_task"),
        ({"methods": ["generate"]}, "text_generation", "causal_lm", "method", "method"),
        ({"methods": ["forward", "transcribe"]}, "audio", "speech_recognizer", "method", "method"),
    ],
)
def test_class_tasks_and_methods(arguments: dict[str, Any], family: str, subfamily: str, evidence: str, kind: str) -> None:
    found = classify_model("x", **arguments)
    assert (found["family"], found["subfamily"], found["evidence"]) == (family, subfamily, evidence)
    assert found["confidence"] == getattr(CONFIDENCE, kind)


def test_the_evidence_with_more_confidence_decides() -> None:
    assert said("x", "LlamaForSequenceClassification") == ("text_generation", "causal_lm")
    assert said("bert-base-uncased", methods=["generate"]) == ("embedding", "masked_lm")
    assert said("my-bert", "GPT2LMHeadModel") == ("text_generation", "causal_lm")
    assert said("my-bert", tasks=["image-classification"]) == ("vision", "image_classifier")


def test_a_specific_task_determines_the_subfamily() -> None:
    assert said("bert-base-uncased", tasks=["token-classification"]) == ("embedding", "token_classifier")
    assert said("vit-base", tasks=["object-detection"]) == ("vision", "object_detector")
    found = classify("x", architecture="bert", model_class="BertForQuestionAnswering")
    assert (found.family, found.subfamily) == (Family.EMBEDDING, "question_answerer")


def test_contradictions_lower_the_confidence_and_are_reported() -> None:
    found = classify_model("x", "ViTForImageClassification", tasks=["audio-classification"])
    assert found["family"] == "vision"
    assert found["confidence"] == 0.5  # two pieces of evidence with the same confidence
    assert found["source"] == ("the class's head ForImageClassification; contradicted by the task audio-classification, which says audio")


def test_a_configuration_that_contradicts_itself() -> None:
    found = classify("x", config={"model_type": "vit", "architectures": ["BertForMaskedLM"]})
    assert (found.family, found.evidence) == (Family.VISION, "architecture")
    assert 0.5 < found.confidence < CONFIDENCE.architecture
    assert "contradicted by the architecture bert in the class's name, which says embedding" in found.source


@pytest.mark.parametrize(
    ("architecture", "model_class", "tasks"),
    [
        ("clip", "CLIPVisionModel", ["image-classification"]),  # a part of a model
        ("bert", "BertLMHeadModel", ["text-generation"]),
        ("whisper", "WhisperForConditionalGeneration", ["text-generation"]),
        ("wav2vec2", "Wav2Vec2ForSequenceClassification", []),  # a shared head is no contradiction
    ],
)
def test_compatible_families_are_no_contradiction(architecture: str, model_class: str, tasks: list[str]) -> None:
    found = classify("x", architecture=architecture, model_class=model_class, tasks=tasks)
    assert found.confidence == CONFIDENCE.architecture
    assert "contradicted" not in found.source


@pytest.mark.parametrize("spelling", ["blip-2", "BLIP_2", "blip2"])
def test_spellings_of_architectures(spelling: str) -> None:
    found = classify("x", architecture=spelling)
    assert (found.architecture, found.family, found.confidence) == ("blip-2", Family.MULTIMODAL, CONFIDENCE.architecture)


def test_an_unlisted_architecture() -> None:
    found = classify("x", architecture="brandnew_vl")
    assert (found.family, found.evidence, found.confidence) == (Family.MULTIMODAL, "architecture", CONFIDENCE.words_of_architecture)
    assert found.architecture == "brandnew_vl"
    assert classify("x", architecture="brandnew").family is None


@pytest.mark.parametrize("arguments", [{"architecture": "autoformer"}, {"model_class": "PatchTSTForPrediction"}])
def test_models_outside_all_families(arguments: dict[str, str]) -> None:
    found = classify("x", **arguments)
    assert (found.family, found.confidence, found.evidence, found.structure) == (None, 0.0, "none", None)
    assert "is for time series" in found.source


def test_names_of_models_outside_all_families() -> None:
    found = classify_model("huggingface/autoformer-tourism-monthly")
    assert (found["family"], found["architecture"], found["confidence"]) == (None, "autoformer", 0.0)


@pytest.mark.parametrize(
    ("config", "structure"),
    [
        ({"model_type": "bert"}, Structure.ENCODER_ONLY),
        ({"model_type": "bert", "is_decoder": True}, Structure.DECODER_ONLY),
        ({"model_type": "bart", "is_encoder_decoder": True}, Structure.ENCODER_DECODER),
        ({"model_type": "whisper", "is_encoder_decoder": True}, Structure.SPEECH),
        ({"model_type": "llama", "num_local_experts": 8}, Structure.MIXTURE_OF_EXPERTS),
        ({"model_type": "llama", "num_local_experts": 1}, Structure.DECODER_ONLY),
        ({"model_type": "mixtral", "num_local_experts": 1}, Structure.DECODER_ONLY),
        ({"model_type": "llava", "text_config": {"n_routed_experts": 64}}, Structure.MIXTURE_OF_EXPERTS),
        ({"model_type": "jamba", "num_experts": 16, "mamba_d_state": 16}, Structure.MIXTURE_OF_EXPERTS),
        ({"model_type": "jamba", "num_experts": 1, "mamba_d_state": 16}, Structure.STATE_SPACE),
        ({"model_type": "brandnew", "state_size": 16}, Structure.STATE_SPACE),
        ({"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.31.0"}, Structure.DIFFUSION),
    ],
)
def test_structures_from_configurations(config: dict[str, Any], structure: Structure) -> None:
    assert classify("x", config=config).structure is structure


def test_a_configuration_of_diffusers() -> None:
    found = classify("x", config={"_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.31.0"})
    assert (found.family, found.subfamily, found.model_class) == (Family.DIFFUSION, "image_generator", "StableDiffusionPipeline")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": 7}, "config.model_type: 7 is not a string"),
        ({"architectures": "BertModel"}, "config.architectures: 'BertModel' is not a list of class names"),
        ({"architectures": [None]}, r"config.architectures: \[None\] is not a list of class names"),
    ],
)
def test_broken_configurations(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        classify("x", config=config)


def test_arguments_override_the_configuration() -> None:
    config = {"model_type": "bert", "architectures": ["BertModel"]}
    found = classify("x", config=config, architecture="vit", model_class="ViTModel")
    assert (found.architecture, found.model_class) == ("vit", "ViTModel")


@pytest.mark.parametrize(
    ("parameters", "tier"),
    [
        (0, SizeTier.TINY),
        (9_999_999, SizeTier.TINY),
        (10_000_000, SizeTier.SMALL),
        (100_000_000, SizeTier.MEDIUM),
        (999_999_999, SizeTier.MEDIUM),
        (1_000_000_000, SizeTier.LARGE),
        (10_000_000_000, SizeTier.XLARGE),
    ],
)
def test_a_known_size_comes_before_the_name(parameters: int, tier: SizeTier) -> None:
    found = classify("bert-70b", parameters=parameters)
    assert (found.parameters, found.size_tier) == (parameters, tier)
    assert "guessed" not in found.source


@pytest.mark.parametrize(
    ("name", "tier", "word"),
    [
        ("Qwen/Qwen2-7B", SizeTier.LARGE, "7B"),
        ("Qwen/Qwen3-30B-A3B-Base", SizeTier.XLARGE, "30B"),  # 3 of 30 billion are active
        ("allenai/FlexOlmo-7x7B-1T", SizeTier.XLARGE, "7x7B"),
        ("facebook/opt-350m", SizeTier.MEDIUM, "350m"),
        ("google/gemma-3n-E4B", SizeTier.LARGE, "E4B"),
        ("albert-xxlarge-v2", SizeTier.XLARGE, "xxlarge"),
        ("vit-base-patch32-384", SizeTier.SMALL, "base"),
    ],
)
def test_a_size_from_the_name_is_labeled_a_guess(name: str, tier: SizeTier, word: str) -> None:
    found = classify(name)
    assert (found.parameters, found.size_tier) == (None, tier)
    assert f"its size is only guessed from {word!r} in the name" in found.source


def test_classify_model_is_public() -> None:
    assert hwmatrix.classify_model is classify_model
    assert "classify_model" in dir(hwmatrix)


def test_every_field_is_present() -> None:
    found = classify_model("bert-base-uncased", "BertModel", ["fill-mask"], ["forward"])
    fields = {field.name for field in dataclasses.fields(classify("x"))} - {"model_class", "parameters"}
    assert found.keys() == fields


def test_the_guard_would_notice_a_process(guard: Guard) -> None:
    """Classifying starts no process and uses no network: otherwise the fixture would fail every test here."""
    with pytest.raises(RuntimeError):
        subprocess.run(["true"], check=True)  # noqa: S607
    guard.caught.clear()


@pytest.mark.parametrize(
    ("name", "tier"), [("gpt2", "medium"), ("openai-community/gpt2", "medium"), ("t5-small", "small"), ("BERT", "medium")]
)
def test_the_size_of_a_packaged_model_is_known_by_its_name(name: str, tier: str) -> None:
    assert classify_model(name)["size_tier"] == tier


def test_another_model_with_that_name_has_its_own_size() -> None:
    assert classify("gpt2", config={"model_type": "gpt2", "n_layer": 2}).size_tier is None
    assert classify("gpt2", architecture="gpt2", parameters=5).size_tier is SizeTier.TINY
    assert classify_model("gpt2-of-mine-7b")["size_tier"] == "large"
    assert classify_model("llama")["size_tier"] is None  # many models have this name
