"""Recommended resource pool settings for a set of models: hardware on which all of them work and fit, and a timeout."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.classifier.answers import PoolAnswer
from hwmatrix.knowledge.recommend import BASELINE, Choice, Reason, choose
from hwmatrix.pool.settings import PoolSettings
from hwmatrix.records import Backend, Basis

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwmatrix.classifier.task_models import Candidate
    from hwmatrix.knowledge.profiles import HardwareProfile


_SPARE: Final = 0.5
"""If the models take at most this share of the budget, another set of the same size fits beside them."""
_TIMEOUTS: Final = ((_SPARE, 30), (1.0, 10))
"""Minutes to keep an unused model, by the share of the budget that all models take (inclusive): the pool's default if there is room for
others, less if there is little. Chosen, not measured: keeping a model costs memory, releasing it costs one load."""
_TIGHT_TIMEOUT: Final = 2
"""Minutes if not all of them fit, so that a model that waits for memory does not wait long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedHardware:
    """A hardware for the whole set: the models that can run there, and the memory that they take together in MiB.

    ``total_mb`` is None if no model's memory is known; ``unknown`` are the models that it does not include.
    """

    hardware: Backend
    usable: tuple[str, ...]
    total_mb: float | None
    max_mb: float | None
    unknown: tuple[str, ...]
    budget_mb: float | None

    @property
    def share(self) -> float | None:
        """The share of the budget that all models take together; None if it is not known."""
        return self.total_mb / self.budget_mb if self.total_mb is not None and self.budget_mb else None

    @property
    def overflows(self) -> bool:
        """Whether the models are known not to fit together."""
        return self.share is not None and self.share > 1


def pool_config(
    members: Sequence[Candidate], torch_device: Callable[[Backend], str], evidence: Sequence[dict[str, Any]] = ()
) -> PoolAnswer:
    """The configuration of a pool for these models.

    The preferred hardware is one on which every model works and all fit together; of several, the first in the models' own orders. If there
    is none, it is the one on which most models can run. If they do not fit together there, the pool must free memory (low-memory mode).
    """
    options = [_shared(hardware, members) for hardware in Backend if _is_here(hardware, members)]
    choices = [_choice(member) for member in members]
    best = min(options, key=lambda option: _rank(option, choices), default=None)
    if best is None:  # detection found nothing at all
        best = _shared(BASELINE, members)
    low = best.overflows
    return PoolAnswer(
        resource_pool_config={"low_memory_mode": low, "recommended_timeout_mins": _timeout(best)},
        resource_requirements={
            "max_memory_mb": best.max_mb,
            "total_memory_mb": best.total_mb,
            "budget_mb": None if best.budget_mb is None else round(best.budget_mb),
            "models_of_unknown_size": list(best.unknown),
        },
        hardware_recommendations={
            "preferred_hardware": best.hardware.value,
            "torch_device": torch_device(best.hardware),
            "by_model": {
                member.subject.model_name: choice.hardware.value if choice.hardware else None
                for member, choice in zip(members, choices, strict=True)
            },
        },
        basis=_basis(best, members),
        reasons=[{"basis": reason.basis, "text": reason.text} for reason in _reasons(best, members)],
        evidence=list(evidence),
    )


def _choice(member: Candidate) -> Choice:
    """The hardware for one model alone, among what this process can use: the pool runs in it."""
    installed = [hardware for hardware, profile in member.profiles.items() if profile.availability.installed]
    return choose(member.subject.classification, member.profiles, installed, measured=member.measured)


def _is_here(hardware: Backend, members: Sequence[Candidate]) -> bool:
    """Whether the pool, which runs in this process, can use it."""
    found = [member.profiles[hardware].availability for member in members]
    return all(each.available and each.installed for each in found)


def _usable(profile: HardwareProfile) -> bool:
    """Whether one model can run there by itself."""
    works = profile.compatible is True or (profile.compatible is None and profile.hardware is BASELINE)
    return works and profile.fits is not False


def _shared(hardware: Backend, members: Sequence[Candidate]) -> SharedHardware:
    profiles = {member.subject.model_name: member.profiles[hardware] for member in members}
    needs = {name: _wanted_mb(profile) for name, profile in profiles.items()}
    known = [amount for amount in needs.values() if amount is not None]
    left = next((profile.availability.memory_mb for profile in profiles.values()), None)
    return SharedHardware(
        hardware=hardware,
        usable=tuple(name for name, profile in profiles.items() if _usable(profile)),
        total_mb=sum(known) if known else None,
        max_mb=max(known, default=None),
        unknown=tuple(name for name, amount in needs.items() if amount is None),
        budget_mb=None if left is None else left * PoolSettings().share,
    )


def _wanted_mb(profile: HardwareProfile) -> float | None:
    """The memory to give a model: the caller's peak if given, else the recommended memory."""
    if profile.override is not None and profile.override.peak_mb is not None:
        return profile.override.peak_mb
    return profile.requirements.recommended_memory_mb if profile.requirements is not None else None


def _rank(option: SharedHardware, choices: Sequence[Choice]) -> tuple[float, ...]:
    places = [choice.order.index(option.hardware) if option.hardware in choice.order else len(Backend) for choice in choices]
    return (-len(option.usable), option.overflows, sum(places), list(Backend).index(option.hardware))


def _timeout(option: SharedHardware) -> int:
    share = option.share or 0.0
    return next((minutes for most, minutes in _TIMEOUTS if share <= most), _TIGHT_TIMEOUT)


def _basis(option: SharedHardware, members: Sequence[Candidate]) -> str:
    """The weakest basis of the models' recommendations for this hardware."""
    return max((member.profiles[option.hardware].basis for member in members), key=_weakness)


def _reasons(option: SharedHardware, members: Sequence[Candidate]) -> list[Reason]:
    name = option.hardware.value
    counted = f"{name}: {len(option.usable)} of {len(members)} models work there and fit by themselves"
    reasons = [Reason(basis=_basis(option, members), text=counted)]
    reasons += [
        Reason(basis=profile.basis, text=f"{member.subject.model_name} on {name}: {_refusal(profile)}")
        for member in members
        if not _usable(profile := member.profiles[option.hardware])
    ]
    if option.total_mb is None:
        reasons.append(Reason(basis=Basis.NONE.value, text="memory: it is not known what the models need"))
    else:
        of = "how much may be used is not known" if option.budget_mb is None else f"{option.budget_mb:.0f} MiB may be used"
        without = f" (without {', '.join(option.unknown)}, whose needs are not known)" if option.unknown else ""
        worst = max((member.profiles[option.hardware].peak_basis for member in members), key=_weakness)
        reasons.append(Reason(basis=worst, text=f"memory: together they need up to {option.total_mb:.0f} MiB{without}, {of}"))
    return reasons


def _refusal(profile: HardwareProfile) -> str:
    if profile.fits is False:
        return f"it needs {profile.peak_mb or 0:.0f} MiB, but only {profile.availability.memory_mb} MiB are free"
    return profile.reason()


def _weakness(basis: str) -> int:
    order = [each.value for each in Basis]
    return order.index(basis) if basis in order else -1
