"""Models of diffusers: every recipe, the pipeline against diffusers' own, and what is refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hwmatrix.app.type_models import TypeModels
from hwmatrix.errors import FactoryError
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.models import bundle
from hwmatrix.models.build import build_diffusion, build_model, load_model
from hwmatrix.models.diffusion.inputs import diffusion_inputs
from hwmatrix.models.diffusion.recipes import recipes
from hwmatrix.models.diffusion.steps import schedule
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.records import Dtype, Family, ModelPlan, Size

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # warnings of the models' own code

SPEC = load(Path(__file__).parents[2] / "matrix.yaml").spec
TYPES = TypeModels.beside(SPEC)


def planned(name: str, **config: Any) -> ModelPlan:
    """The tiny model of matrix.yaml with other values in its config; None takes a key out."""
    plan = model_plan(name, SPEC, Size.TINY)
    changed = {key: value for key, value in {**plan.config, **config}.items() if value is not None}
    return dataclasses.replace(plan, config=changed)


def recipe_plan(name: str) -> ModelPlan:
    plan = TYPES.named(name, Size.TINY)
    assert plan is not None
    return plan


@pytest.mark.parametrize("name", sorted(recipes()))
def test_every_recipe_is_saved_loaded_and_run_with_the_same_numbers(name: str, tmp_path: Path) -> None:
    """And every input with numbers changes an output, so that no target could ignore it."""
    import torch

    plan = recipe_plan(name)
    model = build_diffusion(plan, recipes()[name].config)
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    assert list(tmp_path.glob("*.bin")) == []
    loaded, inputs = load_model(tmp_path, plan.model_class, Dtype.FLOAT32), diffusion_inputs(model, plan)
    call = {**recipes()[name].call, **call_options(model)}
    with torch.inference_mode():
        before, after = flatten_outputs(model(**inputs, **call)), flatten_outputs(loaded(**inputs, **call_options(loaded)))
        assert before.keys() == after.keys() != set()
        assert all(torch.equal(before[output], after[output]) for output in before)
        assert all(bool(tensor.isfinite().all()) for tensor in after.values())
        for given, tensor in inputs.items():
            if tensor.is_floating_point() and not given.endswith("_ids") and given not in {"crop_coords", "original_size", "target_size"}:
                other = flatten_outputs(loaded(**{**inputs, given: tensor.flip(-1) * 0.5 + 0.3}, **call_options(loaded)))
                assert any(not torch.equal(other[output], after[output]) for output in after), given
    assert sum(parameter.numel() for parameter in model.parameters()) < 2_000_000


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("scheduler", "steps"), [(None, 3), ({"class": "EulerDiscreteScheduler"}, 4), ({"class": "DDIMScheduler"}, 1)])
def test_the_pipeline_gives_the_image_of_diffusers_own(scheduler: dict[str, Any] | None, steps: int, batch: int) -> None:
    import diffusers
    import torch

    plan = dataclasses.replace(planned("stable-diffusion", **({"scheduler": scheduler} if scheduler else {}), steps=steps), batch=batch)
    model: Any = build_model(plan)
    inputs = diffusion_inputs(model, plan)
    described = dict(plan.config["scheduler"])
    own = diffusers.StableDiffusionPipeline(
        vae=model.vae,
        text_encoder=model.text_encoder,
        tokenizer=None,
        unet=model.unet,
        scheduler=getattr(diffusers, described.pop("class"))(**described),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    own.set_progress_bar_config(disable=True)
    with torch.inference_mode():
        image = model(**inputs)["image"]
        expected = own(
            prompt_embeds=model.text_encoder(inputs["input_ids"]).last_hidden_state,
            negative_prompt_embeds=model.text_encoder(inputs["negative_input_ids"]).last_hidden_state,
            latents=inputs["latents"],
            num_inference_steps=steps,
            guidance_scale=plan.config["guidance_scale"],
            output_type="pt",
        ).images
    assert image.shape == expected.shape == (batch, 3, 16, 16)
    assert float((image - expected).norm() / expected.norm()) < 1e-5
    assert float(image.std()) > 0.05, "not a plain image"


def test_every_input_of_the_pipeline_changes_its_image() -> None:
    import torch

    plan = planned("stable-diffusion")
    model = build_model(plan)
    inputs = diffusion_inputs(model, plan)
    with torch.inference_mode():
        before = model(**inputs)["image"]
        for name, tensor in inputs.items():
            other = -tensor if tensor.is_floating_point() else tensor.where(tensor > 200, 255 - tensor - 60)
            if not torch.equal(other, tensor):
                assert not torch.allclose(model(**{**inputs, name: other})["image"], before), name


@pytest.mark.parametrize(
    ("config", "error_type", "message"),
    [
        ({"scheduler": None}, "bad_config", r"lacks scheduler: add scheduler: \{class: DDIMScheduler\}"),
        ({"unet": None, "vae": None}, "bad_config", r"lacks unet, vae: add unet"),
        ({"safety_checker": {}}, "unknown_config_key", r"without a safety checker.*remove safety_checker"),
        ({"shceduler": {}}, "unknown_config_key", r"did you mean 'scheduler'\?"),
        ({"scheduler": {"class": "DDIMSchedulr"}}, "unknown_class", r"no scheduler 'DDIMSchedulr': did you mean 'DDIMScheduler'\?"),
        ({"scheduler": {"class": "UNet2DModel"}}, "unknown_class", r"no scheduler 'UNet2DModel'"),
        ({"scheduler": {}}, "unknown_class", r"name one, such as class: DDIMScheduler"),
        ({"scheduler": {"class": "DDIMScheduler", "beta_strt": 1}}, "unknown_config_key", r"did you mean 'beta_start'\?"),
        ({"unet": {"layers_per_blok": 1}}, "unknown_config_key", r"config.unet: .*did you mean 'layers_per_block'\?"),
        ({"text_encoder": {"hidden_sizes": 1}}, "unknown_config_key", r"config.text_encoder: .*did you mean 'hidden_size'\?"),
        ({"steps": 0}, "bad_config", r"config.steps: 0 is not a number of steps"),
    ],
)
def test_a_wrong_pipeline_is_refused_with_advice(config: dict[str, Any], error_type: str, message: str) -> None:
    with pytest.raises(FactoryError, match=message) as caught:
        build_model(planned("stable-diffusion", **config))
    assert caught.value.error_type == error_type


@pytest.mark.parametrize(
    "name",
    [
        "DDPMScheduler",
        "PNDMScheduler",
        "DPMSolverMultistepScheduler",
        "EulerAncestralDiscreteScheduler",
        "HeunDiscreteScheduler",
        "LMSDiscreteScheduler",
    ],
)
def test_schedulers_whose_steps_are_not_linear_are_refused(name: str) -> None:
    with pytest.raises(FactoryError, match=r"is not linear.*use DDIMScheduler or EulerDiscreteScheduler$"):
        schedule({"class": name}, 4)


def test_a_class_or_argument_that_diffusers_lacks_is_refused_with_a_suggestion() -> None:
    plan = planned("stable-diffusion-unet")
    with pytest.raises(FactoryError, match=r"has no model class 'UNet2DConditionModl': did you mean 'UNet2DConditionModel'\?"):
        build_model(dataclasses.replace(plan, model_class="UNet2DConditionModl"))
    with pytest.raises(FactoryError, match=r"has no model class 'BertModel'"):
        build_model(dataclasses.replace(plan, model_class="BertModel"))
    with pytest.raises(FactoryError, match=r"has no 'norm_num_group': did you mean 'norm_num_groups'\?"):
        build_model(planned("stable-diffusion-unet", norm_num_group=8))
    with pytest.raises(FactoryError, match="UNet2DConditionModel cannot be built: ValueError"):
        build_model(planned("stable-diffusion-unet", norm_num_groups=7))


def test_inputs_that_no_rule_makes_are_named() -> None:
    config = {"sample_size": 8, "hidden_size": 64, "num_layers": 1, "num_attention_heads": 4, "num_kv_heads": 4, "cross_attention_dim": 32}
    plan = dataclasses.replace(planned("stable-diffusion-unet"), model_class="LuminaNextDiT2DModel", config=config)
    with pytest.raises(
        FactoryError, match="LuminaNextDiT2DModel needs inputs that hwmatrix cannot generate: encoder_mask, image_rotary_emb"
    ):
        diffusion_inputs(build_model(plan), plan)


def test_bundles_hold_what_targets_need(tmp_path: Path) -> None:
    for plan in (planned("stable-diffusion"), recipe_plan("ltx_video")):
        made = bundle.find_or_build(plan, tmp_path)
        assert made.model_class == plan.model_class
        assert made.floor(Dtype.FLOAT32).outputs is not None
        assert bundle.is_of(made, plan)
        assert bundle.find_or_build(plan, tmp_path) == made
    assert bundle.find_or_build(planned("stable-diffusion"), tmp_path).kinds == ["text"]


def test_diffusers_is_imported_for_its_own_models_only() -> None:
    code = (
        "import sys; from hwmatrix.models import bundle, reference; from hwmatrix.targets.torch.device import preload_torch;"
        "preload_torch(['BertForMaskedLM']); before = 'diffusers' in sys.modules;"
        "preload_torch(['BertForMaskedLM', 'StableDiffusionPipeline', 'NoSuchModel']);"
        "print(before, 'diffusers.models.unets.unet_2d_condition' in sys.modules, {'torchvision', 'accelerate'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["False", "True", "set()"]


def test_a_model_that_was_first_built_without_storage_computes_afterwards() -> None:
    """A module that is first imported on the meta device, as when a size is counted, must not make its own tensors there."""
    code = (
        "import torch; from pathlib import Path; from hwmatrix.app.type_models import TypeModels; from hwmatrix.matrix.load import load;"
        "from hwmatrix.models.build import build_diffusion; from hwmatrix.models.diffusion.inputs import diffusion_inputs;"
        "from hwmatrix.models.diffusion.recipes import recipes; from hwmatrix.records import Size;"
        "name = 'autoencoder_kl_cosmos'; config = recipes()[name].config;"
        "plan = TypeModels.beside(load(Path('matrix.yaml')).spec).named(name, Size.TINY)\n"
        "with torch.device('meta'): build_diffusion(plan, config, perturb=False)\n"
        "model = build_diffusion(plan, config); output = model(**diffusion_inputs(model, plan))[0];"
        "print({buffer.device.type for buffer in model.buffers()}, output.isfinite().all().item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["{'cpu'}", "True"]


def test_a_recipe_has_the_family_that_its_architecture_says() -> None:
    from hwmatrix.models.families import family_of

    wrong = [name for name, recipe in recipes().items() if family_of(name, recipe.model_class).family is not Family.DIFFUSION]
    assert wrong == []
