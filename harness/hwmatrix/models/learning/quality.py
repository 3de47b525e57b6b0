"""How well a model does its task on a target: the task's metric on held-out inputs, compared with the reference's answers.

Answers are read from outputs in one of five ways:

- ``tokens``: the largest logit at each position that has a label; an example is right if all of its positions are.
- ``class``: the largest logit of an example.
- ``ctc``: the largest logit of each frame, without repeats and then without blanks (best path decoding, Graves et al. 2006).
- ``pairs``: two embeddings, of an image and of a text; an image is right if the text nearest to it has its label.
- ``embedding``: one vector per example, or one per token, which are pooled; an example is right if the nearest other one has its label.

A checkpoint of unknown labels is compared with the reference's own answers (``Answers.own``).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

Array = np.ndarray[Any, np.dtype[Any]]
IGNORED: Final = -100
"""A label that does not count, as in PyTorch's cross-entropy."""
METRICS: Final = {
    "tokens": "exact_match",
    "class": "accuracy",
    "ctc": "exact_match",
    "pairs": "retrieval_accuracy",
    "embedding": "pair_ranking",
}
"""The usual name of the metric of each kind of answers."""
_OWN: Final = "top1_agreement"
_EMBEDDINGS: Final = frozenset({"pairs", "embedding"})
_PER_TOKEN: Final = 3
_Z95: Final = 1.959963984540054
"""The 97.5th percentile of the normal distribution."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """How answers are read from outputs: ``kind`` as above, ``outputs`` the names of the outputs, ``blank`` the blank class of CTC.

    ``own``: the right answers are not known, so the reference's count as right. Only for ``tokens`` and ``class``.
    """

    kind: str
    outputs: tuple[str, ...]
    blank: int | None = None
    own: bool = False

    @property
    def metric(self) -> str:
        """The name of the share of correct examples."""
        return _OWN if self.own else METRICS[self.kind]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quality:
    """The task's metric on a target.

    ``value`` and ``reference`` are the shares of examples that the target and the reference get right, ``low`` and ``high`` the 95 %
    interval of ``value`` (Wilson 1927). ``agreement`` is the share of answers that are the reference's, right or wrong. Where the
    reference's own answers count as right, ``reference`` is None and ``value`` is the agreement.

    ``kl`` is the mean Kullback-Leibler divergence of the target's probabilities from the reference's in nats, None for embeddings;
    ``cosine`` the mean cosine between the target's and the reference's outputs. ``inputs`` is how many examples were tried, and
    ``answered`` how many answers count: only the reference gets ``lost`` of them right, and only the target ``gained``.
    """

    metric: str
    value: float
    reference: float | None
    low: float
    high: float
    agreement: float
    kl: float | None
    cosine: float
    inputs: int
    answered: int
    lost: int
    gained: int


def quality(
    answers: Answers, actual: Mapping[str, Array], expected: Mapping[str, Array], labels: Array, weights: Array | None = None
) -> Quality:
    """Compare a target's outputs on held-out examples with the reference's. The first axis of all arrays is the example.

    ``weights`` (examples, tokens) sum to 1 and pool the vectors of tokens into one; None: there is nothing to pool.

    Raises:
        ValueError: an output is missing, has another shape than the reference's, or there are no examples.
    """
    for name in answers.outputs:
        if name not in actual or actual[name].shape != expected[name].shape:
            shape = list(actual[name].shape) if name in actual else "nothing"
            raise ValueError(f"{name} has {shape} instead of {list(expected[name].shape)}")
    if not len(labels):
        raise ValueError("there are no examples")
    if weights is not None:
        actual, expected = ({name: _pooled(found[name], weights) for name in answers.outputs} for found in (actual, expected))
    asked = _counted(answers, labels)
    same = (_choices(answers, actual, labels) == _choices(answers, expected, labels))[asked]
    right = same.reshape(-1) if answers.own else correct(answers, actual, labels)
    before = np.ones_like(right) if answers.own else correct(answers, expected, labels)
    low, high = wilson(int(right.sum()), len(right))
    return Quality(
        metric=answers.metric,
        value=float(right.mean()),
        reference=None if answers.own else float(before.mean()),
        low=low,
        high=high,
        agreement=float(same.mean()),
        kl=None if answers.kind in _EMBEDDINGS else _divergence(actual[answers.outputs[0]][asked], expected[answers.outputs[0]][asked]),
        cosine=float(np.mean([_cosines(actual[name], expected[name]) for name in answers.outputs])),
        inputs=len(labels),
        answered=len(right),
        lost=int((before & ~right).sum()),
        gained=int((right & ~before).sum()),
    )


def correct(answers: Answers, outputs: Mapping[str, Array], labels: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which examples are correct: (examples,)."""
    chosen = _choices(answers, outputs, labels)
    if answers.kind == "ctc":
        return np.array(
            [_ctc_decoded(row, answers.blank) == [int(label) for label in asked] for row, asked in zip(chosen, labels, strict=True)]
        )
    if answers.kind in _EMBEDDINGS:
        return np.asarray(labels[chosen] == labels)
    right = (chosen == labels) | (labels == IGNORED)
    return np.asarray(right.reshape(len(labels), -1).all(axis=1))


def wilson(right: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share, by Wilson's score: it stays within 0 and 1, and has a width even if all or none are correct."""
    share, square = right / count, _Z95**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _Z95 * math.sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def _choices(answers: Answers, outputs: Mapping[str, Array], labels: Array) -> Array:
    """The class chosen at each position.

    For pairs, the index of the text nearest to each image (the first of equal captions); for embeddings, that of the nearest
    other embedding.
    """
    if answers.kind == "embedding":
        rows = _unit(outputs[answers.outputs[0]].astype(np.float64))
        near = rows @ rows.T
        np.fill_diagonal(near, -np.inf)
        return np.asarray(near.argmax(axis=1))
    if answers.kind != "pairs":
        return np.asarray(outputs[answers.outputs[0]].argmax(axis=-1))
    images, texts = (_unit(outputs[name].astype(np.float64)) for name in answers.outputs)
    _, first, caption = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(first[(images @ texts[first].T).argmax(axis=1)]) if len(first) > 1 else np.asarray(first[caption])


def _counted(answers: Answers, labels: Array) -> Any:
    """An index of the positions that count: those with a label; for CTC and pairs, all."""
    return labels != IGNORED if answers.kind in {"tokens", "class"} else slice(None)


def _pooled(states: Array, weights: Array) -> Array:
    """Vectors of tokens (examples, tokens, width) as one per example; vectors of examples stay as they are."""
    return np.asarray((states * weights[..., None]).sum(axis=1)) if states.ndim == _PER_TOKEN else states


def _ctc_decoded(frames: Array, blank: int | None) -> list[int]:
    """Classes of frames without repeats, then without blanks."""
    kept = [int(value) for index, value in enumerate(frames) if index == 0 or value != frames[index - 1]]
    return [value for value in kept if value != blank]


def _divergence(actual: Array, expected: Array) -> float:
    """Mean KL(reference || target) over positions in nats, from logits (..., classes)."""
    ours, theirs = _log_softmax(actual), _log_softmax(expected)
    return max(0.0, float(np.mean(np.sum(np.exp(theirs) * (theirs - ours), axis=-1))))


def _log_softmax(logits: Array) -> Array:
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _cosines(actual: Array, expected: Array) -> float:
    """The cosine similarity of both, averaged over the examples."""
    ours, theirs = (_unit(array.astype(np.float64).reshape(len(array), -1)) for array in (actual, expected))
    return float(np.mean(np.clip((ours * theirs).sum(axis=1), -1.0, 1.0)))


def _unit(rows: Array) -> Array:
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))
