"""Chooses the task that a model can learn, by the head of its class and its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwmatrix.models import inputs as synthetic
from hwmatrix.models.learning import tasks

if TYPE_CHECKING:
    import torch

    from hwmatrix.records import ModelPlan

_ORIENTATIONS: Final = 8
_CAPTIONS: Final = 16
_AXES: Final = 4
_TONES: Final = 4


def task_of(model: torch.nn.Module, plan: ModelPlan) -> tasks.Task:
    """The task for a model, with sizes from its configuration and the plan's sequence length.

    Raises:
        CannotLearnError: there is no task for its class, or its vocabulary is too small.
    """
    import torch

    config: Any = model.config
    text, vision = config.get_text_config(), getattr(config, "vision_config", config)
    name, length = plan.model_class, plan.sequence_length
    size = getattr(vision, "image_size", None)
    shape = (getattr(vision, "num_channels", 3), size, size) if isinstance(size, int) else None
    words = tasks.words_of((config, text), text.vocab_size) if hasattr(text, "vocab_size") and not name.endswith("ForCTC") else None
    found: tasks.Task | None = None
    if name.endswith("ForCTC"):
        blank = int(text.pad_token_id or 0)
        ordinary = torch.tensor([token for token in range(text.vocab_size) if token != blank])
        found = tasks.ToneSequence(words=ordinary[-_TONES:], blank=blank)
    elif shape is not None and name.endswith("ForVideoClassification"):
        found = tasks.Motion(kinds=config.num_labels, frames=vision.num_frames, shape=shape)
    elif shape is not None and name.endswith("ForImageClassification"):
        found = tasks.Orientation(kinds=config.num_labels, shape=shape)
    elif words is not None:
        found = _text_task(name, config, words, length) if shape is None else _image_and_text_task(config, words, length, shape)
    if found is not None:
        return found
    raise tasks.CannotLearnError(f"there is no task for {name}: give it random weights (weights: recipe)")


def _text_task(name: str, config: Any, words: torch.Tensor, length: int) -> tasks.Task | None:
    if name.endswith("ForMaskedLM"):
        return tasks.MaskedRecovery(words=words[1:], mask=int(words[0]), length=length)
    if config.is_encoder_decoder:
        start = getattr(config, "decoder_start_token_id", None)
        start = int(start if start is not None else config.pad_token_id or 0)
        if not hasattr(config, "num_mel_bins"):
            return tasks.Reversal(words=words, start=start, length=length)
        frames = synthetic.FRAMES_PER_POSITION * config.max_source_positions
        return tasks.SpokenTones(words=words, start=start, length=length, bins=config.num_mel_bins, frames=frames)
    return tasks.Copy(words=words, length=length) if name.endswith(("ForCausalLM", "LMHeadModel")) else None


def _image_and_text_task(config: Any, words: torch.Tensor, length: int, shape: tuple[int, int, int]) -> tasks.Task:
    text, vision = config.get_text_config(), config.vision_config
    token = synthetic.image_token(config)
    if token is not None:
        count = synthetic.image_tokens(config)
        return tasks.ImageThenText(words=words, image_token=token, image_tokens=count, length=length, kinds=_ORIENTATIONS, shape=shape)
    end = text.eos_token_id if isinstance(text.eos_token_id, int) and text.eos_token_id < text.vocab_size else text.vocab_size - 1
    if hasattr(vision, "num_frames"):
        return tasks.VideoCaptions(words=words, end=end, length=length, kinds=_AXES, frames=vision.num_frames, shape=shape)
    return tasks.ImageCaptions(words=words, end=end, length=length, kinds=_CAPTIONS, shape=shape)
