"""What changed between two executions of the same cell: verdict, speed, memory, placement. Pure rules with thresholds."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING, Final, NamedTuple

from hwmatrix.records import Dtype, Execution, Family, Isolation, Level, Size, Stage, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

FAILING: Final = frozenset({Status.MISMATCH, Status.FALLBACK, Status.UNSUPPORTED, Status.ERROR, Status.OOM, Status.TIMEOUT, Status.CRASH})
"""The failing verdicts. Statuses other than these and ``pass`` are not verdicts."""
LEAST_CHANGE: Final = 0.05
"""A change is reported if the lower quartile changes by more than this, relative to the machine's own speed.

Disturbances lengthen only some samples, and affect the fastest quarter least; a change in the code lengthens all of them.
"""
NOISE_FACTOR: Final = 2.0
"""A change must also exceed this many standard deviations of the two cells' combined noise."""
MOST_MACHINE_CHANGE: Final = 0.1
"""By how much the machine's own speed may differ between two runs: what disturbs it slows down models by other factors."""
LEAST_SAMPLES: Final = 6
"""With fewer samples, a median has no interval, and parts of the samples say nothing about noise."""
LEAST_PART_CHANGE: Final = 0.10
"""The same for the time to the first token and that per output token, whose 95 % intervals must not overlap either."""
LEAST_MEMORY_SHARE: Final = 0.10
LEAST_MEMORY_MB: Final = 16.0
"""Both must be exceeded: allocators and lazily loaded libraries change small cells by some MiB."""


class Kind(enum.StrEnum):
    """Kinds of changes, in the order of reports: the ones that need action come first."""

    BROKEN = "broken"
    LOST = "lost"
    WORKS = "works"
    TESTED = "tested"
    FAILS_OTHERWISE = "fails_otherwise"
    PLACEMENT = "placement"
    SLOWER = "slower"
    FASTER = "faster"
    MORE_MEMORY = "more_memory"
    LESS_MEMORY = "less_memory"
    VANISHED = "vanished"
    APPEARED = "appeared"


class Identity(NamedTuple):
    """What identifies a cell in every run. The names of the fields are those of messages."""

    model: str
    size: str
    target: str
    isolation: str
    precision: str
    batch: int
    length: int
    threads: int
    new_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparedCell:
    """One cell in one of the two runs. Times in milliseconds, memory in MiB; None: not measured."""

    cell_key: str
    model: str
    size: Size
    target: str
    backend: str
    family: Family
    architecture: str
    dtype: Dtype
    precision: Dtype | None
    batch: int
    sequence_length: int
    threads: int
    execution: Execution
    isolation: Isolation
    host: str | None
    matrix_line: int | None
    status: Status
    stage: Stage | None
    level: Level | None
    error_type: str | None
    message: str | None
    on_target: float | None
    placement_detail: str | None
    method: str | None
    bundle: str | None
    p50_ms: float | None
    p25_ms: float | None
    samples: int | None
    contended: bool | None
    noise_ms: float | None
    yardstick: str | None
    yardstick_ms: float | None
    delta_mb: float | None
    device_peak_mb: float | None
    image_digest: str | None
    command: str | None
    new_tokens: int = 0
    ttft_ms: float | None = None
    ttft_low_ms: float | None = None
    ttft_high_ms: float | None = None
    tpot_ms: float | None = None
    tpot_low_ms: float | None = None
    tpot_high_ms: float | None = None
    loss: float | None = None
    """What the precision costs the model: its relative error on the held-out inputs."""

    @property
    def identity(self) -> Identity:
        """What identifies the same cell in another run."""
        return Identity(
            model=self.model,
            size=self.size.value,
            target=self.target,
            isolation=self.isolation.value,
            precision=self.dtype.value,
            batch=self.batch,
            length=self.sequence_length,
            threads=self.threads,
            new_tokens=self.new_tokens,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that changed. ``ratio`` is new over old, of time or memory; ``detail`` is the change in words.

    A ``ratio`` of times is the one nearest to 1 of two: of the times as they are, and corrected by the machine's own change of speed.
    """

    kind: Kind
    cell: ComparedCell
    old: ComparedCell | None
    detail: str
    ratio: float | None = None


def compare(old: ComparedCell, new: ComparedCell) -> list[Change]:
    """Everything that changed between two executions of one cell."""
    verdict = _verdict(old, new)
    if old.status is not Status.PASS or new.status is not Status.PASS:
        return [verdict] if verdict else []
    speed = _speed(old, new)
    speeds = [speed] if speed is not None else _speeds_of_parts(old, new)
    return [change for change in (_placement(old, new), *speeds, _memory(old, new)) if change is not None]


def why_not_timed(old: ComparedCell, new: ComparedCell) -> str | None:
    """Why the speeds of two executions cannot be compared, or None if they can."""
    for each in (new, old):
        if each.execution is not Execution.HARDWARE:
            return f"{each.execution.value} time is not a speed"
    if old.p50_ms is None or new.p50_ms is None:
        return "not timed" if old.p50_ms is new.p50_ms else "one of them was not timed"
    reasons = (
        (old.host != new.host, "different machines"),
        (min(old.samples or 0, new.samples or 0) < LEAST_SAMPLES, f"fewer than {LEAST_SAMPLES} samples"),
        (bool(old.contended or new.contended), "contended while timed"),
        (abs(math.log(machine_ratio(old, new) or 1.0)) > math.log1p(MOST_MACHINE_CHANGE), "the machine itself was slower in one of them"),
    )
    return next((reason for applies, reason in reasons if applies), None)


def machine_ratio(old: ComparedCell, new: ComparedCell) -> float | None:
    """The machine's time for a fixed computation beside the new cell, over that beside the old; None: unknown."""
    if old.yardstick is None or old.yardstick != new.yardstick or not (old.yardstick_ms and new.yardstick_ms):
        return None
    return new.yardstick_ms / old.yardstick_ms


def _verdict(old: ComparedCell, new: ComparedCell) -> Change | None:
    if old.status is new.status and (old.status is Status.PASS or old.error_type == new.error_type):
        return None
    was, now = (f"{cell.status.value}{f' ({cell.error_type})' if cell.error_type else ''}" for cell in (old, new))
    ranks = {Status.PASS: 2} | dict.fromkeys(FAILING, 1)
    before, after = ranks.get(old.status, 0), ranks.get(new.status, 0)
    if before == after == 0:
        return None
    if after == 0:
        kind = Kind.LOST
    elif before == 0:
        kind = Kind.TESTED
    elif before == after:
        kind = Kind.FAILS_OTHERWISE
    else:
        kind = Kind.WORKS if after > before else Kind.BROKEN
    return Change(kind=kind, cell=new, old=old, detail=f"was {was}, is {now}")


def _placement(old: ComparedCell, new: ComparedCell) -> Change | None:
    if old.on_target is None or new.on_target is None or math.isclose(old.on_target, new.on_target, abs_tol=1e-9):
        return None
    return Change(kind=Kind.PLACEMENT, cell=new, old=old, detail=f"on the target: was {old.on_target:.1%}, is {new.on_target:.1%}")


def _speed(old: ComparedCell, new: ComparedCell) -> Change | None:
    if why_not_timed(old, new) is not None or not (old.p25_ms and new.p25_ms):
        return None
    was, now = old.p25_ms, new.p25_ms
    ratio = _agreed(
        now / due if abs(now - due) > max(LEAST_CHANGE * due, NOISE_FACTOR * _noise(old, new, scale)) else 1.0
        for scale in _scales(old, new)
        for due in (was * scale,)
    )
    noise = _noise(old, new, 1.0)
    detail = f"p50 was {old.p50_ms:.4g} ms, is {new.p50_ms:.4g} ms; p25 {was:.4g} and {now:.4g} ms, noise {noise:.2g} ms"
    if (machine := machine_ratio(old, new)) is not None:
        detail += f"; the machine itself took {machine:.3g} times as long"
    return _change_of_speed(old, new, detail, ratio)


def _speeds_of_parts(old: ComparedCell, new: ComparedCell) -> list[Change]:
    """Changes of the time to the first token and of that per output token, which may hide in the time of a whole generation."""
    if why_not_timed(old, new) is not None:
        return []
    parts = (
        ("time to first token", old.ttft_ms, old.ttft_low_ms, old.ttft_high_ms, new.ttft_ms, new.ttft_low_ms, new.ttft_high_ms),
        ("time per output token", old.tpot_ms, old.tpot_low_ms, old.tpot_high_ms, new.tpot_ms, new.tpot_low_ms, new.tpot_high_ms),
    )
    changes = []
    for name, *times in parts:
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            continue
        was, low, high, now, new_low, new_high = known
        ratio = _agreed(
            now / (was * scale)
            if abs(now - was * scale) > LEAST_PART_CHANGE * was * scale and (new_low > high * scale or new_high < low * scale)
            else 1.0
            for scale in _scales(old, new)
        )
        changes.append(_change_of_speed(old, new, f"{name} was {was:.4g} ms, is {now:.4g} ms", ratio))
    return [change for change in changes if change is not None]


def _noise(old: ComparedCell, new: ComparedCell, scale: float) -> float:
    return math.hypot((old.noise_ms or 0.0) * scale, new.noise_ms or 0.0)


def _scales(old: ComparedCell, new: ComparedCell) -> tuple[float, ...]:
    """What the old time is multiplied by, before it is compared: nothing, and the machine's change if it is known."""
    machine = machine_ratio(old, new)
    return (1.0,) if machine is None else (1.0, machine)


def _agreed(ratios: Iterable[float]) -> float | None:
    """The ratio nearest to 1 if all are above, or all below; else None.

    The machine's own speed may be disturbed for a moment when the cell is not, and the reverse. So a change counts only if the times as
    they are show it too.
    """
    known = tuple(ratios)
    return min(known) if min(known) > 1 else max(known) if max(known) < 1 else None


def _change_of_speed(old: ComparedCell, new: ComparedCell, detail: str, ratio: float | None) -> Change | None:
    if ratio is None:
        return None
    return Change(kind=Kind.SLOWER if ratio > 1 else Kind.FASTER, cell=new, old=old, detail=detail, ratio=ratio)


def _memory(old: ComparedCell, new: ComparedCell) -> Change | None:
    for name, was, now in (("device peak", old.device_peak_mb, new.device_peak_mb), ("added memory", old.delta_mb, new.delta_mb)):
        if was is None or now is None or was <= 0:
            continue
        if abs(now - was) > max(LEAST_MEMORY_MB, LEAST_MEMORY_SHARE * was):
            kind = Kind.MORE_MEMORY if now > was else Kind.LESS_MEMORY
            return Change(kind=kind, cell=new, old=old, detail=f"{name} was {was:.0f} MiB, is {now:.0f} MiB", ratio=now / was)
    return None
