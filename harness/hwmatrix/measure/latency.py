"""Takes the latency samples, and decides when warm-up and timing are complete.

This module does not know which target it times. ``call`` must return only when the work is done: a target with an asynchronous device
synchronizes inside it. A target whose device has its own clock (device events, a page's clock) returns that clock's time in
nanoseconds; then that value is the sample, and there is no CPU time.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwmatrix.records import MeasureRule

SMALLEST_INTERVAL: Final = 6
"""Below six samples the order statistics of the median give no 95 % interval (1 - 2 * 0.5**5 < 0.95)."""
_REPETITIONS: Final = 3
_LOOK_AGAIN: Final = 1.25
"""The rule is checked again when the elapsed time has grown by this factor: sorting too often would disturb the measurement."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Samples in nanoseconds, in order: wall clock, and CPU time of the whole process (runtimes work in their own threads).

    ``cpu_ns`` is empty if the target measured with its own clock.

    ``warmup_samples`` is the number of warm-up runs, whose times are not kept. ``converged``: the interval was narrow enough, and the
    medians of three consecutive parts agreed. Otherwise time ran out, and the interval must not be reported.
    """

    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    warmup_samples: int
    converged: bool


def median_interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median by order statistics: ranks n/2 -+ 0.98 sqrt(n) of ``ordered`` (ascending).

    That is 1.96 standard deviations of a binomial with p = 1/2. None for fewer than six samples, which have no such interval.
    ``store/views.sql`` has the same formula for the reports; a test keeps the two equal.
    """
    n = len(ordered)
    if n < SMALLEST_INTERVAL:
        return None
    reach = 0.98 * math.sqrt(n)
    low = max(1, math.floor(n / 2 - reach))
    high = min(n, math.ceil(1 + n / 2 + reach))
    return ordered[low - 1], ordered[high - 1]


def median(ordered: Sequence[float]) -> float:
    """The median of ascending values, interpolated as SQL's ``quantile_cont`` does."""
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def is_converged(wall_ns: Sequence[int], half_width: float) -> bool:
    """Whether the median's interval is narrower than ``half_width`` (relative to the median) and the medians of three parts agree.

    A long disturbance can make the interval narrow but wrong; then the medians of the consecutive parts differ. ``measure`` checks this
    again and again, so an interval at which it stops covers the median somewhat less often than 95 % (docs/measuring.md).
    """
    ordered = sorted(wall_ns)
    interval = median_interval(ordered)
    if interval is None:
        return False
    middle = median(ordered)
    if (interval[1] - interval[0]) / 2 > half_width * middle:
        return False
    part = len(wall_ns) // _REPETITIONS
    medians = [median(sorted(wall_ns[index * part : (index + 1) * part])) for index in range(_REPETITIONS)]
    return max(medians) - min(medians) <= 2 * half_width * middle


def measure(
    call: Callable[[], int | None],
    rule: MeasureRule,
    *,
    deadline: float = math.inf,
    took_s: float = 0.0,
    least: int = SMALLEST_INTERVAL,
    between: Callable[[], None] = lambda: None,
) -> Timing | None:
    """Warm up, then time ``call`` until the rule is met or ``rule.max_s`` is over, but at least ``least`` times.

    ``between`` is called before each sample; its time is no part of any. By default, ``call`` is timed as often as an interval needs. No
    call begins that would not end before ``deadline``, a value of ``time.perf_counter``, if it takes as long as the one before; ``took_s``
    is how long one has taken before all of them.

    Returns:
        The samples; None if there is no time for a single one after the warm-up.
    """
    warmups, took_s = _warm_up(call, rule, deadline, took_s)
    if warmups == 0 or time.perf_counter() + took_s > deadline:
        return None
    clock, cpu_clock = time.perf_counter_ns, time.process_time_ns
    wall: list[int] = []
    cpu: list[int] = []
    converged = False
    begin = clock()
    look = begin + int(rule.min_s * 1e9)
    end = begin + int(rule.max_s * 1e9)
    while True:
        between()
        cpu_start = cpu_clock()
        start = clock()
        own = call()
        stop = clock()
        if own is None:
            cpu.append(cpu_clock() - cpu_start)
            wall.append(stop - start)
        else:
            wall.append(own)
        too_late = stop + (stop - start) > deadline * 1e9
        if stop < look and stop < end and not too_late:
            continue
        if len(wall) >= rule.min_samples:
            converged = is_converged(wall, rule.half_width)
            look = begin + int((stop - begin) * _LOOK_AGAIN)
        if converged or too_late or (stop >= end and len(wall) >= least):
            return Timing(wall_ns=tuple(wall), cpu_ns=tuple(cpu), warmup_samples=warmups, converged=converged)


def _warm_up(call: Callable[[], object], rule: MeasureRule, deadline: float, took_s: float) -> tuple[int, float]:
    """Run until both the warm-up time and count are reached, but no longer than the timing itself may take.

    Before each run there must be time for it and for one that is timed. Returns the count, and how long the last run took in seconds.
    """
    begin = now = time.perf_counter()
    done = 0
    while now + 2 * took_s <= deadline:
        call()
        took_s = time.perf_counter() - now
        now += took_s
        done += 1
        if now - begin >= rule.max_s or (now - begin >= rule.warmup_s and done >= rule.warmup_iterations):
            break
    return done, took_s
