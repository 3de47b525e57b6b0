"""Sizes from the meta device: weights, activations, outputs, against models that really are in memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from hwmatrix.errors import FactoryError, RefusedError
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.models import sizes
from hwmatrix.models.build import build_model, load_model, parameter_count
from hwmatrix.models.diffusion.inputs import diffusion_inputs
from hwmatrix.models.inputs import make_inputs
from hwmatrix.models.listed_sizes import listed_sizes
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.models.sizes import FORMULA, FORWARD, SIZES_DIR, model_size
from hwmatrix.records import Dtype, Family, ModelPlan, Size

if TYPE_CHECKING:
    from hwmatrix.models.sizes import ModelSize

pytestmark = pytest.mark.torch

SPEC = load(Path(__file__).parents[2] / "matrix.yaml").spec
BUILDABLE = list(SPEC.models)


def tiny(name: str, **changes: Any) -> ModelPlan:
    return dataclasses.replace(model_plan(name, SPEC, Size.TINY), **changes)


@pytest.mark.parametrize("name", BUILDABLE)
def test_weights_and_outputs_are_those_of_the_model_itself(name: str) -> None:
    import torch

    plan = tiny(name)
    size = model_size(plan)
    model = build_model(plan)
    assert size.parameters == parameter_count(plan) == sum(parameter.numel() for parameter in model.parameters())
    assert size.stored_bytes >= 4 * size.parameters
    with torch.inference_mode():
        inputs = diffusion_inputs(model, plan) if plan.family is Family.DIFFUSION else make_inputs(model, plan)
        outputs = flatten_outputs(model(**inputs, **call_options(model)))
    told = [tensor.numel() * (4 if tensor.is_floating_point() else tensor.element_size()) for tensor in outputs.values()]
    assert (size.output_bytes, size.largest_output_bytes) == (sum(told), max(told))
    assert size.method == FORWARD


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "t5", "whisper", "wav2vec2", "clip", "videomae"])
def test_activations_are_those_of_a_real_forward_pass(name: str, tmp_path: Path) -> None:
    """The same count over tensors that have storage, in the model as targets load it, agrees to a fifth."""
    plan = tiny(name, batch=4)
    build_model(plan).save_pretrained(tmp_path)  # type: ignore[operator]
    model = load_model(tmp_path, plan.model_class, Dtype.FLOAT32, attention=None)
    inputs = make_inputs(model, plan)
    really, _ = sizes._forward(model, inputs, known=[*model.parameters(), *model.buffers(), *inputs.values()])
    assert model_size(plan).activation_bytes == pytest.approx(really, rel=0.2)


def test_activations_grow_with_the_batch_and_with_the_length() -> None:
    one, four, long = (model_size(tiny("bert", **change)).activation_bytes for change in ({}, {"batch": 4}, {"sequence_length": 64}))
    assert four == pytest.approx(4 * one, rel=0.05)
    assert long >= 4 * one * 0.95


def test_tied_weights_count_once() -> None:
    tied, untied = model_size(tiny("gpt2")), model_size(tiny("gpt2", config=tiny("gpt2").config | {"tie_word_embeddings": False}))
    assert tied.weight_bytes == pytest.approx(4 * tied.parameters, rel=0.05)
    assert tied.tied_bytes == 4 * 256 * 32  # the head's matrix is that of the embedding
    assert untied.tied_bytes == 0
    assert untied.stored_bytes == tied.stored_bytes + tied.tied_bytes


@pytest.mark.parametrize(("dtype", "share"), [(Dtype.BFLOAT16, 2), (Dtype.FLOAT16, 2), (Dtype.A16W8, 4), (Dtype.A8W8, 4)])
def test_other_precisions_take_less(dtype: Dtype, share: int) -> None:
    full, less = model_size(tiny("vit")), model_size(tiny("vit"), dtype)
    assert less.weight_bytes == pytest.approx(full.weight_bytes / share, rel=0.02)
    assert less.activation_bytes < 0.6 * full.activation_bytes
    assert (less.stored_bytes, less.output_bytes) == (full.stored_bytes, full.output_bytes)


def test_types_add_up() -> None:
    size = model_size(tiny("bert"), Dtype.BFLOAT16)
    assert set(size.dtypes) == {"bfloat16", "int64"}
    assert sum(size.dtypes.values()) == size.weight_bytes


def test_a_model_of_180_gb_takes_no_memory() -> None:
    plan = model_plan("mixtral", SPEC, Size.FULL)
    before = psutil.Process().memory_info().rss
    size = model_size(plan)
    assert size.weight_bytes > 180 * 10**9
    assert psutil.Process().memory_info().rss - before < 2 * 10**9


def switch() -> ModelPlan:
    """Its experts are asked for by name, which depends on values."""
    return ModelPlan(
        name="switch",
        size=Size.TINY,
        family=Family.TEXT_GENERATION,
        architecture="switch_transformers",
        model_class="SwitchTransformersForConditionalGeneration",
        config={"vocab_size": 256, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "num_experts": 2},
    )


def test_where_a_forward_pass_needs_values_a_formula_takes_its_place_and_says_so() -> None:
    size = model_size(switch())
    assert size.method == FORMULA
    assert "the forward pass needs values" in size.note
    assert size.activation_bytes > 0
    assert size.output_bytes == 4 * 16 * 256
    assert model_size(dataclasses.replace(switch(), batch=4)).activation_bytes == 4 * size.activation_bytes


def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[ModelPlan]:
    built: list[ModelPlan] = []
    measured = sizes._measured

    def counting(plan: ModelPlan, dtype: Dtype) -> ModelSize:
        built.append(plan)
        return measured(plan, dtype)

    monkeypatch.setattr(sizes, "_measured", counting)
    sizes._cached_size.cache_clear()
    return built


def test_a_size_is_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = count_builds(monkeypatch)
    first = model_size(tiny("bert"), cache=tmp_path)
    sizes._cached_size.cache_clear()
    assert model_size(dataclasses.replace(tiny("bert"), name="other"), cache=tmp_path) == first
    assert len(built) == 1
    model_size(tiny("bert", batch=2), cache=tmp_path)
    model_size(tiny("bert"), Dtype.BFLOAT16, cache=tmp_path)
    assert len(built) == 3
    assert len(list((tmp_path / SIZES_DIR).iterdir())) == 3


@pytest.mark.parametrize("content", [b"", b"{", b'{"parameters": 1}', b"\xff\xfe"])
def test_a_damaged_size_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    first = model_size(tiny("bert"), cache=tmp_path)
    (file,) = (tmp_path / SIZES_DIR).iterdir()
    file.write_bytes(content)
    built = count_builds(monkeypatch)
    assert model_size(tiny("bert"), cache=tmp_path) == first
    assert len(built) == 1
    assert model_size(tiny("bert"), cache=tmp_path) == first
    assert len(built) == 1


def test_without_a_cache_a_size_is_computed_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    built = count_builds(monkeypatch)
    assert model_size(tiny("vit")) == model_size(tiny("vit"))
    assert len(built) == 1


def test_a_folder_that_changed_is_another_model(tmp_path: Path) -> None:
    plans = {hidden: tiny("bert", config=tiny("bert").config | {"intermediate_size": hidden}) for hidden in (64, 128)}
    found = []
    for plan in plans.values():
        build_model(plan).save_pretrained(tmp_path)  # type: ignore[operator]
        found.append(model_size(tiny("bert", weights=str(tmp_path), config={})).parameters)
    assert found[0] < found[1]


def test_models_warn_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    sizes._cached_size.cache_clear()
    model_size(tiny("mamba"))
    assert capfd.readouterr().err == ""


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / SIZES_DIR).write_text("a file in the place of the folder")
    assert model_size(tiny("bert"), cache=tmp_path).parameters > 0


def test_a_checkpoint_is_as_large_as_its_files(tmp_path: Path) -> None:
    import torch

    model = build_model(tiny("bert")).to(torch.bfloat16)
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    size = model_size(tiny("bert", weights=str(tmp_path), config={}))
    assert size.stored_bytes == (tmp_path / "model.safetensors").stat().st_size
    assert size.stored_dtype == "bfloat16"
    assert size.weight_bytes > 1.9 * size.stored_bytes - 10_000
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("changes", "error_type"),
    [
        ({"weights": "hub"}, "weights_not_fetched"),
        ({"model_class": "BertForNothing"}, "unknown_class"),
        ({"architecture": "no-such"}, "unknown_architecture"),
        ({"config": {"hidden_sizes": 3}}, "unknown_config_key"),
        ({"sequence_length": 100_000}, "sequence_too_long"),
        ({"config": {"hidden_size": 30, "num_attention_heads": 4}}, "build_failed"),
        ({"weights": "/nowhere"}, "no_checkpoint"),
    ],
)
def test_what_cannot_be_built_says_why(changes: dict[str, Any], error_type: str) -> None:
    with pytest.raises(FactoryError) as caught:
        model_size(tiny("bert", **changes))
    assert caught.value.error_type == error_type


def test_a_checkpoint_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "x", "architectures": ["X"], "auto_map": {"AutoConfig": "x.X"}}')
    with pytest.raises(RefusedError):
        model_size(tiny("bert", weights=str(tmp_path)))


@pytest.mark.parametrize("listed", listed_sizes(), ids=lambda listed: listed.model)
def test_the_table_for_hosts_without_torch_is_what_is_computed(listed: Any) -> None:
    plan = model_plan(listed.model, SPEC, Size.FULL)
    assert (listed.architecture, listed.model_class, listed.config) == (plan.architecture, plan.model_class, plan.config)
    first = listed.passes[0]
    size = model_size(dataclasses.replace(plan, batch=1, sequence_length=first.sequence_length))
    assert (listed.parameters, listed.stored_bytes, listed.tied_bytes) == (size.parameters, size.stored_bytes, size.tied_bytes)
    told = (first.input_bytes, first.activation_bytes, first.output_bytes, first.largest_output_bytes)
    assert told == (size.input_bytes, size.activation_bytes, size.output_bytes, size.largest_output_bytes)


def test_the_table_has_every_model_of_transformers() -> None:
    of_diffusers = {name for name, model in SPEC.models.items() if model.family is Family.DIFFUSION}
    assert [listed.model for listed in listed_sizes()] == [name for name in BUILDABLE if name not in of_diffusers]
