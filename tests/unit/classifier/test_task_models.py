"""Which models can do a task."""

from __future__ import annotations

import pytest
from factory_advice import classification

from hwmatrix.classifier.task_models import Fit, fit_of, known_tasks, subfamily_for
from hwmatrix.errors import ConfigError


@pytest.mark.parametrize(
    ("task", "subfamily", "fit"),
    [
        ("fill-mask", "masked_lm", Fit.MADE_FOR_IT),
        ("text-classification", "masked_lm", Fit.ANOTHER_HEAD),
        ("text-generation", "causal_lm", Fit.MADE_FOR_IT),
        ("text-generation", "masked_lm", None),
        ("image-classification", "image_classifier", Fit.MADE_FOR_IT),
        ("object-detection", "image_classifier", None),
        ("automatic-speech-recognition", "speech_recognizer", Fit.MADE_FOR_IT),
        ("image-classification", None, None),
    ],
)
def test_how_a_model_fits_a_task(task: str, subfamily: str | None, fit: Fit | None) -> None:
    assert fit_of(task, classification(subfamily=subfamily)) is fit


def test_an_unknown_task_suggests_the_closest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'text-generation'"):
        fit_of("text-generaton", classification(subfamily="causal_lm"))
    with pytest.raises(ConfigError, match="'' is not a known task"):
        subfamily_for("")


def test_every_known_task_has_a_kind_of_model() -> None:
    assert len(known_tasks()) > 40
    assert all(subfamily_for(task) for task in known_tasks())
