"""Stable Diffusion as one module: from the tokens of a text and noise to an image, with every step of denoising in the graph.

A loop on the host would need a protocol of its own on each target. Unrolled, the few steps of a tiny pipeline are one graph of the same
weights, which every target runs, compares and traces like any other model. Tests compare the module with diffusers' own
``StableDiffusionPipeline``. The time of one step is that of the denoiser, which matrix.yaml lists as a model of its own.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.json_text import read_json
from hwmatrix.basics.near_miss import closest
from hwmatrix.errors import FactoryError
from hwmatrix.models.diffusion.build import CONFIG, PARTS, PIPELINE, check_keys, library, model_class, one_line
from hwmatrix.models.diffusion.steps import LINEAR, Schedule, schedule
from hwmatrix.models.inputs import plain_ids

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from hwmatrix.records import Dtype, ModelPlan

_WEIGHTS: Final = "model.safetensors"
_PARTS: Final = ("text_encoder", "unet", "vae", "scheduler")
_NUMBERS: Final = {"steps": 4, "guidance_scale": 7.5}
"""The settings of a call, with their defaults. diffusers' own default is 50 steps; 4 are enough to see whether they work."""


def pipeline_from(plan: ModelPlan, config: dict[str, Any]) -> torch.nn.Module:
    """A pipeline with random weights from a plan's seed. ``config`` has the arguments of each part, ``steps`` and ``guidance_scale``.

    Raises:
        FactoryError: a part is missing, unknown or cannot be built (``bad_config``, ``unknown_config_key``, ``unknown_class``,
            ``build_failed``), or diffusers is not installed (``not_installed``).
    """
    import torch

    _check(plan.model_class, config)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            return _module({**_NUMBERS, **config}).to(torch.float32).eval()  # type: ignore[no-any-return]
    except FactoryError:
        raise
    except Exception as error:  # a model's own code may raise anything; it becomes data
        raise FactoryError(f"{plan.model_class} cannot be built: {one_line(error)}", error_type="build_failed") from error


def load_pipeline(model_dir: Path, name: str, dtype: Dtype) -> torch.nn.Module:
    """Load a pipeline that its ``save_pretrained`` wrote.

    Raises:
        FactoryError: it cannot be loaded (``load_failed``).
    """
    import torch
    from safetensors.torch import load_file

    try:
        model = _module(read_json((model_dir / CONFIG).read_bytes())["config"])
        model.load_state_dict(load_file(model_dir / _WEIGHTS))
    except FactoryError:
        raise
    except Exception as error:  # a model's own code may raise anything; it becomes data
        raise FactoryError(f"{name} cannot be loaded: {one_line(error)}", error_type="load_failed") from error
    return model.to(getattr(torch, dtype.value)).eval()  # type: ignore[no-any-return]


def pipeline_inputs(model: Any, plan: ModelPlan) -> dict[str, torch.Tensor]:
    """A text's tokens, those of an empty text, which guidance compares with, and noise of the denoiser's size.

    Raises:
        FactoryError: the text encoder has fewer positions than ``sequence_length`` (``sequence_too_long``).
    """
    import torch

    text, unet = model.text_encoder.config, model.unet.config
    length = plan.sequence_length
    if length > text.max_position_embeddings:
        message = f"sequence_length {length} exceeds the text encoder's {text.max_position_embeddings} positions: set at most that"
        raise FactoryError(message, error_type="sequence_too_long")
    generator = torch.Generator().manual_seed(plan.seed)
    ids = plain_ids((text,), text.vocab_size, (plan.batch, length), generator)
    empty = torch.full_like(ids, text.eos_token_id)
    for tokens in (ids, empty):
        tokens[:, 0], tokens[:, -1] = text.bos_token_id, text.eos_token_id
    side = unet.sample_size
    noise = torch.randn((plan.batch, unet.in_channels, side, side), generator=generator)
    return {"input_ids": ids, "negative_input_ids": empty, "latents": noise}


def _check(name: str, config: dict[str, Any]) -> None:
    """Raise for the first part that is missing or unknown."""
    known = (*_PARTS, *_NUMBERS)
    if "safety_checker" in config:
        message = f"config: hwmatrix runs {name} without a safety checker, which makes no image but only blanks some: remove safety_checker"
        raise FactoryError(message, error_type="unknown_config_key")
    for key in config:
        if key not in known:
            near = closest(key, known)
            hint = f"did you mean {near!r}?" if near else f"its parts are {', '.join(known)}"
            raise FactoryError(f"config: {name} has no {key!r}: {hint}", error_type="unknown_config_key")
    missing = [part for part in _PARTS if not isinstance(config.get(part), dict)]
    if missing:
        example = f"scheduler: {{class: {LINEAR[0]}}}" if missing == ["scheduler"] else f"{missing[0]}: {{...}}"
        raise FactoryError(f"config: {name} lacks {', '.join(missing)}: add {example}", error_type="bad_config")
    steps = {**_NUMBERS, **config}["steps"]
    if not isinstance(steps, int) or steps < 1:
        raise FactoryError(f"config.steps: {steps!r} is not a number of steps: set 1 or more", error_type="bad_config")


def _module(config: dict[str, Any]) -> Any:
    """The module of a configuration, with random weights."""
    import transformers

    plan = schedule(config["scheduler"], config["steps"])
    for part, kind in PARTS.items():
        check_keys(model_class(kind), config[part], f"config.{part}")
    config_class: Any = transformers.CLIPTextConfig
    check_keys(config_class, config["text_encoder"], "config.text_encoder")
    text: Any = transformers.CLIPTextModel(config_class(**config["text_encoder"], attn_implementation="eager"))
    unet, vae = (model_class(kind)(**config[part]) for part, kind in PARTS.items())
    return _pipeline_class()(config=config, plan=plan, text_encoder=text, unet=unet, vae=vae)


@functools.cache
def _pipeline_class() -> Any:
    """The class of the module. Made late: it derives from torch's."""
    import torch

    class StableDiffusion(torch.nn.Module):
        """``config`` are the arguments that it was built from."""

        def __init__(self, *, config: dict[str, Any], plan: Schedule, text_encoder: Any, unet: Any, vae: Any) -> None:
            super().__init__()
            self.config = config
            self.plan = plan
            self.text_encoder = text_encoder
            self.unet = unet
            self.vae = vae

        def forward(self, input_ids: torch.Tensor, negative_input_ids: torch.Tensor, latents: torch.Tensor) -> dict[str, torch.Tensor]:
            """The image of a text: (batch, channels, height, width), from 0 to 1."""
            embeddings = self.text_encoder(torch.cat([negative_input_ids, input_ids])).last_hidden_state
            latents = latents * self.plan.start
            for step in self.plan.steps:
                timestep = torch.full((), step.timestep, device=latents.device)
                both = torch.cat([latents, latents]) * step.scale
                without, with_text = self.unet(both, timestep, encoder_hidden_states=embeddings, return_dict=False)[0].chunk(2)
                prediction = without + self.config["guidance_scale"] * (with_text - without)
                latents = step.keep * latents + step.add * prediction
            image = self.vae.decode(latents / self.vae.config.scaling_factor, return_dict=False)[0]
            return {"image": (image / 2 + 0.5).clamp(0, 1)}

        def save_pretrained(self, folder: Path) -> None:
            """Write the configuration and all weights."""
            from safetensors.torch import save_file

            folder.mkdir(parents=True, exist_ok=True)
            described = {"_class_name": PIPELINE, "_diffusers_version": library().__version__, "config": self.config}
            (folder / CONFIG).write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, folder / _WEIGHTS)

    return StableDiffusion
