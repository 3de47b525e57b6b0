"""A tiny model of a type with its inputs: built by the rules, or by gentler ones if those fail, with a limit on parameters."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import FactoryError
from hwmatrix.models.factory.modalities import COUNTERS, given, token_id
from hwmatrix.models.factory.rules import override
from hwmatrix.models.factory.shrink import GENTLE, SMALL, tiny_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from hwmatrix.records import ModelPlan

FACTORY: Final = "factory"
"""``weights`` of a plan whose model is made from its type alone."""
MOST_PARAMETERS: Final = 20_000_000
"""The limit of a tiny model: all bundles of a sweep must fit on a disk."""


def attempts(plan: ModelPlan) -> Iterator[tuple[str, Any]]:
    """The configurations to try, smallest first: the level of the rules, and an instance of the type's configuration class.

    Raises:
        FactoryError: the type is unknown, cannot be built here at all, or its class rejects its configuration on every level.
    """
    import transformers

    known = override(plan.architecture)
    if known.impossible is not None:
        raise FactoryError(known.impossible, error_type="unbuildable")
    if any(importlib.util.find_spec(name) is None for name in known.packages):
        needed, them = " and ".join(known.packages), "them" if len(known.packages) > 1 else "it"
        message = f"it needs {needed}, which the images lack: if your package index has {them} for this PyTorch, "
        message += f"add {them} to images/cpu/requirements.txt"
        raise FactoryError(message, error_type="unbuildable")
    if plan.architecture not in transformers.CONFIG_MAPPING:
        message = f"transformers {transformers.__version__} has no architecture {plan.architecture!r}"
        raise FactoryError(message, error_type="unknown_architecture")
    config_class = transformers.CONFIG_MAPPING[plan.architecture]
    failure: FactoryError | None = None
    accepted = False
    for level in (known.level,) if known.level else (SMALL, GENTLE):
        try:
            config = tiny_config(config_class, known, level)
        except Exception as error:  # noqa: BLE001 - configurations validate themselves, each with its own errors
            text = f"{config_class.__name__} refuses the config: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
            failure = failure or FactoryError(text, error_type="bad_config")
            failure.__cause__ = failure.__cause__ or error
            continue
        accepted = True
        yield level, config if known.part is None else getattr(config, known.part)
    if failure is not None and not accepted:
        raise failure


def adjusted(model: torch.nn.Module, plan: ModelPlan) -> torch.nn.Module:
    """The model, with its weights rescaled if its override has a ``gain``.

    A weight that sums n numbers gets the standard deviation gain / sqrt(n), so that n numbers of unit variance give a variance of
    gain squared. A weight stored as direction and length (weight norm) gets lengths of gain on average, which has the same effect.
    Other parameters, such as those not centered at zero, stay unchanged.
    """
    import torch

    gain = override(plan.architecture).gain
    if gain is None:
        return model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            summed = parameter.numel() // parameter.shape[0] if parameter.dim() > 1 else 1
            if name.endswith("parametrizations.weight.original0"):
                parameter.mul_(gain / parameter.mean())
            elif summed > 1 and bool(parameter.mean().abs() < parameter.std()):
                parameter.mul_(gain / (parameter.std() * summed**0.5))
    return model


def modalities(model: torch.nn.Module, inputs: dict[str, torch.Tensor], *, ignored: frozenset[str]) -> dict[str, Any]:
    """The manifest fields of a bundle's inputs: the kinds that the model can take, and those that its outputs depend on.

    ``ignored`` are kinds that do not influence the outputs (``influence``): they count as not given.
    """
    import inspect

    passed = given(inputs)
    takes = passed | given(inspect.signature(model.forward).parameters)
    got, media = passed - ignored, {counter.kind for counter in COUNTERS}
    video = _takes_video(model.config)
    told = {"takes": takes, "given": got}
    kinds = {name: sorted("video" if video and kind == "image" else kind for kind in values) for name, values in told.items()}
    return {**kinds, "text_path_only": bool(takes & media) and not got & media}


def _takes_video(config: Any) -> bool:
    """Whether ``pixel_values`` are frames of a video: the configuration counts frames, or has a video token and no image token."""
    tokens = {counter.kind: token_id(config, counter) for counter in COUNTERS}
    if tokens["video"] is not None and tokens["image"] is None:
        return True
    vision = getattr(config, "vision_config", config)
    return any(isinstance(getattr(vision, name, None), int) for name in ("num_frames", "frames_per_clip", "tubelet_size"))
