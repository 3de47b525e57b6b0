from __future__ import annotations

import dataclasses
import itertools
import random
import time
from typing import TYPE_CHECKING

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmatrix.measure.latency import Timing, is_converged, measure, median, median_interval
from hwmatrix.records import MeasureRule
from hwmatrix.store.cell_columns import schema, sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MS = 1_000_000
RULE = MeasureRule(warmup_s=0.15, warmup_iterations=10, min_s=0.3, min_samples=30, max_s=3.0, half_width=0.02)


class Clock:
    """A fake clock that advances only when a call takes time."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000_000
        self.calls = 0

    def call(self, durations_ns: Iterator[int]) -> Callable[[], None]:
        """A function that takes the next of these times on each call."""

        def work() -> None:
            self.calls += 1
            self.now_ns += next(durations_ns)

        return work


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: fake.now_ns)
    monkeypatch.setattr(time, "process_time_ns", lambda: fake.now_ns // 2)
    monkeypatch.setattr(time, "perf_counter", lambda: fake.now_ns / 1e9)
    return fake


def timed(clock: Clock, durations: Iterator[int], rule: MeasureRule = RULE, **limits: float) -> Timing:
    timing = measure(clock.call(durations), rule, **limits)  # type: ignore[arg-type] # limits by name
    assert timing is not None
    return timing


def test_a_steady_call_is_timed_for_the_minimum_time(clock: Clock) -> None:
    timing = timed(clock, itertools.repeat(MS))
    assert timing.converged
    assert len(timing.wall_ns) == 300
    assert timing.warmup_samples == 150
    assert clock.calls == 450


def test_cpu_time_is_recorded_with_wall_time(clock: Clock) -> None:
    timing = timed(clock, itertools.repeat(MS))
    assert set(timing.wall_ns) == {MS}
    assert set(timing.cpu_ns) == {MS // 2}
    assert len(timing.cpu_ns) == len(timing.wall_ns)


def test_a_steady_but_slower_call_is_timed_for_the_minimum_samples(clock: Clock) -> None:
    timing = timed(clock, itertools.repeat(50 * MS))
    assert timing.converged
    assert len(timing.wall_ns) == 30
    assert timing.warmup_samples == 10


def test_a_slow_call_gives_as_many_samples_as_an_interval_needs(clock: Clock) -> None:
    timing = timed(clock, itertools.repeat(10_000 * MS))
    assert len(timing.wall_ns) == 6
    assert median_interval(sorted(timing.wall_ns)) == (10_000 * MS, 10_000 * MS)
    assert timing.warmup_samples == 1
    assert timing.converged is False  # a shard stores a boolean, even if the rule was never evaluated


def test_where_no_interval_is_needed_a_slow_call_is_timed_once(clock: Clock) -> None:
    timing = timed(clock, itertools.repeat(10_000 * MS), least=1)
    assert (timing.warmup_samples, len(timing.wall_ns), timing.converged) == (1, 1, False)


@pytest.mark.parametrize(("left_s", "samples"), [(25.0, 1), (39.0, 2), (70.0, 6), (1000.0, 6)])
def test_another_call_that_would_end_too_late_is_not_made(left_s: float, samples: int, clock: Clock) -> None:
    timing = timed(clock, itertools.repeat(10_000 * MS), deadline=clock.now_ns / 1e9 + left_s)
    assert (timing.warmup_samples, len(timing.wall_ns)) == (1, samples)


@given(
    durations_ms=st.lists(st.integers(1, 5000), min_size=1, max_size=6),
    left_ms=st.integers(-1000, 60_000),
    took_ms=st.integers(0, 5000),
    least=st.sampled_from([1, 6]),
)
def test_no_call_begins_that_would_end_too_late_if_it_took_as_long_as_the_one_before(
    durations_ms: list[int], left_ms: int, took_ms: int, least: int
) -> None:
    fake = Clock()
    deadline_ns = fake.now_ns + left_ms * MS
    calls: list[tuple[int, int]] = []
    work = fake.call(itertools.cycle(ms * MS for ms in durations_ms))

    def call() -> None:
        begin = fake.now_ns
        work()
        calls.append((begin, fake.now_ns - begin))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter_ns", lambda: fake.now_ns)
        patch.setattr(time, "process_time_ns", lambda: fake.now_ns // 2)
        patch.setattr(time, "perf_counter", lambda: fake.now_ns / 1e9)
        timing = measure(call, RULE, deadline=deadline_ns / 1e9, took_s=took_ms / 1e3, least=least)
    before = took_ms * MS
    for begin, took in calls:
        assert begin + before <= deadline_ns + 1000  # rounding of seconds
        before = took
    assert (timing is None) or len(timing.wall_ns) >= 1


def test_the_time_limit_comes_before_enough_samples(clock: Clock) -> None:
    timing = timed(clock, itertools.repeat(200 * MS))
    assert len(timing.wall_ns) == 15
    assert not timing.converged


def test_an_unsteady_call_is_timed_for_the_maximum_time_and_has_not_converged(clock: Clock) -> None:
    timing = timed(clock, itertools.cycle([MS, 3 * MS, 2 * MS, 5 * MS]))
    assert not timing.converged
    assert 3000 * MS <= sum(timing.wall_ns) <= 3005 * MS


def test_the_maximum_time_ends_with_the_sample_that_reaches_it(clock: Clock) -> None:
    timing = timed(clock, itertools.cycle([MS, 3 * MS]))
    assert not timing.converged
    assert sum(timing.wall_ns) == 3000 * MS


def test_the_minimum_time_ends_with_the_sample_that_reaches_it(clock: Clock) -> None:
    timing = timed(clock, itertools.repeat(MS), dataclasses.replace(RULE, min_s=2.0))
    assert len(timing.wall_ns) == 2000


@pytest.mark.parametrize(
    "rule",
    [
        dataclasses.replace(RULE, warmup_s=0.5, warmup_iterations=1),
        dataclasses.replace(RULE, warmup_s=9.0, warmup_iterations=100, max_s=0.5),  # not longer than the timing limit
    ],
)
def test_the_warm_up_ends_with_the_call_that_reaches_its_time(clock: Clock, rule: MeasureRule) -> None:
    assert timed(clock, itertools.repeat(250 * MS), rule).warmup_samples == 2


def test_a_device_with_its_own_clock_is_timed_by_it_and_has_no_cpu_time(clock: Clock) -> None:
    work = clock.call(itertools.repeat(MS))
    readings = itertools.chain(itertools.repeat(7, 150), itertools.cycle([1000, 1001, 1002]))

    def on_device() -> int:
        work()
        return next(readings)

    timing = measure(on_device, RULE)
    assert timing is not None
    assert timing.wall_ns == (1000, 1001, 1002) * 100
    assert timing.cpu_ns == ()
    assert timing.converged


def test_timing_does_not_converge_if_parts_disagree(clock: Clock) -> None:
    """A long disturbance gives a narrow but wrong interval. The medians of the thirds reveal it."""
    warm_up = itertools.repeat(MS, 150)
    timing = timed(clock, itertools.chain(warm_up, itertools.repeat(2 * MS, 100), itertools.repeat(MS)))
    assert timing.converged
    assert 600 <= len(timing.wall_ns) <= 800  # until a third has as many good samples as bad ones
    worsening = itertools.chain(itertools.repeat(MS, 150 + 1150), itertools.repeat(2 * MS))
    assert not timed(clock, worsening, MeasureRule(max_s=2.0, min_s=1.999)).converged


def test_timing_continues_until_it_has_settled(clock: Clock) -> None:
    settling = itertools.chain(itertools.repeat(MS, 150), itertools.cycle([MS, 2 * MS]))
    once = itertools.islice(settling, 150 + 300)
    timing = timed(clock, itertools.chain(once, itertools.repeat(MS)))
    assert timing.converged
    assert 450 * MS < sum(timing.wall_ns) < 3000 * MS


def test_without_warm_up_it_runs_once(clock: Clock) -> None:
    rule = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.0, min_samples=3, max_s=0.5)
    timing = timed(clock, itertools.repeat(MS), rule)
    assert timing.warmup_samples == 1
    assert len(timing.wall_ns) == 7  # six samples have an interval; the rule is not evaluated after every sample


def test_thirds_must_agree() -> None:
    assert is_converged([1000] * 30, 0.02)
    assert is_converged([1000] * 20 + [1001] * 10, 0.02)
    disturbed = [1000] * 90 + [1100] * 45
    assert not is_converged(disturbed, 0.02)
    assert not is_converged([1000] * 5, 0.02)


@pytest.mark.parametrize(("highest", "expected"), [(1125, True), (1126, False)])
def test_the_interval_may_be_as_wide_as_the_rule_says(highest: int, expected: bool) -> None:  # noqa: FBT001 - a parameter
    """For 12 samples its ends are the second and the eleventh: half of their distance may be 12.5 % of the median."""
    assert is_converged([*[875, 1000, 1000, highest] * 2, *[1000] * 4], 0.125) is expected


@pytest.mark.parametrize(("last", "expected"), [(1250, True), (1251, False)])
def test_the_parts_may_differ_by_twice_as_much(last: int, expected: bool) -> None:  # noqa: FBT001 - a parameter
    assert is_converged([1000] * 60 + [last] * 30, 0.125) is expected


@pytest.mark.parametrize(
    ("n", "low", "high"),
    # Ranks n/2 -+ 0.98 sqrt(n), rounded outwards: at least as wide as the exact 95 % binomial interval, whose ranks for 10 are 2 and 9.
    [(6, 1, 6), (7, 1, 7), (10, 1, 10), (30, 9, 22), (100, 40, 61), (101, 40, 62), (1000, 469, 532)],
)
def test_known_ranks(n: int, low: int, high: int) -> None:
    assert median_interval(range(1, n + 1)) == (low, high)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_few_samples_have_no_interval(n: int) -> None:
    assert median_interval(range(n)) is None


def test_the_interval_has_its_stated_coverage() -> None:
    generator = random.Random(1)  # noqa: S311 - statistics
    trials = 2000
    covered = 0
    for _ in range(trials):
        low, high = median_interval(sorted(generator.gauss(0, 1) for _ in range(40))) or (1.0, -1.0)
        covered += low <= 0 <= high
    assert covered / trials >= 0.945


def test_median() -> None:
    assert median([3]) == 3
    assert median([1, 2]) == 1.5
    assert median([1, 2, 9]) == 2


def in_sql(samples: Mapping[str, Sequence[int]]) -> dict[str, tuple[float, float | None, float | None]]:
    with duckdb.connect() as connection:
        connection.execute(schema())
        connection.execute(sql("views.sql"))
        for cell, wall in samples.items():
            connection.execute("INSERT INTO samples SELECT ?, 0, unnest(?), 0", [cell, list(wall)])
        rows = connection.execute("SELECT cell_id, p50_ms, ci_low_ms, ci_high_ms FROM latency").fetchall()
    return {cell: (p50, low, high) for cell, p50, low, high in rows}


def test_the_database_computes_the_same() -> None:
    generator = random.Random(2)  # noqa: S311 - statistics
    sizes = [*range(1, 70), 99, 100, 101, 255, 256, 1000, 9999, 10000]
    samples = {f"c{n}": [generator.randrange(1000, 10**9) for _ in range(n)] for n in sizes}
    found = in_sql(samples)
    for cell, wall in samples.items():
        ordered = sorted(wall)
        interval = median_interval(ordered)
        p50, low, high = found[cell]
        assert p50 == pytest.approx(median(ordered) / 1e6, rel=1e-12)
        assert (low, high) == ((interval[0] / 1e6, interval[1] / 1e6) if interval else (None, None))
