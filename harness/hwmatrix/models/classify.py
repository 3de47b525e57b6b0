"""What a model is, from whatever is known of it: its configuration, its class, what it is used for, or only its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypedDict

from hwmatrix.errors import ConfigError, FactoryError, Problem
from hwmatrix.models.families import _ARCHITECTURES, _HINTS, family_of
from hwmatrix.records import Classification, Family, Structure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_CONFIDENCE: Final = {"high": 0.95, "medium": 0.9, "low": 0.7}


class ModelClassification(TypedDict):
    """What :func:`classify_model` returns."""

    model_name: str
    family: str | None
    subfamily: str | None
    confidence: float
    evidence: str
    source: str
    architecture: str | None
    structure: str | None
    size_tier: str | None


def classify_model(
    model_name: str,
    model_class: str | None = None,
    tasks: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
) -> ModelClassification:
    """Classify a model by its name and, where known, its class, its tasks and the methods it is called by.

    Raises:
        ConfigError: the name is empty, a path, or has characters that no model name has.
    """
    found = classify(model_name, model_class=model_class, tasks=tasks or (), methods=methods or ())
    return ModelClassification(
        model_name=found.model_name,
        family=found.family.value if found.family else None,
        subfamily=found.subfamily,
        confidence=found.confidence,
        evidence=found.evidence,
        source=found.source,
        architecture=found.architecture,
        structure=found.structure.value if found.structure else None,
        size_tier=found.size_tier.value if found.size_tier else None,
    )


def classify(
    model_name: str,
    *,
    model_class: str | None = None,
    architecture: str | None = None,
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
) -> Classification:
    """Classify a model. Pure: nothing is downloaded, and no framework is imported.

    ``architecture`` is a configuration's ``model_type``, ``model_class`` a class of transformers, ``tasks`` are the hub's pipeline
    tags, ``config`` is the content of a config.json.

    Raises:
        ConfigError: the name is empty, a path, or has characters that no model name has.
    """
    check_name(model_name)
    del tasks, methods
    if config is not None:
        architecture = architecture or config.get("model_type")
        model_class = model_class or next(iter(config.get("architectures") or ()), None)
    evidence = "architecture" if architecture else "class"
    if architecture is None:
        architecture = _architecture_of(model_name)
        evidence = "class" if model_class else "name"
    try:
        verdict = family_of(architecture or "", model_class or "")
    except FactoryError:
        family, confidence, source, evidence = _hinted(model_name)
    else:
        family, confidence, source = verdict.family, _CONFIDENCE[verdict.confidence], verdict.source
    return Classification(
        model_name=model_name,
        architecture=architecture,
        model_class=model_class,
        family=family,
        subfamily=None,
        structure=_structure(config or {}),
        confidence=confidence,
        evidence=evidence,
        source=source,
    )


def check_name(model_name: str) -> None:
    """Refuse what cannot be a model's name.

    Raises:
        ConfigError: it is empty, a path, or has characters that no model name has.
    """
    if not _NAME.fullmatch(model_name):
        hint = "a name of matrix.yaml or a hub id (owner/name): letters, digits, '-', '_' and '.'"
        raise ConfigError([Problem(where="model name", what=f"{model_name!r} is no model's name", hint=hint)])


def _architecture_of(model_name: str) -> str | None:
    words = re.split(r"[^a-z0-9]+", model_name.lower())
    fitting = [name for name in _ARCHITECTURES if set(re.split(r"[^a-z0-9]+", name)) <= set(words)]
    return max(fitting, key=len, default=None)


def _hinted(model_name: str) -> tuple[Family | None, float, str, str]:
    hint = next((hint for hint in _HINTS if hint in re.split(r"[^a-z]+", model_name.lower())), None)
    if hint:
        return _HINTS[hint], 0.7, f"{hint!r} in the name", "name"
    return None, 0.0, "nothing says what it is: give its class, a task, or its configuration", "none"


def _structure(config: Mapping[str, Any]) -> Structure | None:
    if config.get("num_local_experts") or config.get("num_experts"):
        return Structure.MIXTURE_OF_EXPERTS
    if config.get("is_encoder_decoder"):
        return Structure.ENCODER_DECODER
    return None
