"""Every model of matrix.yaml, really built: bundles, references, inputs, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.errors import FactoryError, RefusedError
from hwmatrix.matrix.load import load
from hwmatrix.models import bundle
from hwmatrix.models.build import build_model, load_model, parameter_count
from hwmatrix.models.canary import canary_plans
from hwmatrix.models.checkpoint import inspect, plan_for
from hwmatrix.models.diffusion.inputs import diffusion_inputs
from hwmatrix.models.families import family_of
from hwmatrix.models.inputs import make_inputs
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.records import Dtype, Family, ModelPlan, Size, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
MATRIX = load(ROOT / "matrix.yaml").spec

# What the checkpoints that the models stand for are published with, counting tied weights once.
PUBLISHED = {
    "bert": 109_514_298,
    "clip": 151_277_313,
    "gpt2": 124_439_808,
    "llama": 134_515_008,
    "llava": 7_063_427_072,
    "mamba": 129_135_360,
    "mixtral": 46_702_792_704,
    "roberta": 124_697_433,
    "stable-diffusion": 1_066_235_307,  # without its safety checker
    "stable-diffusion-unet": 859_520_964,
    "stable-diffusion-vae": 83_653_863,
    "swin": 28_288_354,
    "t5": 60_506_624,
    "videomae": 86_534_800,
    "vit": 86_567_656,
    "wav2vec2": 94_396_320,
    "whisper": 37_760_640,
    "xclip": 196_585_729,
}


def plan(name: str, size: Size = Size.TINY, **changes: Any) -> ModelPlan:
    """A model of matrix.yaml as a plan."""
    model, variant, sizes = MATRIX.models[name], MATRIX.models[name].variant(size), MATRIX.sizes[size]
    made = ModelPlan(
        name=name,
        size=size,
        family=model.family,
        architecture=model.architecture,
        model_class=model.model_class,
        hub_id=model.hub_id,
        seed=model.seed,
        config=variant.config,
        batch=variant.batch or sizes.batch,
        sequence_length=variant.sequence_length or sizes.sequence_length,
        unbuildable=variant.unbuildable,
    )
    return dataclasses.replace(made, **changes)


# Parameters that have no influence by design.
IDLE = {
    "stable-diffusion": ("vae.encoder.", "vae.quant_conv."),  # for images that are given
    "llava": ("model.vision_tower.encoder.layers.2.", "model.vision_tower.post_layernorm."),  # it reads the layer before the last
    "wav2vec2": ("wav2vec2.masked_spec_embed",),  # for training
    "whisper": ("model.encoder.embed_positions.",),  # fixed sinusoids, which take no gradient
    "xclip": tuple(f"vision_model.encoder.layers.0.message_attn.{part}_proj." for part in "qk"),  # all messages are still alike
}

BUILDABLE = sorted(name for name, model in MATRIX.models.items() if not model.tiny.unbuildable)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    import torch

    with torch.inference_mode():
        return flatten_outputs(model(**inputs, **call_options(model)))


def relative_error(outputs: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    assert outputs.keys() == expected.keys()
    return max(float((outputs[name].float() - expected[name]).norm() / expected[name].norm()) for name in expected)


@pytest.mark.parametrize("name", BUILDABLE)
def test_tiny_model_is_small_repeats_and_reveals_other_weights(name: str, cache: Path) -> None:
    built = bundle.find_or_build(plan(name), cache)
    assert bundle.find_or_build(plan(name), cache) == built
    assert built.parameters < 1_000_000
    assert {path.suffix for path in built.path.rglob("*") if path.is_file()} <= {".json", ".safetensors"}
    inputs, expected = built.load_inputs(), built.load_expected()
    assert relative_error(run(load_model(built.model_dir, built.model_class, Dtype.FLOAT32), inputs), expected) < 1e-6
    other = run(build_model(plan(name, seed=1)), inputs)
    assert relative_error(other, expected) > 0.1


@pytest.mark.parametrize("name", BUILDABLE)
def test_every_parameter_counts(name: str) -> None:
    """A parameter without influence on any output would let a target pass that ignores it."""
    import torch

    model = build_model(plan(name))
    inputs = (diffusion_inputs if MATRIX.models[name].family is Family.DIFFUSION else make_inputs)(model, plan(name))
    outputs = flatten_outputs(model(**inputs, **call_options(model)))
    generator = torch.Generator().manual_seed(0)
    total: Any = torch.stack([(tensor * torch.randn(tensor.shape, generator=generator)).sum() for tensor in outputs.values()]).sum()
    total.backward()
    idle = [key for key, parameter in model.named_parameters() if parameter.grad is None or not bool(parameter.grad.any())]
    assert [key for key in idle if not key.startswith(IDLE.get(name, ()))] == []


@pytest.mark.parametrize("name", [name for name in BUILDABLE if MATRIX.models[name].family is not Family.DIFFUSION])
def test_inputs_have_no_special_tokens(name: str, cache: Path) -> None:
    built = bundle.find_or_build(plan(name), cache)
    inputs = built.load_inputs()
    config: Any = load_model(built.model_dir, built.model_class, Dtype.FLOAT32).config
    if "input_ids" in inputs:
        ids = inputs["input_ids"] if name not in {"clip", "xclip"} else inputs["input_ids"][:, :-1]
        text = config.get_text_config()
        special = {getattr(text, f"{kind}_token_id", None) for kind in ("pad", "bos", "eos")}
        assert not special & set(ids.flatten().tolist())
        assert int(ids.max()) < text.vocab_size
        assert bool((inputs["attention_mask"] == 1).all())


def test_shapes_of_each_modality(cache: Path) -> None:
    def shapes(name: str, **changes: Any) -> dict[str, tuple[int, ...]]:
        inputs = bundle.find_or_build(plan(name, **changes), cache).load_inputs()
        return {key: tuple(tensor.shape) for key, tensor in inputs.items()}

    assert shapes("bert", batch=2, sequence_length=8) == {"input_ids": (2, 8), "attention_mask": (2, 8)}
    assert shapes("t5", batch=2) == {"input_ids": (2, 16), "attention_mask": (2, 16), "decoder_input_ids": (2, 16)}
    assert shapes("vit", batch=2) == {"pixel_values": (2, 3, 32, 32)}
    assert shapes("whisper") == {"input_features": (1, 16, 128), "decoder_input_ids": (1, 16)}
    assert shapes("wav2vec2") == {"input_values": (1, 16_000)}
    assert shapes("videomae") == {"pixel_values": (1, 4, 3, 32, 32)}
    assert shapes("clip", batch=2) == {"input_ids": (2, 16), "pixel_values": (2, 3, 32, 32), "attention_mask": (2, 16)}
    assert shapes("xclip") == {"input_ids": (3, 16), "pixel_values": (1, 4, 3, 32, 32), "attention_mask": (3, 16)}


def test_llava_sees_its_image(cache: Path) -> None:
    built = bundle.find_or_build(plan("llava"), cache)
    inputs = built.load_inputs()
    assert (inputs["input_ids"] == 255).sum() == 4
    model = load_model(built.model_dir, built.model_class, Dtype.FLOAT32)
    blind = run(model, {**inputs, "pixel_values": -inputs["pixel_values"]})
    assert relative_error(blind, built.load_expected()) > 1e-2


def test_lengths_that_do_not_suit_the_model() -> None:
    for name, length, kind in (("gpt2", 65, "sequence_too_long"), ("llava", 4, "sequence_too_short"), ("whisper", 65, "sequence_too_long")):
        wrong = plan(name, sequence_length=length)
        with pytest.raises(FactoryError, match="sequence_length") as caught:
            make_inputs(build_model(wrong), wrong)
        assert caught.value.error_type == kind


def test_inputs_that_cannot_be_made_up_are_named() -> None:
    wrong = plan("videomae", model_class="VideoMAEForPreTraining")
    with pytest.raises(FactoryError, match="bool_masked_pos") as caught:
        make_inputs(build_model(wrong), wrong)
    assert caught.value.error_type == "no_inputs"


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_full_model_has_the_published_parameters(name: str) -> None:
    count = parameter_count(plan(name, Size.FULL))
    assert count == PUBLISHED[name]
    reason = MATRIX.models[name].full.unbuildable
    if reason:
        assert f"{count:,} parameters" in reason
        assert f"{4 * count / 1e9:.1f} GB in float32" in reason


def test_full_models_are_all_checked() -> None:
    assert PUBLISHED.keys() == set(BUILDABLE)


@pytest.mark.parametrize(
    ("changes", "kind", "hint"),
    [
        ({"config": {"position_buckets": 32}}, "unknown_config_key", "config: BertConfig has no 'position_buckets'"),
        ({"config": {"hiden_size": 32}}, "unknown_config_key", "config: BertConfig has no 'hiden_size': did you mean 'hidden_size'"),
        ({"config": {"hidden_size": "wide"}}, "bad_config", "BertConfig"),
        ({"config": {"hidden_size": 33}}, "build_failed", "BertForMaskedLM"),
        ({"architecture": "bertt"}, "unknown_architecture", "did you mean 'bert'"),
        ({"model_class": "BertForMaskedLm"}, "unknown_class", "did you mean 'BertForMaskedLM'"),
        ({"model_class": "BertTokenizer"}, "unknown_class", "BertTokenizer"),
        ({"unbuildable": "too large to try"}, "unbuildable", "too large to try"),
        ({"weights": "hub"}, "weights_not_fetched", "hub"),
        ({"config": {"vocab_size": 10**12}}, "too_large", "GB are free"),
    ],
)
def test_what_cannot_be_built_says_why(changes: dict[str, Any], kind: str, hint: str) -> None:
    with pytest.raises(FactoryError, match=hint) as caught:
        build_model(plan("bert", **changes))
    assert caught.value.error_type == kind


def test_a_class_whose_packages_are_not_installed_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers has a class without contents in its place, which also lists the packages that are there."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(transformers, "QuuxModel", type("QuuxModel", (), {"_backends": ["torch", "not_installed"]}), raising=False)
    with pytest.raises(FactoryError, match=r"^QuuxModel needs packages that are not installed: not_installed$") as caught:
        build_model(plan("bert", model_class="QuuxModel"))
    assert caught.value.error_type == "missing_package"


def test_unknown_key_of_a_nested_config() -> None:
    config = {"vision_config": {"model_type": "clip_vision_model", "imagesize": 28}}
    with pytest.raises(FactoryError, match=r"config\.vision_config: .* did you mean 'image_size'"):
        build_model(plan("llava", config=config))


def test_the_wrong_canary_is_wrong_and_the_good_one_is_not(cache: Path) -> None:
    errors = []
    for canary in canary_plans():
        built = bundle.find_or_build(canary, cache)
        model = load_model(built.model_dir, built.model_class, Dtype.FLOAT32)
        errors.append(relative_error(run(model, built.load_inputs()), built.load_expected()))
    assert errors[0] < 1e-6
    assert errors[1] > 0.5


def test_a_reference_that_is_not_finite_is_not_used(cache: Path) -> None:
    wild = plan("bert", config={**MATRIX.models["bert"].tiny.config, "initializer_range": 1e30})
    with pytest.raises(FactoryError, match="logits") as caught:
        bundle.find_or_build(wild, cache)
    assert caught.value.error_type == "reference_not_finite"
    assert not (cache / bundle.bundle_key(wild)).exists()


def test_a_reference_that_never_runs_twice_alike_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    forward = transformers.BertForMaskedLM.forward

    def noisy(self: Any, *args: Any, **options: Any) -> Any:
        output = forward(self, *args, **options)
        output.logits = output.logits + output.logits.clone().normal_()
        return output

    noisy.__signature__ = signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(transformers.BertForMaskedLM, "forward", noisy)
    with pytest.raises(FactoryError, match="logits") as caught:
        bundle.find_or_build(dataclasses.replace(plan("bert"), seed=4711), cache)  # one that no other test has built
    assert caught.value.error_type == "reference_not_repeatable"


def test_a_checkpoint_folder_becomes_the_same_bundle_wherever_it_lies(cache: Path, tmp_path: Path) -> None:
    digests = set()
    for place in ("a", "b"):
        build_model(plan("gpt2")).save_pretrained(tmp_path / place)  # type: ignore[operator]
        mine = plan_for("mine", tmp_path / place, Size.TINY, 1, 16)
        assert mine.model_class == "GPT2LMHeadModel"
        digests.add(bundle.find_or_build(mine, cache / place).digest)
    assert len(digests) == 1


def test_a_checkpoint_without_its_head_is_refused(tmp_path: Path) -> None:
    build_model(plan("bert", model_class="BertModel")).save_pretrained(tmp_path)  # type: ignore[operator]
    with pytest.raises(FactoryError, match="lacks") as caught:
        build_model(plan("bert", weights=str(tmp_path), model_class="BertForSequenceClassification"))
    assert caught.value.error_type == "weights_incomplete"


def test_weights_that_are_no_safetensors_are_an_error_of_ours(tmp_path: Path) -> None:
    build_model(plan("bert")).save_pretrained(tmp_path)  # type: ignore[operator]
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(FactoryError) as caught:
        build_model(plan("bert", weights=str(tmp_path)))
    assert caught.value.error_type == "weights_broken"


def test_remote_code_is_judged_by_what_transformers_has(tmp_path: Path) -> None:
    build_model(plan("bert")).save_pretrained(tmp_path)  # type: ignore[operator]
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoConfig": "custom.Custom", "AutoModelForMaskedLM": "custom.CustomModel"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "custom.py").write_text("raise SystemExit('remote code ran')\n", encoding="utf-8")
    assert inspect(tmp_path).model_class == "BertForMaskedLM"
    assert build_model(plan("bert", weights=str(tmp_path))) is not None
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "custom"}), encoding="utf-8")
    with pytest.raises(RefusedError):
        build_model(plan("bert", weights=str(tmp_path)))


def test_families_are_the_same_with_transformers_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = [family_of(model.architecture, model.model_class) for model in MATRIX.models.values()]
    for module in ("transformers", "transformers.models.auto.modeling_auto"):
        monkeypatch.setitem(sys.modules, module, None)
    assert [family_of(model.architecture, model.model_class) for model in MATRIX.models.values()] == verdicts


BUILD = """
import sys
from pathlib import Path
from hwmatrix.models.bundle import find_or_build
from hwmatrix.records import ModelPlan, from_json
print(find_or_build(from_json(ModelPlan, sys.argv[1], where="argument"), Path(sys.argv[2])).digest)
"""


def test_two_processes_at_once_end_with_one_valid_bundle(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, to_json(plan("bert")), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "harness")}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    digests = {process.communicate(timeout=120)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    found = bundle.verify(tmp_path / bundle.bundle_key(plan("bert")))
    assert digests == {found.digest}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".locks", found.key]


def test_another_process_builds_the_same_bytes(tmp_path: Path, cache: Path) -> None:
    command = [sys.executable, "-c", BUILD, to_json(plan("whisper")), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "harness")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=120)
    assert done.stdout.strip() == bundle.find_or_build(plan("whisper"), cache).digest
