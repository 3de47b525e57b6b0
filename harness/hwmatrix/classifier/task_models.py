"""The models for a task, in the order of recommendation, and suitable models that are not recommended."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

from hwmatrix.classifier.answers import ReasonAnswer, RefusedModel, TaskModel, requirements_answer
from hwmatrix.classifier.tasks import Fit, fit_of
from hwmatrix.knowledge.compatibility import LEVELS, Subject
from hwmatrix.knowledge.evidence import Nearness
from hwmatrix.knowledge.profiles import HardwareProfile
from hwmatrix.knowledge.recommend import Choice, Reason, absence, choose
from hwmatrix.records import Backend, Basis

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model that could be recommended, and what is known of it on each hardware."""

    subject: Subject
    profiles: Mapping[Backend, HardwareProfile]


class Recommended(TypedDict):
    """The models for a task: those that are recommended, the best first, and those that fit it and are not."""

    recommendations: list[TaskModel]
    not_recommended: list[RefusedModel]


def recommend(task: str, candidates: Sequence[Candidate], only: Sequence[Backend] = ()) -> Recommended:
    """Sort out which models a task can be given to, on this hardware (``only`` empty: on any that is here).

    The order: what was made for the task; what was measured itself, then by its architecture, by level and speed; what fits into the
    memory; what is expected; the order given.

    Raises:
        ConfigError: there is no such task.
    """
    ranked: list[tuple[tuple[float, ...], TaskModel]] = []
    refused: list[RefusedModel] = []
    for position, candidate in enumerate(candidates):
        fit = fit_of(task, candidate.subject.classification)
        if fit is None:
            continue
        choice, available = _choice(candidate, only)
        if choice.hardware is None:
            refused.append(RefusedModel(model_name=candidate.subject.model_name, fit=fit.value, reasons=_told(choice.reasons)))
            continue
        profile = candidate.profiles[choice.hardware]
        answer = _answer(candidate, choice, profile, fit=fit, available=available)
        ranked.append(((list(Fit).index(fit), not available, *_rank(profile), position), answer))
    ranked.sort(key=lambda each: each[0])
    return Recommended(recommendations=[answer for _, answer in ranked], not_recommended=refused)


def _choice(candidate: Candidate, only: Sequence[Backend]) -> tuple[Choice, bool]:
    """The hardware for a model: one that is here, or, where some was asked for, the best of it wherever it is."""
    found = candidate.subject.classification
    here = choose(found, candidate.profiles, only)
    if here.hardware is not None or not only:
        return here, True
    anywhere = choose(found, candidate.profiles, only, absent_too=True)
    return (here, True) if anywhere.hardware is None else (anywhere, False)


def _rank(profile: HardwareProfile) -> tuple[float, ...]:
    known = profile.compatibility
    nearness = list(Nearness).index(known.nearness) if known.nearness in {Nearness.MODEL, Nearness.ARCHITECTURE} else len(Nearness)
    measured = known.basis is Basis.MEASURED
    speed = -(known.speed_up or 0.0)
    fits = {True: 0, None: 1, False: 2}[profile.fits]
    return (nearness, known.order, speed, fits) if measured else (nearness, len(LEVELS), 0.0, fits, known.order)


def _answer(candidate: Candidate, choice: Choice, profile: HardwareProfile, *, fit: Fit, available: bool) -> TaskModel:
    subject, found = candidate.subject, candidate.subject.classification
    return TaskModel(
        model_name=subject.model_name,
        hub_id=subject.plan.hub_id if subject.plan is not None else None,
        family=found.family.value if found.family else None,
        subfamily=found.subfamily,
        confidence=found.confidence,
        fit=fit.value,
        recommended_hardware=profile.hardware.value,
        available=available,
        resource_requirements=requirements_answer(profile, subject.model_name),
        basis=choice.basis,
        nearness=choice.nearness.value if choice.nearness else None,
        reasons=_told((*choice.reasons, *([] if available else [absence(profile)]))),
    )


def _told(reasons: Sequence[Reason]) -> list[ReasonAnswer]:
    return [{"basis": reason.basis, "text": reason.text} for reason in reasons]
