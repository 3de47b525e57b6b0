"""The kinds of input that a model takes, and how many tokens of its text represent an image, a video or audio."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import FactoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counter:
    """One kind of input that becomes tokens.

    ``method`` of the model returns its features, each of which replaces one token. ``inputs`` are the possible names of the argument,
    ``tokens`` the possible fields of the configuration with the token's id.
    """

    kind: str
    method: str
    inputs: tuple[str, ...]
    tokens: tuple[str, ...]


COUNTERS: Final = (
    Counter(
        kind="image",
        method="get_image_features",
        inputs=(
            "pixel_values",
            "pixel_values_images",
            "image_pixel_values",
            "flattened_patches",
            "image_patches",
            "images",
            "visual_feats",
            "visual_embeds",
        ),
        tokens=("image_token_id", "image_token_index", "media_placeholder_token_id", "image_patch_id"),
    ),
    Counter(
        kind="video",
        method="get_video_features",
        inputs=("pixel_values_videos", "video_pixel_values", "videos"),
        tokens=("video_token_id", "video_token_index"),
    ),
    Counter(
        kind="audio",
        method="get_audio_features",
        inputs=(
            "input_features",
            "input_values",
            "audio_values",
            "audio_input_features",
            "audio_codes",
            "user_audio_codes",
            "moshi_audio_codes",
            "input_audio_embeds",
            "audio_input_ids",
            "audio_latents",
            "audio_prompt_latents",
            "audio_mel",
        ),
        tokens=("audio_token_id", "audio_token_index"),
    ),
)
"""In the order of their tokens in the text."""


def given(inputs: Any) -> frozenset[str]:
    """The kinds of input among these names: ``text``, ``image``, ``video``, ``audio``."""
    kinds = {counter.kind for counter in COUNTERS if any(name in inputs for name in counter.inputs)}
    if {"hidden_states", "grid_thw"} <= set(inputs):  # a vision tower takes an image's patches under this name
        kinds |= {"image"}
    return frozenset(kinds | ({"text"} if {"input_ids", "decoder_input_ids", "classes_input_ids"} & set(inputs) else set()))


def places(model: Any, inputs: dict[str, torch.Tensor]) -> Iterator[tuple[int, int]]:
    """For each kind of input that becomes tokens of the text: the token, and the number of tokens that the model makes of the input.

    Raises:
        FactoryError: the model fails on the input (``no_inputs``).
    """
    for counter in COUNTERS:
        present = [name for name in counter.inputs if name in inputs]
        token = token_id(model.config, counter)
        method = method_of(model, counter.method)
        if present and token is not None and method is not None:
            yield token, _feature_count(method, inputs, counter)


def configurations(config: Any) -> tuple[Any, ...]:
    """A configuration, and that of the vision-language model that it wraps, if any."""
    wrapped = getattr(config, "vlm_config", None)
    return (config,) if wrapped is None else (config, wrapped)


def token_id(config: Any, counter: Counter) -> int | None:
    """The token that stands for one kind of input."""
    found = (getattr(item, name, None) for item in configurations(config) for name in counter.tokens)
    return next((value for value in found if isinstance(value, int)), None)


def method_of(model: Any, name: str) -> Any:
    """The method of the model or of an inner model that names the most arguments: one that only forwards ``**kwargs`` names few."""
    wrapped = getattr(model, "vlm", None)
    holders = (model, getattr(model, "model", None), wrapped, getattr(wrapped, "model", None))
    methods = [method for holder in holders if (method := getattr(holder, name, None)) is not None]
    return max(methods, key=lambda method: len({*inspect.signature(method).parameters} - {"args", "kwargs"}), default=None)


def _feature_count(method: Any, inputs: dict[str, torch.Tensor], counter: Counter) -> int:
    """How many features the model makes of its input: each replaces one token."""
    import torch

    accepted = inspect.signature(method).parameters
    arguments = {name: tensor for name, tensor in inputs.items() if name in accepted and name not in {"input_ids", "attention_mask"}}
    try:
        with torch.inference_mode():
            features = method(**arguments)
    except Exception as error:  # a model's own code may raise anything; it becomes data
        message = f"{counter.method} fails on {sorted(arguments)}: {type(error).__name__}: {error}"
        raise FactoryError(message, error_type="no_inputs") from error
    return sum(tensor.numel() // tensor.shape[-1] for tensor in _tensors(features))


def _tensors(features: Any) -> list[torch.Tensor]:
    """The features that replace tokens: ``pooler_output`` of a transformers output, else all of a list, else the tensor itself."""
    if hasattr(features, "to_tuple"):
        pooled = getattr(features, "pooler_output", None)
        return _tensors(pooled if pooled is not None else features.to_tuple()[0])
    if isinstance(features, (list, tuple)):
        return [tensor for item in features for tensor in _tensors(item)]
    return [features]
