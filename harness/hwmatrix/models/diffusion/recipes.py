"""Reads and validates the recipes of recipes.yaml: which classes of diffusers can be built tiny, and how."""

from __future__ import annotations

import functools
import importlib.resources
from typing import Annotated, Any, Final

import pydantic
from pydantic import Field
from pydantic.dataclasses import dataclass

from hwmatrix.basics.plain_yaml import parsed
from hwmatrix.models.factory.rules import Tensor

_STRICT: Final = pydantic.ConfigDict(extra="forbid")
_PACKAGE: Final = "hwmatrix.models.diffusion"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class DiffusionRecipe:
    """A class of diffusers as a tiny model.

    ``config`` are arguments of the class; the others keep its defaults. ``inputs`` replace those that follow from the configuration; None
    leaves one out. ``call`` are arguments that are plain numbers, such as a video's height: they are part of the model, not of its inputs.
    ``frames`` is the number of frames of a video, ``side`` the height and width of what goes in.
    """

    model_class: Annotated[str, Field(alias="class", pattern=r"^[A-Z]\w*$")]
    config: dict[str, Any] = Field(default_factory=dict)
    inputs: dict[str, Tensor | None] = Field(default_factory=dict)
    call: dict[str, int | float] = Field(default_factory=dict)
    frames: Annotated[int, Field(gt=0)] | None = None
    side: Annotated[int, Field(gt=0)] | None = None


@functools.cache
def recipes() -> dict[str, DiffusionRecipe]:
    """The packaged recipes by name, such as ``unet_2d_condition``."""
    return pydantic.TypeAdapter(dict[str, DiffusionRecipe]).validate_python(parsed(_text()))


def recipe_named(name: str) -> tuple[str, DiffusionRecipe] | None:
    """A recipe and its name, by that name or its class (``UNet2DConditionModel``). None if there is none."""
    return next(((key, recipe) for key, recipe in recipes().items() if name in {key, recipe.model_class}), None)


@functools.cache
def recipe_of(model_class: str) -> DiffusionRecipe:
    """The recipe of a class. A class without one has an empty recipe: its defaults, and inputs that follow from them."""
    found = (recipe for recipe in recipes().values() if recipe.model_class == model_class)
    return next(found, None) or pydantic.TypeAdapter(DiffusionRecipe).validate_python({"class": model_class})


def _text() -> str:
    return (importlib.resources.files(_PACKAGE) / "recipes.yaml").read_text(encoding="utf-8")
