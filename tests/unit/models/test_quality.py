"""Reading answers from outputs, and comparing the task's metric with the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hwmatrix.models.learning.quality import IGNORED, Answers, correct, quality, wilson

CLASSES = Answers(kind="class", outputs=("logits",))
TOKENS = Answers(kind="tokens", outputs=("logits",))
SPEECH = Answers(kind="ctc", outputs=("logits",), blank=0)
PAIRS = Answers(kind="pairs", outputs=("image_embeds", "text_embeds"))
SENTENCES = Answers(kind="embedding", outputs=("states",))


def one_hot(classes: list[int] | list[list[int]], count: int = 4, height: float = 1.0) -> np.ndarray:
    return height * np.eye(count, dtype=np.float32)[np.array(classes)]


def test_classes_are_right_by_the_largest_logit() -> None:
    labels = np.array([0, 1, 2, 3])
    found = quality(CLASSES, {"logits": one_hot([0, 1, 2, 0])}, {"logits": one_hot([0, 1, 0, 0])}, labels)
    assert (found.metric, found.value, found.reference, found.agreement, found.inputs) == ("accuracy", 0.75, 0.5, 0.75, 4)


def test_tokens_are_right_if_all_requested_ones_are() -> None:
    labels = np.array([[1, 2, IGNORED], [3, 0, IGNORED]])
    right = one_hot([[1, 2, 0], [3, 0, 1]])
    half = one_hot([[1, 2, 3], [3, 1, 1]])
    assert correct(TOKENS, {"logits": right}, labels).tolist() == [True, True]
    assert correct(TOKENS, {"logits": half}, labels).tolist() == [True, False]
    found = quality(TOKENS, {"logits": half}, {"logits": right}, labels)
    assert (found.metric, found.value, found.reference) == ("exact_match", 0.5, 1.0)
    assert found.agreement == 0.75  # of four positions with a label; the others differ too, but do not count


def test_ctc_drops_repeats_and_then_blanks() -> None:
    labels = np.array([[1, 2], [1, 1], [3, 1]])
    frames = one_hot([[0, 1, 1, 2], [1, 0, 1, 1], [3, 2, 1, 0]])
    assert correct(SPEECH, {"logits": frames}, labels).tolist() == [True, True, False]


def test_an_image_is_right_if_the_nearest_text_has_its_caption() -> None:
    labels = np.array([5, 7, 5])
    texts = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    images = np.array([[9.0, 1.0], [0.2, 0.1], [3.0, 2.0]])  # vector lengths do not count; the second image is nearest to the wrong text
    assert correct(PAIRS, {"image_embeds": images, "text_embeds": texts}, labels).tolist() == [True, False, True]
    found = quality(PAIRS, {"image_embeds": images, "text_embeds": texts}, {"image_embeds": texts, "text_embeds": texts}, labels)
    assert (found.metric, found.reference, found.kl) == ("retrieval_accuracy", 1.0, None)
    assert found.agreement == pytest.approx(2 / 3)


def test_a_sentence_is_right_if_the_nearest_other_one_is_its_pair() -> None:
    labels = np.array([0, 0, 1, 1])
    pairs = np.array([[1.0, 0.0], [9.0, 1.0], [0.0, 1.0], [0.1, 2.0]])
    crossed = pairs[[0, 2, 1, 3]]
    found = quality(SENTENCES, {"states": crossed}, {"states": pairs}, labels)
    assert (found.metric, found.value, found.reference, found.kl) == ("pair_ranking", 0.0, 1.0, None)
    assert found.agreement == 0.0
    assert quality(SENTENCES, {"states": pairs}, {"states": pairs}, labels).agreement == 1.0


def test_vectors_of_tokens_are_pooled_by_weights() -> None:
    labels = np.array([0, 0])
    expected = np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]])
    actual = expected.copy()
    actual[:, 1] = -5.0  # padding, whose vectors do not count
    first = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert quality(SENTENCES, {"states": actual}, {"states": expected}, labels, first).cosine == pytest.approx(1.0)
    mean = np.full((2, 2), 0.5)
    assert quality(SENTENCES, {"states": actual}, {"states": expected}, labels, mean).cosine < 0.0


def test_without_known_answers_those_of_the_reference_count_as_right() -> None:
    own = Answers(kind="tokens", outputs=("logits",), own=True)
    labels = np.array([[1, 2, IGNORED], [3, 0, 1]])
    theirs, ours = one_hot([[1, 2, 0], [3, 0, 1]]), one_hot([[1, 2, 3], [3, 1, 1]])
    found = quality(own, {"logits": ours}, {"logits": theirs}, labels)
    assert (found.metric, found.reference, found.inputs) == ("top1_agreement", None, 2)
    assert found.value == found.agreement == pytest.approx(4 / 5)
    assert (found.low, found.high) == wilson(4, 5)


def test_divergence_and_cosine_match_their_formulas() -> None:
    labels = np.array([0])
    expected, actual = np.array([[0.0, 0.0]]), np.array([[math.log(3.0), 0.0]])
    found = quality(CLASSES, {"logits": actual}, {"logits": expected}, labels)
    assert found.kl == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    same = quality(CLASSES, {"logits": actual}, {"logits": actual}, labels)
    assert (same.kl, same.cosine, same.agreement) == (0.0, pytest.approx(1.0), 1.0)
    opposite = quality(CLASSES, {"logits": -actual}, {"logits": actual}, labels)
    assert opposite.cosine == pytest.approx(-1.0)


def test_large_logits_have_a_finite_divergence() -> None:
    far = quality(CLASSES, {"logits": one_hot([1], height=1e5)}, {"logits": one_hot([0], height=1e5)}, np.array([0]))
    assert far.kl == pytest.approx(1e5)


@pytest.mark.parametrize(("right", "count", "low", "high"), [(64, 64, 0.9434, 1.0), (0, 64, 0.0, 0.0566), (5, 10, 0.2366, 0.7634)])
def test_the_interval_is_wilson_s(right: int, count: int, low: float, high: float) -> None:
    assert wilson(right, count) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_outputs_that_cannot_be_read_are_named() -> None:
    labels = np.array([0])
    with pytest.raises(ValueError, match="logits has nothing"):
        quality(CLASSES, {}, {"logits": one_hot([0])}, labels)
    with pytest.raises(ValueError, match="there are no examples"):
        quality(CLASSES, {"logits": np.zeros((0, 4))}, {"logits": np.zeros((0, 4))}, labels[:0])
