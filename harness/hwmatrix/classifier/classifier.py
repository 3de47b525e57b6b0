"""Models and hardware together: what a model is, where it works, what it needs there, and where to run it here.

Every answer names its basis. Measurements come first, then requirements, then expectations (docs/integration.md).
"""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hwmatrix.basics.cache_folder import cache_folder
from hwmatrix.classifier.answers import (
    CompatibilityAnswer,
    ModelAnswer,
    PoolAnswer,
    TaskAnswer,
    compatibility_answer,
    expectations,
    requirements_answer,
    template_for,
)
from hwmatrix.classifier.cache import ClassificationCache, Question
from hwmatrix.classifier.pool_config import pool_config
from hwmatrix.classifier.task_models import Candidate, fit_of, recommend
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.hardware.api import HardwareDetector
from hwmatrix.knowledge.compatibility import Subject, compatibility_of
from hwmatrix.knowledge.measured_choice import Bounds, ChoiceEntry, best_on, choice_data, choices, of_model
from hwmatrix.knowledge.names import DEFAULT_MATRIX, look_up, shipped_model, shipped_names
from hwmatrix.knowledge.on_record import LATEST, OnRecord, on_record, state_of
from hwmatrix.knowledge.priorities import backend_of
from hwmatrix.knowledge.profiles import HardwareProfile, Override, availability_of, instructions_of, parse_overrides
from hwmatrix.knowledge.recommend import BASELINE, DETECTED, Reason, choose
from hwmatrix.knowledge.requirements import requirements_for
from hwmatrix.matrix.load import load
from hwmatrix.models.classify import classify
from hwmatrix.models.names import is_name
from hwmatrix.models.structure import tier_of
from hwmatrix.records import Backend, Classification, Detection, Size
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.knowledge.evidence import Evidence
    from hwmatrix.matrix.spec import MatrixSpec
    from hwmatrix.records import ModelPlan, SizeTier


class Detector(Protocol):
    """The interface of a detector: ``hwmatrix.hardware.api.HardwareDetector`` is one."""

    def detect(self) -> Mapping[str, Detection]:
        """The detected hardware, by hardware type."""

    def get_torch_device_with_priority(self, priority_list: Sequence[str] | None = None, preferred_index: int = 0) -> str:
        """PyTorch's name of the first device of a list that it can use here."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """The sources of answers, for callers whose sources are not in the working folder.

    ``matrix`` None means ./matrix.yaml, if it exists; ``cache`` None means the project's cache folder (HWMATRIX_CACHE);
    ``detector`` None means this machine's. ``database`` is a merged database and the only source of measurements; None means the usual
    sources: ``reports`` (None: ./reports/latest), ./reports/published, and the packaged published results.
    """

    matrix: Path | None = None
    database: Path | None = None
    reports: Path | None = None
    cache: Path | None = None
    detector: Detector | None = None


class HardwareAwareModelClassifier:
    """Classifies models with regard to hardware: this machine's, and hardware with recorded measurements.

    Args:
        hardware_cache_path: the cache file of the detector; None: its default.
        model_db_path: a SQLite file that caches classifications; None: they are not cached.
        force_refresh: detect and classify again, whatever is cached.
        sources: other sources to read from.
        bounds: limits of memory, loss and latency for :meth:`measured_choices` and the precision of requirements; None: no limits.

    Raises:
        ConfigError: a limit is not valid.

    Nothing is read before the first question. Measurements are read again when the database changes.
    """

    def __init__(
        self,
        hardware_cache_path: Path | str | None = None,
        model_db_path: Path | str | None = None,
        force_refresh: bool = False,  # noqa: FBT001, FBT002 - the documented signature
        *,
        sources: Sources | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        if bounds is not None and (problems := bounds.problems()):
            raise ConfigError(problems)
        self._bounds = bounds
        self._sources = sources or Sources()
        self._detector = self._sources.detector or HardwareDetector(hardware_cache_path, force_refresh)
        self._kept = ClassificationCache(Path(model_db_path)) if model_db_path is not None else None
        self._force_refresh = force_refresh

    def classify_model(
        self,
        model_name: str,
        model_class: str | None = None,
        tasks: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        hw_compat_override: Mapping[str, Any] | None = None,
    ) -> ModelAnswer:
        """What a model is, where it works, where to run it here, and what it needs there.

        Args:
            model_name: an entry of matrix.yaml, a hub id, a checkpoint's folder, or only a name.
            model_class: its class in transformers, if known.
            tasks: the hub's task tags.
            methods: the methods called on it.
            hw_compat_override: facts that override what is known: ``{hardware: {"compatible": bool, "memory_usage": {"peak": MB}}}``.

        Raises:
            ConfigError: the name or the profile is invalid; lists every problem.
            StoreError: the database, or the cache of classifications, is not ours.
        """
        overrides = parse_overrides(hw_compat_override)
        subject = self._subject(model_name, model_class, words(tasks or (), "tasks"), words(methods or (), "methods"))
        measured = self._measured(subject)
        profiles = self._profiles(subject, self._detector.detect(), measured, overrides)
        choice = choose(subject.classification, profiles, measured=measured, limits=bool(self._bounds))
        found = subject.classification
        profile = profiles[choice.hardware or BASELINE]
        needs, tier = requirements_answer(profile, model_name), _size_tier(subject, profile)
        device, doubts = self._torch_device(choice.hardware)
        return ModelAnswer(
            model_name=model_name,
            family=found.family.value if found.family else None,
            subfamily=found.subfamily,
            confidence=found.confidence,
            classification={
                "architecture": found.architecture,
                "model_class": found.model_class,
                "structure": found.structure.value if found.structure else None,
                "size_tier": tier.value if tier else None,
                "evidence": found.evidence,
                "source": found.source,
            },
            hardware_profile={hardware.value: profile.as_dict() for hardware, profile in profiles.items()},
            recommended_hardware=choice.hardware.value if choice.hardware else None,
            recommended_template=template_for(found.family),
            resource_requirements=needs,
            torch_device=device,
            basis={
                "family": found.evidence,
                "recommended_hardware": choice.basis,
                "recommended_template": found.evidence,
                "resource_requirements": needs["basis"],
            },
            nearness=choice.nearness.value if choice.nearness else None,
            reasons=[{"basis": reason.basis, "text": reason.text} for reason in (*choice.reasons, *doubts)],
            expected=expectations(model_name),
            evidence=self._on_record().answer(),
        )

    def measured_choices(self, model_name: str) -> list[dict[str, Any]]:
        """The measured cells of a model, one choice for each machine and number of threads, in each the best within the limits first.

        They are those with the model's usual batch and length in full size, else those that there are. Each is an entry of ``measured`` in
        the schema ``hwmatrix/fit/1``.

        Raises:
            ConfigError: the name is invalid.
            StoreError: as for :meth:`classify_model`.
        """
        return [choice_data(each) for each in self._measured(self._subject(model_name))]

    def recommend_model_for_task(self, task: str, hardware_constraints: Sequence[str] | None = None) -> TaskAnswer:
        """The models of matrix.yaml and of the local database (without both, the packaged ones) for a task, the best first.

        Args:
            task: a pipeline tag of the hub, such as ``text-generation``.
            hardware_constraints: consider only this hardware. It need not be on this system, but hardware that is comes first.

        Models made for the task come first. Within these, models measured on the hardware come first, by level and speed; then models that
        fit into its memory; then models that are expected to work. A model that fits nowhere is listed with the reason, but not
        recommended.

        Raises:
            ConfigError: there is no such task or hardware; the hint names the nearest.
            StoreError: as for :meth:`classify_model`.
        """
        wanted = words(hardware_constraints or (), "hardware_constraints")
        only = tuple(dict.fromkeys(backend_of(hardware) for hardware in wanted))
        names = self._names() or shipped_names()
        machine = self._detector.detect()
        suitable = [subject for subject in map(self._subject, names) if fit_of(task, subject.classification) is not None]
        recommended, others = recommend(task, [self._candidate(subject, machine) for subject in suitable], only)
        return TaskAnswer(
            task=task,
            hardware_constraints=list(wanted) if hardware_constraints is not None else None,
            recommendations=recommended,
            not_recommended=others,
            evidence=self._on_record().answer(),
        )

    def get_optimal_resource_pool_config(self, models: Sequence[str]) -> PoolAnswer:
        """The configuration of a resource pool for these models: low-memory mode, timeout, memory, and the hardware for all of them.

        Raises:
            ConfigError: the list is empty, or a name is invalid.
            StoreError: as for :meth:`classify_model`.
        """
        names = words(models, "models")
        if not names:
            raise ConfigError([Problem(where="models", what="the list is empty", hint="name one model or more")])
        machine = self._detector.detect()
        members = [self._candidate(self._subject(name), machine) for name in names]
        return pool_config(members, lambda hardware: self._torch_device(hardware)[0], self._on_record().answer())

    def get_compatible_models_for_hardware(self, models: Sequence[str], hardware: str) -> list[str]:
        """The models that work on a kind of hardware, whether it is on this system or not, in the given order.

        Models that are not known to work are left out; :meth:`explain_compatibility` says why.

        Raises:
            ConfigError: there is no such hardware, or a name is invalid.
            StoreError: as for :meth:`classify_model`.
        """
        found = self.explain_compatibility(models, hardware)
        return [name for name, answer in found.items() if answer["compatible"] is True]

    def explain_compatibility(self, models: Sequence[str], hardware: str) -> dict[str, CompatibilityAnswer]:
        """Whether each of the models works on a kind of hardware, whether it is on this system or not, and the basis of the answer.

        Raises:
            ConfigError: as for :meth:`get_compatible_models_for_hardware`.
            StoreError: as for :meth:`classify_model`.
        """
        backend = backend_of(hardware)
        records = self._on_record().on(backend)
        found = {name: compatibility_of(self._subject(name), backend, records) for name in words(models, "models")}
        return {name: compatibility_answer(each) for name, each in found.items()}

    def _subject(
        self, model_name: str, model_class: str | None = None, tasks: tuple[str, ...] = (), methods: tuple[str, ...] = ()
    ) -> Subject:
        """The model that a name refers to and its classification, with the facts that the caller gives.

        A name that cannot be looked up is searched in local records, the packaged models, and the other records, in this order.
        """
        plan = look_up(model_name, spec=self._spec(), cache=self._cache())
        architecture = plan.architecture if plan is not None else _architecture_on_record(model_name, self._on_record().own)
        if architecture is None:
            plan = shipped_model(model_name)
            architecture = plan.architecture if plan is not None else _architecture_on_record(model_name, self._on_record().evidence)
        question = Question(
            model_name=model_name if plan is None else plan.name,
            model_class=model_class or (plan.model_class if plan is not None else None),
            architecture=architecture,
            tasks=tasks,
            methods=methods,
            config=plan.config if plan is not None and plan.config else None,
        )
        found = dataclasses.replace(self._cached_classification(question), model_name=model_name)
        if plan is not None and not (model_class or tasks or methods):
            found = _with_listed_family(found, plan)
        generates = self._on_record().generates(plan, model_name)
        return Subject(model_name=model_name, plan=plan, classification=found, generates=generates)

    def _cached_classification(self, question: Question) -> Classification:
        """The classification, from the cache if possible."""
        if self._kept is not None and not self._force_refresh:
            kept = self._kept.get(question)
            if kept is not None:
                return kept
        found = classify(**dataclasses.asdict(question))
        if self._kept is not None:
            self._kept.put(question, found)
        return found

    def _measured(self, subject: Subject) -> tuple[ChoiceEntry, ...]:
        """The measured cells of the model with its usual settings, else those that there are: in full size, if there are any."""
        records = of_model(self._on_record().evidence, subject.plan, subject.model_name)
        plan, full = subject.plan, [record for record in records if record.size is Size.FULL]
        usual = [
            record for record in full if plan is not None and (record.batch, record.sequence_length) == (plan.batch, plan.sequence_length)
        ]
        here, wanted = instructions_of(self._detector.detect()), usual or full or records
        return choices(records, self._bounds or Bounds(), only=wanted.__contains__, instructions_here=here)

    def _candidate(self, subject: Subject, machine: Mapping[str, Detection]) -> Candidate:
        measured = self._measured(subject)
        return Candidate(subject=subject, profiles=self._profiles(subject, machine, measured if self._bounds else ()), measured=measured)

    def _profiles(
        self,
        subject: Subject,
        machine: Mapping[str, Detection],
        measured: Sequence[ChoiceEntry],
        overrides: Mapping[Backend, Override] | None = None,
    ) -> dict[Backend, HardwareProfile]:
        """The model on every hardware. Its needs, determined on first use, are those of a precision in which it works.

        That is the precision of the best measured cell, within the limits if there are any; else the usual one of the hardware if it works
        or nothing was measured; else one that was measured.
        """
        profiles, found = {}, self._on_record()
        for hardware in Backend:
            availability = availability_of(hardware, machine)
            compatibility = compatibility_of(subject, hardware, found.on(hardware))
            usual = descriptor_of(hardware).precisions
            working = [dtype for dtype in usual if dtype in compatibility.precisions]
            ask = functools.partial(
                requirements_for,
                subject.plan,
                model_name=subject.model_name,
                classification=subject.classification,
                hardware=hardware.value,
                dtype=best.dtype if (best := best_on(measured, hardware)) is not None else next(iter(working), usual[0]),
                available_mb=availability.memory_mb,
                cache=self._cache(),
                found=found,
            )
            profiles[hardware] = HardwareProfile(
                compatibility=compatibility,
                availability=availability,
                ask=ask,
                override=(overrides or {}).get(hardware),
            )
        return profiles

    def _torch_device(self, hardware: Backend | None) -> tuple[str, list[Reason]]:
        """PyTorch's device for a hardware; the cpu if PyTorch does not support it or cannot use it here (with a reason)."""
        if hardware is None or descriptor_of(hardware).torch_device is None:
            return BASELINE.value, []
        device = self._detector.get_torch_device_with_priority([hardware.value, BASELINE.value])
        if device.partition(":")[0] == descriptor_of(hardware).torch_device:
            return device, []
        return device, [Reason(basis=DETECTED, text=f"the PyTorch installed here cannot use {hardware.value}")]

    def _names(self) -> list[str]:
        """The models to choose from: those of matrix.yaml, then other models in local records that have a valid name."""
        spec, records = self._spec(), self._on_record().own
        listed = list(spec.models) if spec is not None else []
        hub_ids = {model.hub_id for model in spec.models.values()} if spec is not None else set()
        names = {record.model: record.hub_id for record in records if record.hub_id}  # some cells of a model lack its hub id
        others = {
            names.get(record.model, record.model) for record in records if record.model not in listed and record.hub_id not in hub_ids
        }
        return listed + sorted(filter(is_name, others))

    def _spec(self) -> MatrixSpec | None:
        path = self._sources.matrix or (DEFAULT_MATRIX if DEFAULT_MATRIX.is_file() else None)
        return _loaded(path, state_of(path)) if path is not None else None

    def _on_record(self) -> OnRecord:
        return on_record(self._sources.database, latest=self._sources.reports or LATEST)

    def _cache(self) -> Path | None:
        if self._sources.cache is not None:
            return self._sources.cache
        return cache_folder(os.environ)


def get_hardware_aware_model_classification(
    model_name: str, model_class: str | None = None, tasks: Sequence[str] | None = None
) -> ModelAnswer:
    """As :meth:`HardwareAwareModelClassifier.classify_model`, with the default sources.

    Raises:
        ConfigError: as there.
        StoreError: as there.
    """
    return HardwareAwareModelClassifier().classify_model(model_name, model_class=model_class, tasks=tasks)


@functools.lru_cache(maxsize=4)
def _loaded(path: Path, state: tuple[int, int]) -> MatrixSpec:  # noqa: ARG001 - a changed file is read again
    """A matrix.yaml, cached."""
    return load(path).spec


def words(values: Sequence[str], where: str) -> tuple[str, ...]:
    """A list of words without duplicates. A single string is refused, since it would be read as a list of letters.

    Raises:
        ConfigError: it is a single string, or an entry is not a string.
    """
    if isinstance(values, str):
        raise ConfigError([Problem(where=where, what=f"it is the word {values!r}, not a list", hint=f"[{values!r}]")])
    others = [value for value in values if not isinstance(value, str)]
    if others:
        raise ConfigError([Problem(where=where, what=f"{value!r} is not a string", hint="names are text") for value in others])
    return tuple(dict.fromkeys(values))


def _architecture_on_record(model_name: str, records: Sequence[Evidence]) -> str | None:
    """The architecture of a model of this name on record; None if there is none."""
    return next((record.architecture for record in records if record.is_same_model(None, model_name)), None)


def _size_tier(subject: Subject, profile: HardwareProfile) -> SizeTier | None:
    """The size tier: by the parameters of the full-size model if known, else by its name."""
    needs = profile.requirements if subject.plan is not None and subject.plan.size is Size.FULL else None
    return tier_of(needs.parameters) if needs is not None else subject.classification.size_tier


def _with_listed_family(found: Classification, plan: ModelPlan) -> Classification:
    """The classification with the family in matrix.yaml, which was written by someone who knows the model."""
    if found.family is plan.family:
        return found
    guessed = found.family.value if found.family else "none"
    source = f"matrix.yaml says {plan.family.value}; by its architecture and class it would be {guessed} ({found.source})"
    return dataclasses.replace(found, family=plan.family, subfamily=None, confidence=1.0, source=source)
