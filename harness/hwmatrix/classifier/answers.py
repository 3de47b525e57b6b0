"""The answers of the integration as plain dictionaries. Their keys are the public contract (docs/integration.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict

from hwmatrix.matrix.priors import examples_for
from hwmatrix.records import Basis

if TYPE_CHECKING:
    from hwmatrix.knowledge.compatibility import Compatibility
    from hwmatrix.knowledge.profiles import HardwareProfile
    from hwmatrix.matrix.priors import PriorExample
    from hwmatrix.records import Family

_NUMBERS: Final = ("min_memory_mb", "recommended_memory_mb", "cpu_cores", "disk_space_mb", "batch_size")


class ReasonAnswer(TypedDict):
    """One statement and its basis.

    The basis is ``measured``, ``estimated``, ``extrapolated``, ``prior``, ``none``, ``detected`` (by this machine's detector) or
    ``override`` (the caller's own profile).
    """

    basis: str
    text: str


class CompatibilityAnswer(TypedDict):
    """Whether a model works on some hardware (None: not known), at which level, and the basis of the answer."""

    compatible: bool | None
    level: str | None
    basis: str
    nearness: str | None
    reason: str


class RequirementsAnswer(TypedDict):
    """What a model needs on ``hardware``; memory and disk in MiB. Unknown values are None; ``basis`` and ``note`` say why."""

    min_memory_mb: float | None
    recommended_memory_mb: float | None
    cpu_cores: int | None
    disk_space_mb: int | None
    batch_size: int | None
    hardware: str
    memory_kind: str | None
    dtype: str | None
    basis: str
    note: str


class ModelAnswer(TypedDict):
    """What a model is, where it works, where to run it here, and what it needs there.

    ``basis`` is the basis of each answer. ``nearness`` says whose measurements decided about the hardware: this ``model``'s, or those of
    its ``architecture`` or ``family`` (None: no measurements). ``reasons`` explain the recommended hardware. ``expected`` is what the
    design documents say about this model. ``evidence`` names the sources of measurements. ``torch_device`` is PyTorch's device for the
    hardware, ``cpu`` if PyTorch does not support it.
    """

    model_name: str
    family: str | None
    subfamily: str | None
    confidence: float
    classification: dict[str, str | None]
    hardware_profile: dict[str, dict[str, Any]]
    recommended_hardware: str | None
    recommended_template: str | None
    resource_requirements: RequirementsAnswer
    torch_device: str
    basis: dict[str, str]
    nearness: str | None
    reasons: list[ReasonAnswer]
    expected: list[dict[str, Any]]
    evidence: list[dict[str, Any]]


class TaskModel(TypedDict):
    """One model for a task. ``fit`` says how it fits the task, ``available`` whether the hardware is on this system.

    ``basis``, ``nearness`` and ``reasons`` are about the hardware.
    """

    model_name: str
    hub_id: str | None
    family: str | None
    subfamily: str | None
    confidence: float
    fit: str
    recommended_hardware: str
    available: bool
    resource_requirements: RequirementsAnswer
    basis: str
    nearness: str | None
    reasons: list[ReasonAnswer]


class RefusedModel(TypedDict):
    """A model that fits the task but is not recommended, and why."""

    model_name: str
    fit: str
    reasons: list[ReasonAnswer]


class TaskAnswer(TypedDict):
    """The models for a task, the best first, and the sources of measurements."""

    task: str
    hardware_constraints: list[str] | None
    recommendations: list[TaskModel]
    not_recommended: list[RefusedModel]
    evidence: list[dict[str, Any]]


class PoolAnswer(TypedDict):
    """The configuration of a resource pool for a set of models; memory in MiB. ``evidence`` names the sources of measurements."""

    resource_pool_config: dict[str, Any]
    resource_requirements: dict[str, Any]
    hardware_recommendations: dict[str, Any]
    basis: str
    reasons: list[ReasonAnswer]
    evidence: list[dict[str, Any]]


def compatibility_answer(found: Compatibility) -> CompatibilityAnswer:
    """Whether a model works on some hardware, as plain data."""
    return CompatibilityAnswer(
        compatible=found.compatible,
        level=found.level.value if found.level else None,
        basis=found.basis.value,
        nearness=found.nearness.value if found.nearness else None,
        reason=found.reason,
    )


def requirements_answer(profile: HardwareProfile, model_name: str) -> RequirementsAnswer:
    """What a model needs: measured or estimated, else as the design documents say about this model, else None.

    If several documents give a number, the largest counts. A caller's own peak replaces both amounts of memory.
    """
    found = profile.requirements
    numbers: dict[str, Any] = dict.fromkeys(_NUMBERS)
    basis, note, kind, dtype = Basis.NONE.value, profile.size_unknown or "", None, None
    examples = examples_for(model_name)
    if found is not None:
        numbers = {name: getattr(found, name) for name in _NUMBERS}
        basis, note, kind, dtype = found.basis.value, found.note, found.memory_kind, found.dtype.value
    elif examples:
        numbers = {name: max(getattr(example.requirements, name) for example in examples) for name in _NUMBERS}
        titles = ", ".join(dict.fromkeys(example.document for example in examples))
        basis, note = Basis.PRIOR.value, f"the largest number in the design documents ({titles}); {note}"
    if profile.override is not None and profile.override.peak_mb is not None:
        numbers["min_memory_mb"] = numbers["recommended_memory_mb"] = profile.override.peak_mb
        basis, note = profile.peak_basis, f"memory: from the caller's profile; the rest: {basis}: {note}"
    return RequirementsAnswer(
        min_memory_mb=numbers["min_memory_mb"],
        recommended_memory_mb=numbers["recommended_memory_mb"],
        cpu_cores=numbers["cpu_cores"],
        disk_space_mb=numbers["disk_space_mb"],
        batch_size=numbers["batch_size"],
        hardware=profile.hardware.value,
        memory_kind=kind,
        dtype=dtype,
        basis=basis,
        note=note,
    )


def expectations(model_name: str) -> list[dict[str, Any]]:
    """What the design documents say about this model, each with its title. Shown beside the answer, never mixed into it."""
    return [_expected(example) for example in examples_for(model_name)]


def template_for(family: Family | None) -> str | None:
    """The name of the test template for a family, without ``.j2``; None if the family is not known."""
    return f"hf_{family.value}_template.py" if family is not None else None


def _expected(example: PriorExample) -> dict[str, Any]:
    return {
        "document": example.document,
        "recommended_hardware": example.recommended_hardware.value,
        "resource_requirements": {name: getattr(example.requirements, name) for name in _NUMBERS},
    }
