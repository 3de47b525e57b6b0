"""What a checkpoint is evaluated on, and by which metric: chosen by the outputs that its model gives for samples."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from hwmatrix.basics.json_text import read_json
from hwmatrix.models.checkpoint import POOLING
from hwmatrix.models.learning.quality import IGNORED, Answers
from hwmatrix.models.samples.processing import (
    CALIBRATION,
    NoSamplesError,
    Processor,
    Sample,
    calibration_samples,
    evaluation_samples,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from hwmatrix.records import ModelPlan

_Tensor: TypeAlias = "torch.Tensor"
_Tensors: TypeAlias = "dict[str, torch.Tensor]"
_LOGITS: Final = "logits"
_PAIRED: Final = ("image_embeds", "text_embeds")
_TOKENS: Final = "last_hidden_state"
_POOLED: Final = ("pooler_output", "image_embeds", "text_embeds", "embeddings")
_MOST: Final = 32
_MOST_WITH_MEDIA: Final = 16
"""Pictures and sounds take long."""
_FEWEST: Final = 4
_BUDGET: Final = 64 * 2**20
"""Bytes of reference outputs that a bundle holds for the examples, within the two numbers above: logits over 50,000 tokens are large."""
_MATRIX: Final = 2
_LOGITS_PER_PLACE: Final = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Examples of a checkpoint, each a batch: arguments of ``forward``, and what the answers are compared with.

    ``labels`` are the right answers; None where the reference's own answers count as right. ``weights`` (batch, tokens) say how much each
    token counts in the pooled vector; None: outputs are not pooled.
    """

    answers: Answers
    detail: str
    examples: tuple[_Tensors, ...]
    labels: tuple[_Tensor, ...] | None
    weights: tuple[_Tensor, ...] | None


class CheckpointSamples:
    """Samples for one checkpoint, prepared by its own processor."""

    def __init__(self, plan: ModelPlan, processor: Processor) -> None:
        """Store the arguments."""
        self._plan, self._processor = plan, processor
        self._folder = Path(plan.weights)

    @classmethod
    def read(cls, model: torch.nn.Module, plan: ModelPlan) -> CheckpointSamples:
        """Read the processor from the folder of the plan's weights.

        Raises:
            NoSamplesError: the checkpoint has no processor that can be used.
        """
        return cls(plan, Processor.read(model, plan, Path(plan.weights)))

    @functools.cached_property
    def inputs(self) -> _Tensors:
        """The arguments of one forward pass on the first sample.

        Raises:
            NoSamplesError: the processor fails, or does not give what the model needs.
        """
        return next(self._prepared(evaluation_samples()))

    @functools.cached_property
    def calibration(self) -> tuple[_Tensors, ...]:
        """Inputs that are not evaluated: texts that fill the sequence length and padded sentences in turn.

        Without padding, the value range of a mask would be a single value, and a quantized graph would ignore all masks.

        Raises:
            NoSamplesError: as :attr:`inputs`.
        """
        samples = calibration_samples()
        filled = self._prepared(samples)
        padded = self._prepared(samples, whole_sentences=True) if self._processor.pads else filled
        return tuple(next(padded if number % 2 else filled) for number in range(CALIBRATION))

    @property
    def processor(self) -> str:
        """The class of the processor."""
        return self._processor.name

    def evaluation(self, expected: _Tensors) -> Evaluation:
        """The examples and the metric for a model with these reference outputs.

        Raises:
            NoSamplesError: no metric fits the outputs.
        """
        import torch

        answers = self._answers(expected)
        size = sum(expected[name].numel() * expected[name].element_size() for name in answers.outputs)
        most = _MOST if "input_ids" in self.inputs and answers.kind != "pairs" else _MOST_WITH_MEDIA
        count = min(most, max(_FEWEST, _BUDGET // max(size, 1)))
        pooled = answers.kind == "embedding" and expected[answers.outputs[0]].dim() > _MATRIX
        prepared = self._prepared(evaluation_samples(), whole_sentences=answers.kind == "embedding")
        examples = tuple(itertools.islice(prepared, count))
        batch = self._plan.batch
        labels = None
        if not answers.own:
            of_rows = [row // 2 if answers.kind == "embedding" else sample.kind for row, sample in _numbered(count * batch)]
            labels = tuple(torch.tensor(of_rows).view(count, batch))
        weights = tuple(self._weights(example, expected[answers.outputs[0]]) for example in examples) if pooled else None
        return Evaluation(answers=answers, detail=self._detail(answers), examples=examples, labels=labels, weights=weights)

    def _prepared(self, samples: Iterator[Sample], *, whole_sentences: bool = False) -> Iterator[_Tensors]:
        while True:
            yield self._processor.inputs(list(itertools.islice(samples, self._plan.batch)), whole_sentences=whole_sentences)

    def _answers(self, expected: _Tensors) -> Answers:
        logits = expected.get(_LOGITS)
        if logits is not None and logits.is_floating_point() and logits.dim() in {_MATRIX, _LOGITS_PER_PLACE}:
            return Answers(kind="class" if logits.dim() == _MATRIX else "tokens", outputs=(_LOGITS,), own=True)
        if all(name in expected and expected[name].dim() == _MATRIX for name in _PAIRED):
            return Answers(kind="pairs", outputs=_PAIRED)
        texts = "input_ids" in self.inputs
        if texts and _TOKENS in expected:
            return Answers(kind="embedding", outputs=(_TOKENS,))
        pooled = next((name for name in _POOLED if name in expected and expected[name].dim() == _MATRIX), None)
        if pooled is not None:
            return Answers(kind="embedding", outputs=(pooled,))
        if _TOKENS in expected and expected[_TOKENS].dim() == _LOGITS_PER_PLACE:
            return Answers(kind="embedding", outputs=(_TOKENS,))
        raise NoSamplesError(f"no metric fits its outputs ({', '.join(sorted(expected))})")

    def _weights(self, example: _Tensors, states: torch.Tensor) -> torch.Tensor:
        """How much each token counts in the pooled vector: the mean of all that are no padding, or the first, as the checkpoint says."""
        import torch

        shape = states.shape[:2]
        mask = example.get("attention_mask")
        weights = torch.ones(shape) if mask is None or mask.shape != shape else mask.float()
        if "input_ids" in example and _pools_first_token(self._folder):
            weights = torch.zeros(shape)
            weights[:, 0] = 1.0
        return weights / weights.sum(1, keepdim=True)

    def _detail(self, answers: Answers) -> str:
        by = f"samples prepared by its own {self.processor}"
        return f"against the reference's own answers, on {by}" if answers.own else f"on {by}"


def _numbered(count: int) -> Iterable[tuple[int, Sample]]:
    return enumerate(itertools.islice(evaluation_samples(), count))


def _pools_first_token(folder: Path) -> bool:
    try:
        return bool(read_json((folder / POOLING).read_bytes()).get("pooling_mode_cls_token"))
    except (OSError, ValueError, AttributeError):
        return False


def own_labels(answers: Answers, outputs: _Tensors, example: _Tensors) -> torch.Tensor:
    """The reference's own answers: (batch,) or (batch, places). Padding is not asked for."""
    import torch

    chosen = outputs[answers.outputs[0]].argmax(-1)
    mask = example.get("attention_mask")
    if "decoder_input_ids" not in example and mask is not None and mask.shape == chosen.shape:
        chosen = torch.where(mask.bool(), chosen, torch.tensor(IGNORED))
    return chosen
