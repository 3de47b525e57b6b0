"""Synthetic inputs: for each argument of a model's ``forward`` that carries data, a tensor of the right shape.

The same plan always gives the same tensors. Values resemble those of a processor: token ids without special tokens, pixels and
spectrograms of zero mean and unit variance.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwmatrix.errors import FactoryError
from hwmatrix.records import ModelPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

SAMPLING_RATE: Final = 16_000  # Hz: the rate that wav2vec2 and similar models were trained at; a waveform input lasts one second
VIDEO_LABELS: Final = 3  # captions that a video is compared with, for models of text and video (XCLIP)
FRAMES_PER_POSITION: Final = 2  # Whisper's second convolution has stride 2

# Arguments that change the shape of another argument in a way that only the model's own processor knows.
_COUPLED: Final = frozenset({"image_grid_thw", "video_grid_thw", "pixel_attention_mask", "pixel_position_ids"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Request:
    """What a maker of an argument gets: the model's configuration, the names of its arguments, and the plan."""

    config: Any
    text: Any
    names: frozenset[str]
    plan: ModelPlan
    generator: Any  # a torch.Generator; torch is not installed where runs are planned


_Maker: TypeAlias = "Callable[[_Request], torch.Tensor | None]"


def make_inputs(model: torch.nn.Module, plan: ModelPlan) -> dict[str, torch.Tensor]:
    """The inputs of one forward pass, on the CPU: integer tensors int64, others float32.

    Shapes: ``input_ids``, ``attention_mask`` and ``decoder_input_ids`` (batch, tokens); ``pixel_values`` (batch, channels, height,
    width), with frames after the batch for videos; ``input_features`` (batch, mel bins, frames); ``input_values`` (batch, samples).

    Raises:
        FactoryError: a required argument cannot be generated (``no_inputs``), or the model does not support ``sequence_length``
            (``sequence_too_long``, ``sequence_too_short``).
    """
    import torch

    parameters = {name: parameter for name, parameter in inspect.signature(model.forward).parameters.items() if name != "self"}
    config: Any = model.config
    request = _Request(
        config=config,
        text=config.get_text_config(),
        names=frozenset(parameters),
        plan=plan,
        generator=torch.Generator().manual_seed(plan.seed),
    )
    made = {name: _MAKERS[name](request) for name in parameters if name in _MAKERS}
    inputs = {name: tensor for name, tensor in made.items() if tensor is not None}
    needed = {name for name, parameter in parameters.items() if _is_required(parameter)} | {str(model.main_input_name)}
    missing = sorted(needed - inputs.keys() | (_COUPLED & request.names))
    if missing:
        message = f"{plan.model_class} needs inputs that hwmatrix cannot generate: {', '.join(missing)}"
        raise FactoryError(message, error_type="no_inputs")
    return inputs


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}


def _input_ids(request: _Request) -> torch.Tensor | None:
    if not hasattr(request.text, "vocab_size"):
        return None
    length = _length(request, "max_position_embeddings")
    has_film = "pixel_values" in request.names and _frames(request) is not None
    ids = _random_ids(request, VIDEO_LABELS if has_film else request.plan.batch, length)
    stands_for_images = image_token(request.config)
    if stands_for_images is not None and "pixel_values" in request.names:
        count = image_tokens(request.config)
        if count >= length:
            message = f"sequence_length {length} has no room for text beside {count} tokens of an image: set at least {count + 1}"
            raise FactoryError(message, error_type="sequence_too_short")
        ids[:, :count] = stands_for_images
    elif "pixel_values" in request.names:
        # These models take the text's embedding from the end-of-text token.
        ids[:, -1] = _in_vocabulary(request, getattr(request.text, "eos_token_id", None), default=int(ids[0, -1]))
    return ids


def _attention_mask(request: _Request) -> torch.Tensor | None:
    """All ones, for text. Audio and images are not padded and need no mask."""
    import torch

    if "input_ids" not in request.names or not hasattr(request.text, "vocab_size"):
        return None
    batch = VIDEO_LABELS if "pixel_values" in request.names and _frames(request) is not None else request.plan.batch
    return torch.ones(batch, request.plan.sequence_length, dtype=torch.int64)


def _decoder_input_ids(request: _Request) -> torch.Tensor | None:
    """The start token, then random ones."""
    if not getattr(request.config, "is_encoder_decoder", False):
        return None
    ids = _random_ids(request, request.plan.batch, _length(request, "max_target_positions"))
    start = getattr(request.config, "decoder_start_token_id", None)
    ids[:, 0] = _in_vocabulary(request, start, default=getattr(request.config, "pad_token_id", None) or 0)
    return ids


def _pixel_values(request: _Request) -> torch.Tensor | None:
    vision = getattr(request.config, "vision_config", request.config)
    size = getattr(vision, "image_size", None)
    if isinstance(size, int):
        size = (size, size)
    if not isinstance(size, (tuple, list)) or len(size) != 2:  # noqa: PLR2004 - height and width
        return None
    frames = _frames(request)
    shape = (request.plan.batch, *(() if frames is None else (frames,)), getattr(vision, "num_channels", 3), *size)
    return _normal(request, shape)


def _input_features(request: _Request) -> torch.Tensor | None:
    """A spectrogram that fills all positions of the encoder: Whisper accepts no other length."""
    bins, positions = (getattr(request.config, name, None) for name in ("num_mel_bins", "max_source_positions"))
    return _normal(request, (request.plan.batch, bins, FRAMES_PER_POSITION * positions)) if bins and positions else None


def _input_values(request: _Request) -> torch.Tensor | None:
    """One second of a waveform, or a spectrogram (time, mel bins) if the configuration describes one."""
    if hasattr(request.config, "conv_stride"):
        return _normal(request, (request.plan.batch, SAMPLING_RATE))
    frames, bins = (getattr(request.config, name, None) for name in ("max_length", "num_mel_bins"))
    return _normal(request, (request.plan.batch, frames, bins)) if frames and bins else None


_MAKERS: Final[dict[str, _Maker]] = {
    "input_ids": _input_ids,
    "attention_mask": _attention_mask,
    "decoder_input_ids": _decoder_input_ids,
    "pixel_values": _pixel_values,
    "input_features": _input_features,
    "input_values": _input_values,
}


def _length(request: _Request, limit: str) -> int:
    """The plan's sequence length, checked against the model's number of positions."""
    length, most = request.plan.sequence_length, getattr(request.text, limit, None)
    if isinstance(most, int) and length > most:
        message = f"sequence_length {length} exceeds the model's {most} positions ({limit}): set sequence_length to {most} or less"
        raise FactoryError(message, error_type="sequence_too_long")
    return length


def _random_ids(request: _Request, batch: int, length: int) -> torch.Tensor:
    """Random token ids without special tokens: padding, end and image tokens make a model skip or replace what follows."""
    return plain_ids((request.config, request.text), request.text.vocab_size, (batch, length), request.generator)


def plain_ids(configs: Iterable[Any], vocabulary: int, shape: tuple[int, int], generator: Any) -> torch.Tensor:
    """Random token ids below ``vocabulary`` that are special tokens in none of the configurations: (batch, length), int64."""
    import torch

    special = {value for config in configs for value in _special_ids(config)}
    allowed = torch.tensor([token for token in range(vocabulary) if token not in special], dtype=torch.int64)
    return allowed[torch.randint(len(allowed), shape, generator=generator)]


def _special_ids(config: Any) -> list[int]:
    named = [value for name, value in config.to_dict().items() if name.endswith(("_token_id", "_token_ids", "_token_index"))]
    return [token for value in named for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)]


def _in_vocabulary(request: _Request, token: int | list[int] | None, *, default: int) -> int:
    first = token[0] if isinstance(token, list) and token else token
    return first if isinstance(first, int) and 0 <= first < request.text.vocab_size else default


def image_token(config: Any) -> int | None:
    """The token that stands for a part of an image in a text; None if there is none."""
    return next((value for name in ("image_token_index", "image_token_id") if isinstance(value := getattr(config, name, None), int)), None)


def image_tokens(config: Any) -> int:
    """How many tokens of the text stand for one image: one per patch, and one for the class token if the model keeps it."""
    vision = config.vision_config
    size, patch = vision.image_size, vision.patch_size
    return int((size // patch) ** 2) + (getattr(config, "vision_feature_select_strategy", "default") == "full")


def _frames(request: _Request) -> int | None:
    """The number of frames of a video; None for a model of single images."""
    vision = getattr(request.config, "vision_config", request.config)
    frames = getattr(vision, "num_frames", None)
    return frames if isinstance(frames, int) else None


def _normal(request: _Request, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    return torch.randn(shape, generator=request.generator)
