"""Generators for the arguments of a model's ``forward``: one per argument, based on the model's configuration.

Shapes are those of transformers' own processors. A maker returns None if the model does not need the argument.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwmatrix.errors import FactoryError
from hwmatrix.models.factory.modalities import configurations
from hwmatrix.models.inputs import plain_ids
from hwmatrix.records import ModelPlan

if TYPE_CHECKING:
    import torch

_SAMPLES: Final = 16_000
_FRAMES: Final = 64
_IMAGE: Final = 64
_VIDEO_FRAMES: Final = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a maker of an argument gets: the model, its configuration, the names of its arguments, the plan, a random generator."""

    model: Any
    config: Any
    names: frozenset[str]
    required: frozenset[str]
    plan: ModelPlan
    generator: Any

    def within(self, *names: str) -> Any:
        """The first nested configuration with one of these names, here or in the wrapped model's configuration; else the main one."""
        found = (getattr(config, name, None) for config in configurations(self.config) for name in names)
        return next((item for item in found if hasattr(item, "to_dict")), self.config)

    def normal(self, *shape: int) -> torch.Tensor:
        """Zero mean and unit variance."""
        import torch

        return torch.randn(shape, generator=self.generator)


_Maker: TypeAlias = Callable[[Request], "torch.Tensor | None"]


def text_config(request: Request) -> Any:
    """The configuration with the text's vocabulary; None if the model takes no text."""
    wrapped = (_text_config_of(item) for item in configurations(request.config))
    candidates = (*wrapped, request.config, *(getattr(request.config, name, None) for name in _TEXT_CONFIGS))
    return next((item for item in candidates if isinstance(getattr(item, "vocab_size", None), int)), None)


def _text_config_of(config: Any) -> Any:
    """The text configuration according to transformers; None if it finds several."""
    try:
        return config.get_text_config()
    except ValueError:
        return None


_TEXT_CONFIGS: Final = ("text_config", "text_encoder", "text_encoder_config", "decoder", "encoder", "llm_config", "language_config")


def random_ids(request: Request, batch: int, length: int) -> torch.Tensor:
    """Token ids without special tokens: (batch, length)."""
    text = text_config(request)
    return plain_ids((request.config, text), text.vocab_size, (batch, length), request.generator)


def _input_ids(request: Request) -> torch.Tensor | None:
    text = text_config(request)
    if text is None:
        return None
    most = getattr(text, "max_position_embeddings", None)
    length = request.plan.sequence_length
    if isinstance(most, int) and most > 0:
        length = min(length, most)
    ids = random_ids(request, request.plan.batch, length)
    eos = getattr(text, "eos_token_id", None)
    if "pixel_values" in request.names and isinstance(eos, int) and 0 <= eos < text.vocab_size:
        ids[:, -1] = eos  # models that compare text with images take the text's embedding from this token
    return ids


def _attention_mask(request: Request) -> torch.Tensor | None:
    import torch

    ids = _input_ids(request) if "input_ids" in request.names else None
    return None if ids is None else torch.ones_like(ids)


def _decoder_input_ids(request: Request) -> torch.Tensor | None:
    if not getattr(request.config, "is_encoder_decoder", False) and "decoder_input_ids" not in request.required:
        return None
    text = text_config(request)
    if text is None:
        return None
    ids = random_ids(request, request.plan.batch, request.plan.sequence_length)
    start = getattr(request.config, "decoder_start_token_id", None)
    ids[:, 0] = start if isinstance(start, int) and 0 <= start < text.vocab_size else 0
    return ids


def _bbox(request: Request) -> torch.Tensor:
    """Boxes of words on a page, as for layout models: left, top, right, bottom, each from 0 to 1000."""
    import torch

    corners = torch.randint(0, 100, (request.plan.batch, request.plan.sequence_length, 2), generator=request.generator)
    return torch.cat([corners, corners + 10], dim=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Grid:
    """An image cut into patches, as for Qwen2-VL and similar models: its height and width in patches, and the numbers in a patch."""

    high: int
    wide: int
    numbers: int


def _number(config: Any, *names: str) -> int | None:
    """The first of these fields that is an integer."""
    return next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)


def _grid(request: Request) -> _Grid:
    """Two by two tokens, each of as many patches as the model merges into one token."""
    vision = request.within("vision_config")
    patch = getattr(vision, "patch_size", None)
    merge = _number(vision, "spatial_merge_size", "merge_size") or 2
    channels = _number(vision, "in_channels", "num_channels", "in_chans") or 3
    times = _number(vision, "temporal_patch_size", "patch_temporal") or 1
    if not isinstance(patch, int):
        raise FactoryError("the vision configuration has no patch_size to cut an image by", error_type="no_inputs")
    return _Grid(high=2 * merge, wide=2 * merge, numbers=channels * times * patch * patch)


def _grid_thw(request: Request) -> torch.Tensor:
    """Frames, height in patches and width in patches of one image: (1, 3)."""
    import torch

    grid = _grid(request)
    return torch.tensor([[1, grid.high, grid.wide]])


def _image_grid_thw(request: Request) -> torch.Tensor | None:
    return _grid_thw(request) if "pixel_values" in request.names else None


def _video_grid_thw(request: Request) -> torch.Tensor | None:
    return None if "image_grid_thw" in request.names else _grid_thw(request)


def _hidden_states(request: Request) -> torch.Tensor | None:
    """The patches of an image, for a vision tower that takes nothing else."""
    if "hidden_states" not in request.required or "grid_thw" not in request.names:
        return None
    grid = _grid(request)
    return request.normal(grid.high * grid.wide, grid.numbers)


def _spatial_shapes(request: Request) -> torch.Tensor:
    """The height and width of an image in patches: (1, 2)."""
    return _grid_thw(request)[:, 1:]


def _pixel_attention_mask(request: Request) -> torch.Tensor | None:
    """The mask of images that come as rows of patches: no patch is padding."""
    import torch

    if "spatial_shapes" not in request.names:
        return None
    grid = _grid(request)
    return torch.ones((1, grid.high * grid.wide), dtype=torch.int64)


def _flattened_patches(request: Request) -> torch.Tensor:
    """An image as patches, each preceded by its row and column, counted from 1: (batch, patches, 2 + numbers in a patch)."""
    import torch

    side = 4
    places = torch.cartesian_prod(torch.arange(1, side + 1), torch.arange(1, side + 1)).float()
    patches = request.normal(request.plan.batch, side * side, _vision(request).patch_embed_hidden_size)
    return torch.cat([places.expand(request.plan.batch, -1, -1), patches], dim=-1)


def _image_sizes(request: Request) -> torch.Tensor | None:
    """Height and width of an image before it was cut into tiles, for models that need them: (batch, 2)."""
    import torch

    counting = getattr(request.model, "get_image_features", None)
    known = None if counting is None else inspect.signature(counting).parameters.get("image_sizes")
    if counting is not None and (known is None or known.default is not known.empty):
        return None
    sides = _resolution(request) or _sides(_vision(request), request.config)
    return torch.tensor([sides] * request.plan.batch)


def _resolution(request: Request) -> tuple[int, int] | None:
    """The second of the resolutions at which a model cuts images into tiles (the first may be a single tile); None if there are none."""
    known = getattr(request.config, "image_grid_pinpoints", None)
    if not known:
        return None
    high, wide = known[min(1, len(known) - 1)]
    return int(high), int(wide)


def _vision(request: Request) -> Any:
    return request.within("vision_config", "vision_encoder_config", "vision_model_config", "backbone_config", "encoder", "vit_config")


def _pixel_values(request: Request) -> torch.Tensor | None:
    if "spatial_shapes" in request.names:
        grid = _grid(request)
        return request.normal(1, grid.high * grid.wide, grid.numbers)
    if {"image_grid_thw", "grid_thw"} & request.names:
        grid = _grid(request)
        return request.normal(grid.high * grid.wide, grid.numbers)
    vision = _vision(request)
    height, width = _sides(vision, request.config)
    channels = next(
        (n for n in (getattr(vision, name, None) for name in ("num_channels", "in_channels", "in_chans")) if isinstance(n, int)), 3
    )
    frames = getattr(vision, "num_frames", None)
    if not isinstance(frames, int):
        frames = getattr(vision, "frames_per_clip", None)
    resolution = _resolution(request) if "image_sizes" in request.names else None
    if resolution is not None:
        frames = 1 + (resolution[0] // height) * (resolution[1] // width)  # the downscaled whole image, and its tiles
    return request.normal(request.plan.batch, *((frames,) if isinstance(frames, int) else ()), channels, height, width)


def _pixel_values_videos(request: Request) -> torch.Tensor | None:
    if "pixel_values" in request.names and "pixel_values_videos" not in request.required:
        return None  # for models of both, an image is enough
    vision = request.within("vision_config", "video_config", "backbone_config")
    height, width = _sides(vision, request.config)
    frames = next(
        (n for n in (getattr(vision, name, None) for name in ("num_frames", "frames_per_clip")) if isinstance(n, int)), _VIDEO_FRAMES
    )
    return request.normal(request.plan.batch, frames, getattr(vision, "num_channels", 3), height, width)


def _sides(*configs: Any) -> tuple[int, int]:
    """Height and width of an image."""
    for config in configs:
        size = getattr(config, "image_size", None)
        if isinstance(size, int):
            return size, size
        if isinstance(size, (list, tuple)) and len(size) == 2:  # noqa: PLR2004 - height and width
            return int(size[0]), int(size[1])
        if isinstance(size, dict) and {"height", "width"} <= size.keys():
            return int(size["height"]), int(size["width"])
    return _IMAGE, _IMAGE


def _input_features(request: Request) -> torch.Tensor | None:
    """A spectrogram: (batch, mel bins, frames) if the configuration gives the number of positions, else (batch, frames, mel bins)."""
    shape = _spectrogram(request)
    return None if shape is None else request.normal(request.plan.batch, *shape)


def _features_mask(request: Request) -> torch.Tensor | None:
    """The mask of a spectrogram, (batch, frames): no frame is padding."""
    import torch

    shape = _spectrogram(request) if "input_features" in request.names else None
    return None if shape is None else torch.ones((request.plan.batch, max(shape)), dtype=torch.int64)


def _spectrogram(request: Request) -> tuple[int, int] | None:
    audio = request.within("audio_config", "encoder_config", "audio_encoder_config", "speech_config", "encoder")
    bins = next(
        (
            n
            for n in (getattr(audio, name, None) for name in ("num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim"))
            if isinstance(n, int)
        ),
        None,
    )
    if bins is None:
        return None
    positions = getattr(audio, "max_source_positions", None)
    if isinstance(positions, int) and not hasattr(audio, "input_feat_per_channel"):
        return bins, 2 * positions
    return _FRAMES, bins


def _input_values(request: Request) -> torch.Tensor | None:
    """One second of a waveform, or a spectrogram (time, mel bins) if the configuration describes one."""
    audio = request.within("audio_config", "encoder_config", "speech_config", "audio_encoder", "encoder")
    frames, bins = (getattr(audio, name, None) for name in ("max_length", "num_mel_bins"))
    if isinstance(frames, int) and isinstance(bins, int) and not hasattr(audio, "conv_stride"):
        return request.normal(request.plan.batch, frames, bins)
    channels = getattr(audio, "audio_channels", None)
    return request.normal(request.plan.batch, *((channels,) if isinstance(channels, int) else ()), _SAMPLES)


MAKERS: Final[dict[str, _Maker]] = {
    "input_ids": _input_ids,
    "attention_mask": _attention_mask,
    "decoder_input_ids": _decoder_input_ids,
    "bbox": _bbox,
    "pixel_values": _pixel_values,
    "pixel_attention_mask": _pixel_attention_mask,
    "spatial_shapes": _spatial_shapes,
    "image_sizes": _image_sizes,
    "flattened_patches": _flattened_patches,
    "hidden_states": _hidden_states,
    "grid_thw": _grid_thw,
    "image_grid_thw": _image_grid_thw,
    "video_grid_thw": _video_grid_thw,
    "pixel_values_videos": _pixel_values_videos,
    "input_features": _input_features,
    "input_features_mask": _features_mask,
    "feature_attention_mask": _features_mask,
    "input_values": _input_values,
}
