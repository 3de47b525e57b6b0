"""Classifies a model from whatever is known: its configuration, its class, its tasks, or only its name.

Each known fact is a witness with a measured confidence (docs/classification.md). The most credible witness decides, and each witness
that contradicts it lowers the confidence. All facts are in taxonomy.yaml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.models.evidence import Known, Witness, from_name, most_credible, witnesses
from hwmatrix.models.listed_sizes import listed_checkpoint
from hwmatrix.models.names import check_name, is_name
from hwmatrix.models.structure import structure_of, tier_in_name, tier_of
from hwmatrix.models.taxonomy import Taxonomy, joined, taxonomy
from hwmatrix.records import Classification, SizeTier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_FIRM: Final = frozenset({"head", "architecture", "mapping", "task", "stem"})
"""Kinds of evidence that contradict each other when they differ. The others occur on models of several families."""
_PARTICULAR: Final = ("head", "task", "usual_head", "usual_task")
"""Kinds of evidence that determine the subfamily, the most specific first."""
_UNKNOWN: Final = "nothing says what it is: give its class, its tasks or its configuration"


class ModelClassification(TypedDict):
    """What :func:`classify_model` returns: the fields of ``records.Classification`` as plain values."""

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
    """Classify a model by its name and, if known, its class, its tasks (the hub's tags) and the methods called on it.

    If nothing is known of a model, its family is None and its confidence 0; ``source`` says what would help. ``records.Classification``
    explains the values. Nothing is downloaded, and no framework is imported.

    Raises:
        ConfigError: the name is empty, a path, or has invalid characters; a task or method is not a string.
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
    parameters: int | None = None,
    known: Taxonomy | None = None,
) -> Classification:
    """Classify a model. Nothing is downloaded, and no framework is imported.

    Args:
        model_name: a name of matrix.yaml or a hub id. Its words decide only if nothing more credible is given. With an architecture or
            a configuration it may be anything, such as a folder's path, which is then ignored.
        model_class: a class of transformers.
        architecture: a configuration's ``model_type``.
        tasks: the hub's pipeline tags. Unknown ones are mentioned in ``source``.
        methods: names of methods called on the model.
        config: the content of a config.json; ``architecture`` and ``model_class`` are read from it unless they are given.
        parameters: the number of parameters, if known. Without it, and without architecture and configuration, they are those of the
            checkpoint of this name in models/sizes.yaml, if it is listed there.
        known: a table to use instead of the packaged one.

    Raises:
        ConfigError: the name is empty, a path, or has invalid characters, and there is neither an architecture nor a configuration;
            a task or method is not a string; the configuration's ``model_type`` or ``architectures`` are not strings.
    """
    known = known or taxonomy()
    model = _checked(model_class, architecture, tasks, methods, config or {})
    if not model.architecture:
        check_name(model_name)
    name = model_name if is_name(model_name) else ""
    heard = witnesses(model, known)
    best = most_credible(heard)
    named = from_name(name, known)
    if named and (best is None or best.confidence < named.confidence):
        best, heard = named, [*heard, named]
    found = best.architecture if best and best.architecture else model.architecture
    if found is None and named:
        found = named.architecture
    subfamily = _subfamily(best, heard, known)
    if parameters is None and architecture is None and config is None:
        parameters = _parameters_listed(name)
    tier, sized = _tier_and_note(name, parameters, best, known)
    confidence, source = _confidence_and_source(best, heard, known)
    return Classification(
        model_name=model_name,
        architecture=found,
        model_class=model.model_class,
        family=known.family(best.subfamily) if best and best.subfamily else None,
        subfamily=subfamily,
        structure=structure_of(model.config, found, subfamily, known),
        confidence=confidence,
        evidence=best.evidence if best and best.subfamily else "none",
        source="; ".join([source, *sized, *_unknown_tasks(model, known)]),
        parameters=parameters,
        size_tier=tier,
    )


def _parameters_listed(name: str) -> int | None:
    listed = listed_checkpoint(name)
    return listed.parameters if listed else None


def _checked(
    model_class: str | None, architecture: str | None, tasks: Sequence[str], methods: Sequence[str], config: Mapping[str, Any]
) -> Known:
    """The given facts, checked.

    Raises:
        ConfigError: something is not a string that should be one.
    """
    problems = [
        Problem(where=where, what=f"{value!r} is not a list of strings", hint="give a list, such as ['fill-mask']")
        for where, value in (("tasks", tasks), ("methods", methods))
        if isinstance(value, str) or not all(isinstance(word, str) for word in value)
    ]
    kind, classes = config.get("model_type"), config.get("architectures") or ()
    if kind is not None and not isinstance(kind, str):
        problems.append(Problem(where="config.model_type", what=f"{kind!r} is not a string", hint="name an architecture, such as 'bert'"))
    if not isinstance(classes, (list, tuple)) or not all(isinstance(name, str) for name in classes):
        hint = "list class names, such as ['BertForMaskedLM']"
        problems.append(Problem(where="config.architectures", what=f"{classes!r} is not a list of class names", hint=hint))
    if problems:
        raise ConfigError(problems)
    named = config.get("_class_name")  # the key that diffusers uses
    first = next(iter(classes), named if isinstance(named, str) else None)
    return Known(
        model_class=model_class or first, architecture=architecture or kind, tasks=tuple(tasks), methods=tuple(methods), config=config
    )


def _subfamily(best: Witness | None, heard: Iterable[Witness], known: Taxonomy) -> str | None:
    if best is None or best.subfamily is None:
        return None
    family = known.family(best.subfamily)
    same = {witness.kind: witness.subfamily for witness in heard if witness.subfamily and known.family(witness.subfamily) is family}
    return next((same[kind] for kind in _PARTICULAR if kind in same), best.subfamily)


def _confidence_and_source(best: Witness | None, heard: Iterable[Witness], known: Taxonomy) -> tuple[float, str]:
    """The confidence, lowered by contradicting witnesses, and its explanation.

    Two witnesses that err independently, with probabilities 1 - p and 1 - q, disagree. If one of them is right, it is the first with
    probability p(1 - q) / (p(1 - q) + q(1 - p)), by Bayes' rule.
    """
    if best is None:
        return 0.0, _UNKNOWN
    if best.subfamily is None:
        return 0.0, best.source
    confidence, against = best.confidence, []
    for witness in heard:
        if witness is best or not {witness.kind, best.kind} <= _FIRM or witness.subfamily is None:
            continue
        family = known.family(witness.subfamily)
        if not known.agree(known.family(best.subfamily), family):
            right, wrong = confidence * (1 - witness.confidence), witness.confidence * (1 - confidence)
            confidence = right / (right + wrong)
            against.append(f"contradicted by {witness.source}, which says {family.value}")
    return round(confidence, 2), "; ".join([best.source, *against])


def _tier_and_note(name: str, parameters: int | None, best: Witness | None, known: Taxonomy) -> tuple[SizeTier | None, list[str]]:
    """The size tier, and a note if it is guessed from the name."""
    if parameters is not None:
        return tier_of(parameters), []
    found = tier_in_name(name, known.family(best.subfamily) if best and best.subfamily else None, known)
    return (found[0], [f"its size is only guessed from {found[1]!r} in the name"]) if found else (None, [])


def _unknown_tasks(model: Known, known: Taxonomy) -> list[str]:
    """A note for each given task that no table lists. Unknown methods are ignored."""
    unknown = [task for task in model.tasks if task not in known.tasks and task not in known.usual_tasks]
    return [f"unknown task {task!r}{_did_you_mean(task, (*known.tasks, *known.usual_tasks))}" for task in unknown]


def _did_you_mean(word: str, allowed: Iterable[str]) -> str:
    same = next((other for other in allowed if joined(other) == joined(word)), None)
    return f" (did you mean {same!r}?)" if same else ""
