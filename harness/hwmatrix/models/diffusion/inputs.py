"""Inputs of denoisers and autoencoders: for each argument of ``forward``, a tensor whose shape follows from the configuration."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import FactoryError
from hwmatrix.models.diffusion.build import PIPELINE
from hwmatrix.models.diffusion.pipeline import pipeline_inputs
from hwmatrix.models.diffusion.recipes import DiffusionRecipe, recipe_of
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.models.factory.synthesis import from_description
from hwmatrix.records import ModelPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_LATENT: Final = 8
"""Height and width of latents, if neither the configuration nor the recipe has them."""
_IMAGE: Final = 32
_GRID: Final = 4
"""Rows and columns of an image that comes as a sequence of patches."""
_TIMESTEP: Final = 500
"""Half of the 1,000 steps of training that diffusers' schedulers have by default."""
_TEXT_WIDTHS: Final = (
    "encoder_hid_dim",
    "joint_attention_dim",
    "caption_channels",
    "cap_feat_dim",
    "text_embed_dim",
    "text_dim",
    "cross_attention_dim",
    "context_in_dim",
)
"""Fields with the width of a text's embeddings, the more specific ones first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Request:
    """What a maker gets: the configuration, the recipe, the names of all arguments, the plan, a random generator."""

    config: Any
    recipe: DiffusionRecipe
    names: frozenset[str]
    plan: ModelPlan
    generator: Any

    def field(self, *names: str) -> int | None:
        """The first of these fields of the configuration that is a whole number."""
        found = (self.config.get(name) for name in names)
        return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)

    def normal(self, *shape: int) -> torch.Tensor:
        """Zero mean and unit variance."""
        import torch

        return torch.randn(shape, generator=self.generator)

    @property
    def decodes(self) -> bool:
        """Whether the model is an autoencoder, which gets an image instead of latents."""
        return self.recipe.model_class.startswith(("Autoencoder", "Asymmetric", "VQModel"))


def diffusion_inputs(model: torch.nn.Module, plan: ModelPlan) -> dict[str, torch.Tensor]:
    """The inputs of one forward pass, on the CPU: noise, a timestep in the middle of the schedule, embeddings of a text.

    Those of a pipeline are the tokens of a text and noise.

    Raises:
        FactoryError: a required argument cannot be generated (``no_inputs``).
    """
    import torch

    if plan.model_class == PIPELINE:
        return pipeline_inputs(model, plan)
    recipe = recipe_of(plan.model_class)
    described = recipe.inputs if plan.weights == FACTORY else {}  # they fit the recipe's own configuration only
    parameters = inspect.signature(type(model).forward).parameters
    request = _Request(
        config=model.config,
        recipe=recipe,
        names=frozenset(parameters) - {"self"},
        plan=plan,
        generator=torch.Generator().manual_seed(plan.seed),
    )
    inputs: dict[str, torch.Tensor] = {}
    for name in (name for name in parameters if name != "self"):
        if name in described:
            tensor = described[name]
            made = None if tensor is None else from_description(tensor, plan, request.generator)
        else:
            made = _MAKERS[name](request) if name in _MAKERS else None
        if made is not None:
            inputs[name] = made
    required = {name for name in request.names if parameters[name].default is inspect.Parameter.empty}
    missing = sorted(required - inputs.keys() - recipe.call.keys())
    if missing:
        message = f"{plan.model_class} needs inputs that hwmatrix cannot generate: {', '.join(missing)}"
        raise FactoryError(message, error_type="no_inputs")
    return inputs


def _picture(request: _Request) -> torch.Tensor | None:
    """Latents, or an image or video for an autoencoder: (batch, channels, frames if any, height, width)."""
    channels = request.field("in_channels", "input_channels", "image_channels")
    side = (
        (request.recipe.side if request.plan.weights == FACTORY else None)
        or request.field("sample_size")
        or (_IMAGE if request.decodes else _LATENT)
    )
    frames = () if request.recipe.frames is None else (request.recipe.frames,)
    return None if channels is None else request.normal(request.plan.batch, channels, *frames, side, side)


def _hidden_states(request: _Request) -> torch.Tensor | None:
    """Latents, or a sequence of their patches for models that get each patch's place (``img_ids``)."""
    if "img_ids" not in request.names:
        return _picture(request)
    channels = request.field("in_channels")
    return None if channels is None else request.normal(request.plan.batch, _GRID * _GRID, channels)


def _timestep(request: _Request) -> torch.Tensor:
    """A step of training; models of flows with ``img_ids`` take it as a share of the schedule."""
    import torch

    if "img_ids" in request.names:
        return torch.full((request.plan.batch,), _TIMESTEP / 1000)
    return torch.full((request.plan.batch,), _TIMESTEP, dtype=torch.int64)


def _text(request: _Request) -> torch.Tensor | None:
    width = request.field(*_TEXT_WIDTHS)
    return None if width is None else request.normal(request.plan.batch, request.plan.sequence_length, width)


def _text_mask(request: _Request) -> torch.Tensor | None:
    """All ones: no token is padding."""
    import torch

    if "encoder_hidden_states" not in request.names or request.field(*_TEXT_WIDTHS) is None:
        return None
    return torch.ones((request.plan.batch, request.plan.sequence_length), dtype=torch.int64)


def _pooled(request: _Request) -> torch.Tensor | None:
    width = request.field("pooled_projection_dim")
    return None if width is None else request.normal(request.plan.batch, width)


def _classes(request: _Request) -> torch.Tensor | None:
    """The class to draw, for models that are told one."""
    import torch

    count = request.field("num_class_embeds", "num_embeds_ada_norm" if "encoder_hidden_states" not in request.names else "num_class_embeds")
    return None if count is None else torch.randint(count, (request.plan.batch,), generator=request.generator)


def _image_places(request: _Request) -> torch.Tensor:
    """For each patch: 0, its row, its column."""
    import torch

    rows = torch.cartesian_prod(torch.zeros(1), torch.arange(float(_GRID)), torch.arange(float(_GRID)))
    return torch.nn.functional.pad(rows, (0, len(request.config.get("axes_dims_rope", rows[0])) - rows.shape[1]))


def _text_places(request: _Request) -> torch.Tensor:
    """All zeros: a text has no place in the image."""
    import torch

    return torch.zeros(request.plan.sequence_length, len(request.config.get("axes_dims_rope", (0, 0, 0))))


def _guidance(request: _Request) -> torch.Tensor | None:
    """The scale of guidance, for models that were distilled with one."""
    import torch

    return torch.full((request.plan.batch,), 3.5) if request.config.get("guidance_embeds") else None


_MAKERS: Final[dict[str, Callable[[_Request], torch.Tensor | None]]] = {
    "sample": _picture,
    "hidden_states": _hidden_states,
    "timestep": _timestep,
    "encoder_hidden_states": _text,
    "encoder_attention_mask": _text_mask,
    "pooled_projections": _pooled,
    "class_labels": _classes,
    "img_ids": _image_places,
    "txt_ids": _text_places,
    "guidance": _guidance,
}
