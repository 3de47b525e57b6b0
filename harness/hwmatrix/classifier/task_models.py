"""The models for a task, in the order of recommendation, and suitable models that are not recommended."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.resources
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self

import pydantic
from pydantic.dataclasses import dataclass

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.basics.plain_yaml import parsed
from hwmatrix.classifier.answers import ReasonAnswer, RefusedModel, TaskModel, requirements_answer
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.knowledge.compatibility import LEVELS, Subject
from hwmatrix.knowledge.evidence import Nearness
from hwmatrix.knowledge.measured_choice import ChoiceEntry
from hwmatrix.knowledge.profiles import HardwareProfile
from hwmatrix.knowledge.recommend import Choice, Reason, absence, choose
from hwmatrix.models.taxonomy import taxonomy
from hwmatrix.records import Backend, Basis

if TYPE_CHECKING:
    from hwmatrix.records import Classification


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model that could be recommended, its profile on each hardware, and its measured cells, ranked."""

    subject: Subject
    profiles: Mapping[Backend, HardwareProfile]
    measured: Sequence[ChoiceEntry] = ()


def recommend(task: str, candidates: Sequence[Candidate], only: Sequence[Backend] = ()) -> tuple[list[TaskModel], list[RefusedModel]]:
    """The models for a task on the hardware ``only`` (empty: any of this system), the best first; and suitable ones that fit nowhere.

    They are sorted by: made for the task; hardware that is available; measurements of the model itself, then of its architecture, by level
    and speed; fits into memory; expectations; the given order.

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
            refused.append(RefusedModel(model_name=candidate.subject.model_name, fit=fit.value, reasons=_reason_answers(choice.reasons)))
            continue
        profile = candidate.profiles[choice.hardware]
        answer = _answer(candidate, choice, profile, fit=fit, available=available)
        ranked.append(((list(Fit).index(fit), not available, *_rank(profile), position), answer))
    ranked.sort(key=lambda each: each[0])
    return [answer for _, answer in ranked], refused


def _choice(candidate: Candidate, only: Sequence[Backend]) -> tuple[Choice, bool]:
    """The hardware for a model, and whether it is available: one of this system, else the best requested one."""
    found, measured = candidate.subject.classification, candidate.measured
    here = choose(found, candidate.profiles, only, measured=measured)
    if here.hardware is not None or not only:
        return here, True
    anywhere = choose(found, candidate.profiles, only, measured=measured, absent_too=True)
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
        reasons=_reason_answers((*choice.reasons, *([] if available else [absence(profile)]))),
    )


def _reason_answers(reasons: Sequence[Reason]) -> list[ReasonAnswer]:
    return [{"basis": reason.basis, "text": reason.text} for reason in reasons]


class Fit(enum.StrEnum):
    """How a model fits a task, the better first."""

    MADE_FOR_IT = "made for it"
    ANOTHER_HEAD = "with another head, which has to be trained"


@dataclass(frozen=True, kw_only=True, config=pydantic.ConfigDict(extra="forbid"))
class _Tasks:
    version: Literal[1]
    with_another_head: dict[str, tuple[str, ...]]

    @pydantic.model_validator(mode="after")
    def _check_subfamilies(self) -> Self:
        named = {*self.with_another_head, *(name for names in self.with_another_head.values() for name in names)}
        if unknown := sorted(named - taxonomy().subfamilies.keys()):
            raise ValueError(f"not among the subfamilies: {', '.join(unknown)}")
        return self


def known_tasks() -> tuple[str, ...]:
    """All known tasks: the hub's pipeline tags."""
    return tuple(sorted({*taxonomy().tasks, *taxonomy().usual_tasks}))


def subfamily_for(task: str) -> str:
    """The subfamily of models made for a task.

    Raises:
        ConfigError: there is no such task; the hint names the nearest.
    """
    found = taxonomy().tasks.get(task) or taxonomy().usual_tasks.get(task)
    if found is None:
        raise ConfigError([Problem(where="task", what=f"{task!r} is not a known task", hint=near_miss(task, known_tasks()))])
    return found


def fit_of(task: str, classification: Classification) -> Fit | None:
    """How a model fits a task; None if it does not.

    Raises:
        ConfigError: there is no such task.
    """
    wanted = subfamily_for(task)
    if classification.subfamily == wanted:
        return Fit.MADE_FOR_IT
    return Fit.ANOTHER_HEAD if wanted in _tasks_data().with_another_head.get(classification.subfamily or "", ()) else None


@functools.cache
def _tasks_data() -> _Tasks:
    text = (importlib.resources.files("hwmatrix.classifier") / "tasks.yaml").read_text(encoding="utf-8")
    return pydantic.TypeAdapter(_Tasks).validate_python(parsed(text))
