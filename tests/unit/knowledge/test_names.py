"""The models that names mean: from matrix.yaml, a folder, the hub's cache, without any network."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from hwmatrix.errors import ConfigError
from hwmatrix.knowledge.names import look_up
from hwmatrix.matrix.load import load
from hwmatrix.models.classify import classify
from hwmatrix.records import Family, ModelPlan, Size

ROOT = Path(__file__).parents[3]
SPEC = load(ROOT / "matrix.yaml").spec
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "max_position_embeddings": 64}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


EMPTY = (8).to_bytes(8, "little") + b"{}      "
"""A safetensors file without tensors."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder and an empty hub cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "own"))
    return tmp_path


def checkpoint(folder: Path, config: dict[str, Any] = BERT, weights: str | None = "model.safetensors") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if weights:
        (folder / weights).write_bytes(EMPTY)
    return folder


def cached(cache: Path, hub_id: str, config: dict[str, Any] = BERT, weights: str | None = "model.safetensors") -> Path:
    """A snapshot as the hub's client stores it."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    return checkpoint(repository / "snapshots" / COMMIT, config, weights)


def found(name: str, **options: Any) -> ModelPlan:
    plan = look_up(name, spec=SPEC, **options)
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("bert", "bert"),
        ("BERT", "bert"),
        ("google-bert/bert-base-uncased", "bert"),
        ("Google-BERT/Bert-Base-Uncased", "bert"),
        ("bert-base-uncased", "bert"),
        ("bert_base_uncased", "bert"),
        ("roberta", "roberta"),
        ("gpt2", "gpt2"),
        ("t5-small", "t5"),
        ("vit-base-patch16-224", "vit"),
        ("swin", "swin"),
        ("clip-vit-base-patch32", "clip"),
        ("whisper", "whisper"),
        ("whisper-tiny", "whisper"),
        ("facebook/wav2vec2-base", "wav2vec2"),
        ("wav2vec2-base", "wav2vec2"),
        ("llava-hf/llava-1.5-7b-hf", "llava"),
        ("xclip", "xclip"),
        ("mixtral", "mixtral"),
        ("mamba", "mamba"),
        ("stable-diffusion", "stable-diffusion"),
        ("stable_diffusion", "stable-diffusion"),
        ("google-bert/bert", "bert"),
    ],
)
def test_entries_of_matrix_yaml(name: str, entry: str) -> None:
    plan = found(name)
    assert (plan.name, plan.selector, plan.size) == (entry, entry, Size.FULL)
    assert (plan.family, plan.architecture) == (SPEC.models[entry].family, SPEC.models[entry].architecture)


def test_sizes() -> None:
    tiny, full = found("bert", size=Size.TINY), found("bert")
    assert (tiny.sequence_length, full.sequence_length) == (16, 128)
    assert tiny.config["hidden_size"] == 32
    assert full.config == {}


@pytest.mark.parametrize("name", ["bert-large-uncased", "someone/bert-base-uncased", "google-ber/bert", "someone/mine", "be", "no-such"])
def test_an_unknown_name(name: str) -> None:
    assert look_up(name, spec=SPEC) is None


def test_an_abbreviation_must_match_exactly_one_entry(here: Path) -> None:
    assert found("facebook/wav2vec2-base").name == "wav2vec2"
    text = (ROOT / "matrix.yaml").read_text(encoding="utf-8")
    (here / "twice.yaml").write_text(text.replace("openai/whisper-tiny", "facebook/wav2vec2-base-100h"), encoding="utf-8")
    assert look_up("facebook/wav2vec2-base", spec=load(here / "twice.yaml").spec) is None


def test_the_matrix_yaml_of_the_working_folder(here: Path) -> None:
    assert look_up("bert") is None
    (here / "matrix.yaml").write_text((ROOT / "matrix.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    assert look_up("bert") == found("bert")
    (here / "matrix.yaml").write_text("version: 7\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="version"):
        look_up("bert")


@pytest.mark.parametrize("spelling", ["./mine", "mine", "{here}/mine", "./sub/../mine"])
def test_a_folder(here: Path, spelling: str) -> None:
    checkpoint(here / "mine")
    (here / "sub").mkdir()
    plan = found(spelling.format(here=here))
    assert (plan.name, plan.family, plan.model_class, plan.hub_id) == ("mine", Family.EMBEDDING, "BertForMaskedLM", None)
    assert plan.weights == str(here / "mine")
    assert Path(plan.selector).resolve() == here / "mine"
    assert plan.sequence_length == 64  # reduced to the model's positions


def test_a_folder_without_matrix_yaml(here: Path) -> None:
    checkpoint(here / "mine")
    for size, length in ((Size.TINY, 16), (Size.FULL, 64)):
        plan = look_up("./mine", size=size)
        assert plan is not None
        assert (plan.batch, plan.sequence_length) == (1, length)


def test_a_listed_name_is_not_a_folder(here: Path) -> None:
    checkpoint(here / "whisper")
    assert found("whisper").weights == "recipe"
    assert found("./whisper").architecture == "bert"


def test_a_folder_is_not_an_abbreviation(here: Path) -> None:
    checkpoint(here / "wav2vec2-base")
    assert found("wav2vec2-base").architecture == "bert"


def test_a_folder_s_name_becomes_a_valid_model_name(here: Path) -> None:
    checkpoint(here / "my model (2)")
    plan = found("my model (2)")
    assert plan.name == "my-model-2"
    assert classify(plan.name, architecture=plan.architecture).family is Family.EMBEDDING


@pytest.mark.parametrize(
    ("config", "weights", "reason"),
    [
        ({"model_type": "evil", "architectures": ["Evil"], "auto_map": {"AutoConfig": "x.Y"}}, "model.safetensors", "remote_code_refused"),
        (BERT, "pytorch_model.bin", "pickle_refused"),
        (BERT, None, "no_weights"),
        ({"model_type": "bert"}, "model.safetensors", "config_incomplete"),
        ({"model_type": "xyzzy", "architectures": ["Xyzzy"]}, "model.safetensors", "family_unknown"),
    ],
)
def test_a_folder_that_cannot_be_used(here: Path, config: dict[str, Any], weights: str | None, reason: str) -> None:
    checkpoint(here / "mine", config, weights)
    with pytest.raises(ConfigError) as caught:
        look_up("./mine", spec=SPEC)
    (problem,) = caught.value.problems
    assert (problem.where, problem.hint) == ("./mine", reason)


@pytest.mark.parametrize("name", ["./nothing", "/no/such/folder", "~/nothing-here-at-all"])
def test_a_path_that_does_not_exist(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a folder: name a checkpoint's folder"):
        look_up(name, spec=SPEC)


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "bert\x00", "x" * 5000, "C:\\bert"])
def test_invalid_model_names(name: str) -> None:
    with pytest.raises(ConfigError, match="the model's name"):
        look_up(name, spec=SPEC)


@pytest.mark.parametrize("own", [False, True])
def test_a_checkpoint_of_the_cache(here: Path, *, own: bool) -> None:
    folder = cached(here / ("own" if own else "cache"), "someone/mine")
    plan = found("someone/mine", cache=here / "cache")
    assert (plan.name, plan.selector, plan.hub_id, plan.revision) == ("someone/mine", "someone/mine", "someone/mine", COMMIT)
    assert (plan.weights, plan.architecture, plan.family) == (str(folder), "bert", Family.EMBEDDING)
    assert look_up("someone/other", spec=SPEC, cache=here / "cache") is None


def test_a_cached_checkpoint_comes_before_an_abbreviation(here: Path) -> None:
    config = {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForPreTraining"]}
    cached(here / "own", "facebook/wav2vec2-base", config)
    assert found("facebook/wav2vec2-base").model_class == "Wav2Vec2ForPreTraining"


@pytest.mark.parametrize("weights", [None, "pytorch_model.bin"])
def test_a_cached_configuration_alone_identifies_the_model(here: Path, weights: str | None) -> None:
    cached(here / "cache", "someone/mine", weights=weights)
    plan = found("someone/mine", cache=here / "cache")
    assert (plan.weights, plan.architecture, plan.hub_id, plan.revision) == ("hub", "bert", "someone/mine", COMMIT)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "evil", "architectures": ["Evil"], "auto_map": {"AutoConfig": "x.Y"}},
        {"model_type": "bert"},
        {"model_type": "xyzzy", "architectures": ["Xyzzy"]},
    ],
)
def test_an_unusable_cached_checkpoint_counts_as_an_unknown_name(
    here: Path, config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    cached(here / "cache", "someone/mine", config)
    with caplog.at_level(logging.WARNING):
        assert look_up("someone/mine", spec=SPEC, cache=here / "cache") is None
    assert "someone/mine is in the hub's cache but cannot be used, so only its name is known" in caplog.text


def test_without_the_hub_s_client(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(here / "cache", "someone/mine")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert look_up("someone/mine", spec=SPEC, cache=here / "cache") is None
    assert found("bert").name == "bert"
