"""Which hardware to run a model on here: measurements first, then requirements, then expectations.

Of hardware that was measured with the model in one table (``measured_choice``), the best of that table is recommended.

The cpu is the baseline. A measurement on the cpu says nothing against hardware that was not tried, so the cpu is recommended
before other hardware only if that is slower, absent, too small, or without evidence that the model works on it.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Final

from hwmatrix.knowledge.evidence import Nearness
from hwmatrix.knowledge.measured_choice import best_on
from hwmatrix.knowledge.priorities import priority_for
from hwmatrix.knowledge.profiles import OVERRIDE
from hwmatrix.records import Backend, Basis, Execution, Size
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.knowledge.measured_choice import ChoiceEntry, MeasuredCell
    from hwmatrix.knowledge.profiles import HardwareProfile
    from hwmatrix.records import Classification

BASELINE: Final = Backend.CPU
DETECTED: Final = "detected"
"""The basis of statements by this machine's detector."""
_FASTER, _PREFERRED, _BASELINE, _SLOWER, _OTHER = range(5)
_BY_ITSELF: Final = (Nearness.MODEL, Nearness.ARCHITECTURE)
"""How closely a record must match for its speed to count. Speed-ups within a family differ by a factor of ten."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reason:
    """One statement and its basis: a word of ``records.Basis``, ``override``, or ``detected``."""

    basis: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """The hardware for a model (None: no hardware here can be recommended), the basis, and why.

    ``nearness`` says how closely the measurements match the model, if any were used. ``order`` is every hardware on which the model is
    not known to fail, the best first, available or not.
    """

    hardware: Backend | None
    basis: str
    nearness: Nearness | None
    reasons: tuple[Reason, ...]
    order: tuple[Backend, ...]


def choose(
    classification: Classification,
    profiles: Mapping[Backend, HardwareProfile],
    only: Sequence[Backend] = (),
    *,
    measured: Sequence[ChoiceEntry] = (),
    limits: bool = False,
    absent_too: bool = False,
) -> Choice:
    """The best hardware for a model among those that are here and large enough for it.

    Args:
        classification: what the model is; it decides the order of hardware that was not measured.
        profiles: the model on each hardware.
        only: consider only these.
        measured: the model's measured cells, as ``measured_choice.choices`` ranks them.
        limits: consider only hardware with a measured cell within the limits that ``measured`` was ranked with.
        absent_too: also recommend hardware that is not on this system (for a question about another one).
    """
    priority = [Backend(hardware) for hardware in priority_for(classification)]
    considered = [profile for hardware, profile in profiles.items() if not only or hardware in only]
    if limits:
        considered = [profile for profile in considered if best_on(measured, profile.hardware) is not None]
    ranked = sorted((each for each in considered if each.compatible is not False), key=lambda profile: _rank(profile, priority))
    best, skipped = None, []
    for profile in ranked:  # requirements are determined lazily, only for hardware that comes into question
        obstacle = _obstacle(profile, absent_too=absent_too)
        if obstacle is None:
            best = profile
            break
        skipped.append(obstacle)
    refused = [Reason(basis=each.basis, text=f"{each.hardware.value}: {each.reason()}") for each in considered if each.compatible is False]
    if best is None:
        where = (" among those asked for" if only else " here") + (" within the limits" if limits else "")
        nothing = Reason(basis=Basis.NONE.value, text=f"no hardware can be recommended{where}")
        order = tuple(profile.hardware for profile in ranked)
        return Choice(hardware=None, basis=Basis.NONE.value, nearness=None, reasons=(nothing, *skipped, *refused), order=order)
    behind = ranked[ranked.index(best) + 1 :]
    best, fastest = _fastest(best, [each for each in behind if _obstacle(each, absent_too=absent_too) is None], measured, limits=limits)
    untried = [] if absent_too else _untried(best, behind, priority)
    rule = fastest or Reason(basis=best.basis, text=f"{best.hardware.value}: {best.reason()}; {_rule(best, priority)}")
    return Choice(
        hardware=best.hardware,
        basis=stands_on(best),
        nearness=best.compatibility.nearness if best.override is None else None,
        reasons=(rule, *_memory(best), *skipped, *untried),
        order=(best.hardware, *(profile.hardware for profile in ranked if profile is not best)),
    )


def _fastest(
    best: HardwareProfile, others: Sequence[HardwareProfile], measured: Sequence[ChoiceEntry], *, limits: bool
) -> tuple[HardwareProfile, Reason | None]:
    """The best usable hardware of the first table that compares ``best`` with others, with that rule; ``best`` and None if none does."""
    usable = {profile.hardware.value: profile for profile in (best, *others) if profile.override is None}
    for least, table in itertools.product((2, 1) if limits else (2,), measured):
        cells = [cell for cell in table.cells if cell.hardware in usable and not cell.against and (limits or table.size is Size.FULL)]
        hardware = {cell.hardware for cell in cells}
        if best.hardware in hardware and len(hardware) >= least:
            return usable[cells[0].hardware], Reason(basis=Basis.MEASURED.value, text=_as_the_best(cells[0], table))
    return best, None


def _as_the_best(cell: MeasuredCell, table: ChoiceEntry) -> str:
    speed = f"{cell.tokens_s:.3g} tokens/s" if cell.tokens_s else f"{cell.p50_ms:.3g} ms"
    settings = f"{table.size.value}, {cell.name}, batch {table.batch}, run {cell.run_id}"
    times = f", {cell.speed_up:.2g} times as fast as cpu in float32" if cell.speed_up else ""
    rule, host = table.rule.partition(";")[0], (table.host or "unknown")[:6]
    where = f"{host}, whose processor has {', '.join(table.lacking)} and this machine's has not" if table.lacking else host
    return f"{cell.hardware}: measured: pass ({settings}): {speed}{times}, {rule}, among the hardware here, compared on machine {where}"


def _rule(profile: HardwareProfile, priority: Sequence[Backend]) -> str:
    """By which rule it is recommended, if not as the best of a table."""
    group = _group(profile, priority)
    if group == _FASTER:
        return "faster than cpu, as measured"
    if group == _BASELINE:
        return "no other hardware here is known to be faster"
    order = ", ".join(hardware.value for hardware in priority)
    return f"the first that can be used here in the order of such models: {order}"


def absence(profile: HardwareProfile) -> Reason:
    """That a hardware is not on this system, and why."""
    return Reason(basis=DETECTED, text=f"{profile.hardware.value} is not here: {profile.availability.reason}")


def stands_on(profile: HardwareProfile) -> str:
    """The basis of recommending this hardware: measurements, else the model's requirements, else expectations."""
    if profile.basis in {OVERRIDE, Basis.MEASURED.value}:
        return profile.basis
    return profile.peak_basis if profile.fits else profile.basis


def _rank(profile: HardwareProfile, priority: Sequence[Backend]) -> tuple[float, ...]:
    known = profile.compatibility
    nearness = _BY_ITSELF.index(known.nearness) if known.nearness in _BY_ITSELF else len(_BY_ITSELF)
    place = priority.index(profile.hardware) if profile.hardware in priority else len(priority)
    group = _group(profile, priority)
    if group == _FASTER:
        return (group, nearness, -(known.speed_up or 0.0), place)
    return (group, place, known.order, nearness, list(Backend).index(profile.hardware))


def _group(profile: HardwareProfile, priority: Sequence[Backend]) -> int:
    known = profile.compatibility
    if profile.hardware is BASELINE:
        return _BASELINE
    if profile.override is not None:
        return _PREFERRED
    if descriptor_of(profile.hardware).execution is not Execution.HARDWARE:
        return _SLOWER
    if known.nearness in _BY_ITSELF:
        if known.speed_up is not None:
            return _FASTER if known.speed_up > 1 else _SLOWER
        if known.execution not in {None, Execution.HARDWARE} or profile.hardware not in priority:
            return _SLOWER
    return _PREFERRED if profile.hardware in priority else _OTHER


def _obstacle(profile: HardwareProfile, *, absent_too: bool) -> Reason | None:
    """Why hardware is not recommended although the model is not known to fail on it; None if it can be recommended."""
    name = profile.hardware.value
    if not profile.availability.available and not absent_too:
        return absence(profile)
    brought = profile.override is None and not absent_too and not profile.availability.installed
    if brought and profile.compatibility.nearness not in _BY_ITSELF:
        return Reason(basis=profile.basis, text=f"{name} is not installed and was not measured: hwmatrix matrix brings it and can try it")
    if profile.compatible is None and profile.hardware is not BASELINE:
        return Reason(basis=profile.basis, text=f"{name} is not known to work: {profile.reason()}")
    if profile.fits is False:
        return Reason(basis=profile.peak_basis, text=f"{name} is too small: {_needs(profile)}")
    return None


def _memory(profile: HardwareProfile) -> list[Reason]:
    if profile.peak_mb is None:
        return [Reason(basis=Basis.NONE.value, text=f"memory: {profile.size_unknown}")]
    return [Reason(basis=profile.peak_basis, text=f"memory: {_needs(profile)}")]


def _needs(profile: HardwareProfile) -> str:
    left = profile.availability.memory_mb
    of = f"{left} MiB are left" if left is not None else "how much is left is not known"
    return f"the model needs {profile.peak_mb or 0:.0f} MiB, {of}"


def _untried(best: HardwareProfile, behind: Sequence[HardwareProfile], priority: Sequence[Backend]) -> list[Reason]:
    """Available hardware that is usually preferred to the recommended one, but was never measured with this model."""
    until = priority.index(best.hardware) if best.hardware in priority else len(priority)
    return [
        Reason(
            basis=profile.basis,
            text=f"{profile.hardware.value} is here, and usually comes before {best.hardware.value} for such models; it was not measured",
        )
        for profile in behind
        if profile.availability.available
        and profile.availability.installed
        and profile.hardware in priority[:until]
        and profile.hardware is not BASELINE
        and profile.compatibility.basis is not Basis.MEASURED
    ]
