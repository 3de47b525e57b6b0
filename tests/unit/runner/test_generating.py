"""The times of generation, on a clock that only the target moves."""

from __future__ import annotations

import math
import time
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hwmatrix.errors import CellFailure, CrashedError, TwinError, UnmakableError, UnsupportedError
from hwmatrix.measure import verdict, yardstick
from hwmatrix.models.bundle import Generation, GenerationPrompt
from hwmatrix.records import Dtype, MeasureRule, NoiseFloor, Placement, Tolerance
from hwmatrix.runner import generating
from hwmatrix.runner.job import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.records import Stage

MS = 1_000_000
DO_NOT_FIT = "the shapes do not fit"


class Scripted:
    """A target that takes these milliseconds for its tokens, and ten times as long when it warms up. ``now`` is the time in nanoseconds."""

    def __init__(self, tokens_ms: tuple[int, ...]) -> None:
        self.tokens_ms = tokens_ms
        self.now = 0
        self.calls = 0

    def generate(self, _prompt: GenerationPrompt, on_step: Callable[[int, Any], None], *, forced: bool) -> None:
        """Move the clock, and call back after each token."""
        assert forced
        self.calls += 1
        for number, ms in enumerate(self.tokens_ms):
            self.now += ms * MS * (10 if self.calls == 1 else 1)
            on_step(number, None)
        self.now += MS // 2  # after the last token

    def cache_mb(self) -> float:
        """A size."""
        return 0.25


class OwnClock(Scripted):
    """A target whose own clock counts each token's time without a trip of 1 ms to the device."""

    def generate(self, prompt: GenerationPrompt, on_step: Callable[[int, Any], None], *, forced: bool) -> Any:
        """As the other, with the times by the own clock."""
        super().generate(prompt, on_step, forced=forced)
        return tuple((ms - 1) * MS for ms in self.tokens_ms)


class Kept:
    """Keeps what was found."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    def found(self, **facts: Any) -> None:
        """Keep it."""
        self.facts |= facts

    def enter(self, _stage: Stage) -> None:
        """Nothing."""

    def judged(self, *_verdict: object, **_details: object) -> None:
        """Nothing."""


def times(monkeypatch: pytest.MonkeyPatch, target: Scripted, prompt: GenerationPrompt, rule: MeasureRule) -> dict[str, Any]:
    """What is found when the target is timed on its own clock."""
    kept = Kept()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: target.now)
    monkeypatch.setattr(time, "perf_counter", lambda: target.now / 1e9)
    double: Any = target
    progress: Any = kept
    assert generating._time(double, prompt, rule, 0.1, deadline=math.inf, progress=progress)
    return kept.facts


def test_the_times_are_those_of_the_field_s_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Scripted((8, 2, 3, 4))
    prompt = GenerationPrompt(
        name="traced", inputs={"input_ids": np.zeros((1, 5), np.int64)}, tokens=np.zeros((1, 4), np.int64), logits=np.zeros((4, 1, 7))
    )
    facts = times(monkeypatch, target, prompt, MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.1, min_samples=7, max_s=9.0))
    assert (facts["ttft_ms"], facts["tpot_ms"], facts["itl_ms"]) == (8.0, 3.0, (2.0, 3.0, 4.0))
    assert (facts["ttft_low_ms"], facts["ttft_high_ms"], facts["tpot_low_ms"], facts["tpot_high_ms"]) == (8.0, 8.0, 3.0, 3.0)
    assert set(facts["samples_wall_ns"]) == {17 * MS + MS // 2}
    assert (facts["warmup_samples"], facts["prompt_tokens"], facts["cache_mb"], facts["yardstick"]) == (1, 5, 0.25, yardstick.NAME)
    assert len(facts["samples_wall_ns"]) == target.calls - 1 >= 7


@pytest.mark.parametrize(
    ("ms", "left_s", "calls", "lengths"),
    [
        (1000, math.inf, (3, 3), (6, 7)),  # a warm-up, and two for the longest time of the rule
        (3000, math.inf, (2, 2), (6, 7)),
        (1000, 7.9, (3, 3), (6, 7)),
        (1000, 4.5, (3,), None),  # of the second, a warm-up and one do not fit: one length is no curve
        (1000, 1.5, (), None),
    ],
)
def test_each_length_is_repeated_as_long_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch, ms: int, left_s: float, calls: tuple[int, ...], lengths: tuple[int, ...] | None
) -> None:
    rule = MeasureRule(warmup_s=0.0, warmup_iterations=10, min_s=0.1, min_samples=30, max_s=2.0)
    prompts = [
        GenerationPrompt(name=name, inputs={"input_ids": np.zeros((1, n), np.int64)}, tokens=np.zeros((1, 2), np.int64), logits=np.ones(1))
        for name, n in (("traced", 5), ("length-6", 6), ("length-7", 7))
    ]
    target, kept = Scripted((ms // 10 * 9, ms // 10)), Kept()
    target.calls = 1  # it is warm
    monkeypatch.setattr(time, "perf_counter_ns", lambda: target.now)
    monkeypatch.setattr(time, "perf_counter", lambda: target.now / 1e9)
    double: Any = target
    progress: Any = kept
    took_s = {prompt.name: ms / 1000 for prompt in prompts}
    generating._time_by_length(double, prompts, rule, took_s, deadline=left_s, progress=progress)
    assert target.calls - 1 == sum(calls)
    assert kept.facts.get("lengths") == lengths
    if lengths is not None:
        assert kept.facts["lengths_ttft_ms"] == (ms * 0.9, ms * 0.9)
        assert kept.facts["lengths_tpot_ms"] == (ms * 0.1, ms * 0.1)


def test_a_step_by_position_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = GenerationPrompt(name="traced", inputs={}, tokens=np.zeros((1, 7), np.int64), logits=np.zeros((7, 1, 7)))
    rule = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.1, min_samples=7, max_s=9.0)
    facts = times(monkeypatch, Scripted((8, 2, 2, 2, 3, 3, 3)), prompt, rule)
    assert (facts["itl_change_ms"], facts["itl_change_at"]) == (1.0, 5)


def test_a_device_s_own_clock_gives_the_times_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = GenerationPrompt(name="traced", inputs={}, tokens=np.zeros((1, 4), np.int64), logits=np.zeros((4, 1, 7)))
    rule = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.1, min_samples=7, max_s=9.0)
    facts = times(monkeypatch, OwnClock((8, 2, 3, 4)), prompt, rule)
    assert (facts["ttft_ms"], facts["tpot_ms"], facts["itl_ms"]) == (7.0, 2.0, (1.0, 2.0, 3.0))
    assert set(facts["samples_wall_ns"]) == {13 * MS}
    assert facts["samples_cpu_ns"] == ()
    assert "yardstick" not in facts


def test_one_token_has_no_time_per_output_token(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = GenerationPrompt(name="traced", inputs={}, tokens=np.zeros((1, 1), np.int64), logits=np.zeros((1, 1, 7)))
    rule = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.1, min_samples=7, max_s=9.0)
    facts = times(monkeypatch, Scripted((8,)), prompt, rule)
    assert (facts["ttft_ms"], facts["prompt_tokens"]) == (8.0, None)
    assert "tpot_ms" not in facts


def test_a_target_that_cannot_generate_says_why() -> None:
    job: Any = types.SimpleNamespace(target=types.SimpleNamespace(backend="qnn"))
    with pytest.raises(UnsupportedError, match="the cache of the exported graphs grows with every token") as refused:
        generating.run(job, Progress(lambda _message: None))
    assert (refused.value.error_type, refused.value.needs) == ("generation_unsupported", ("a cache of fixed size",))


class Limited:
    """A target that is right for the traced prompt, and raises for others. ``spoiled``: it is wrong for all prompts after that."""

    def __init__(self, *, spoiled: bool, error: Exception) -> None:
        self.spoiled = spoiled
        self.error = error
        self.raised = False

    def generate(self, asked: GenerationPrompt, on_step: Callable[[int, Any], None], *, forced: bool) -> None:
        """Give the expected logits, or raise."""
        assert forced
        if asked.name != "traced":
            self.raised = True
            raise self.error
        factor = 2.0 if self.raised and self.spoiled else 1.0
        for number, logits in enumerate(asked.logits):
            on_step(number, lambda logits=logits: logits * factor)


@pytest.mark.parametrize(
    ("name", "spoiled", "error", "failure"),
    [
        ("longer", False, RuntimeError(DO_NOT_FIT), UnsupportedError),
        ("longer", False, CellFailure(DO_NOT_FIT, error_type="browser_runtime_failed"), UnsupportedError),
        ("longer", True, RuntimeError(DO_NOT_FIT), RuntimeError),
        ("padded", False, RuntimeError(DO_NOT_FIT), RuntimeError),
        ("longer", False, CrashedError(DO_NOT_FIT, error_type="webgpu_device_lost"), CrashedError),
    ],
)
def test_an_error_is_a_fault_of_the_export_only_if_the_traced_prompt_is_right_again(
    name: str, *, spoiled: bool, error: Exception, failure: type[Exception]
) -> None:
    traced, other = (
        GenerationPrompt(name=each, inputs={}, tokens=np.zeros((1, 2), np.int64), logits=np.ones((2, 1, 7), np.float32))
        for each in ("traced", name)
    )
    target: Any = Limited(spoiled=spoiled, error=error)
    told: list[dict[str, Any]] = []
    found = generating._Found(target, Progress(told.append))
    found.force(traced, "traced")
    with pytest.raises(failure, match=DO_NOT_FIT), generating._of_the_traced_length_only(found, traced, other):
        found.force(other, name)
    assert (told[-1]["stage"], told[-1]["facts"]["failing_prompt"], told[-1]["facts"]["failing_step"]) == ("prefill", name, 0)


class Rounded:
    """A target that multiplies the expected logits by a number for each prompt, and another one with its weights in float32."""

    def __init__(self, own: dict[str, float], in_float: dict[str, float] | None = None) -> None:
        self.own = own
        self.float = in_float

    def generate(self, asked: GenerationPrompt, on_step: Callable[[int, Any], None], *, forced: bool) -> None:
        """Give the expected logits times the number of the prompt, from the second step on."""
        assert forced
        for number, logits in enumerate(asked.logits):
            if number and asked.name not in self.own:
                raise IndexError("there is no such step")
            scaled = logits * (self.own[asked.name] if number else 1.0)
            on_step(number, lambda scaled=scaled: scaled)

    def generator_in_float(self) -> Rounded:
        """The other one."""
        if self.float is None:
            raise TwinError("no constants")
        return Rounded(self.float)


@pytest.mark.parametrize(
    ("own", "in_float", "error_type", "exported"),
    [
        (1.05, 1.05, None, False),  # rounding costs less than is allowed, and the kernels are right
        (1.3, 1.3, "precision_loss", True),  # it costs more than is allowed
        (1.05, 1.0, "mismatch", False),  # the kernels are wrong, by less than rounding may cost
        (1.05, 1.0, "shape_specialized", True),  # and an export is right for one length
        (1.05, math.nan, None, False),  # the graph fails in float32
        (1.05, None, None, False),  # there is nothing to compare with: the fixed limit decides
        (1.3, None, "mismatch", False),
    ],
)
def test_rounded_weights_are_compared_twice(own: float, in_float: float | None, error_type: str | None, *, exported: bool) -> None:
    prompts = [
        GenerationPrompt(name=name, inputs={}, tokens=np.zeros((1, 3), np.int64), logits=np.ones((3, 1, 7), np.float32))
        for name in ("traced", "longer")
    ]
    fails = in_float is not None and math.isnan(in_float)
    of_float = None if in_float is None else {"traced": 1.0} | ({} if fails else {"longer": in_float})
    target: Any = Rounded({"traced": 1.0, "longer": own}, of_float)
    kept = Kept()
    progress: Any = kept
    found = generating._Found(target, progress)
    for each in prompts:
        found.force(each, each.name)
    floor = NoiseFloor(outputs={str(number): 1e-6 for number in range(3)})
    asked = Generation(forced=tuple(prompts), free=(), floors={Dtype.FLOAT32: floor})
    allowance = verdict.Allowance(dtype=Dtype.INT8, tolerance=Tolerance(relative_error=0.2, reason="a test", excess=8.0, bound=100.0))
    descriptor: Any = types.SimpleNamespace(rounds=(Dtype.INT8,), exports=("an exporter",) if exported else ())
    judged = generating._judged(found, asked, Placement(on_target=1.0, detail=""), allowance, None, descriptor, progress)
    assert judged.error_type == error_type
    if error_type is not None:
        assert (kept.facts["failing_step"], kept.facts["failing_prompt"]) == (1, "longer")
    if in_float is None or fails:
        assert kept.facts["kernel_detail"] == ("IndexError: there is no such step" if fails else "no constants")
        assert judged.kernel_error is None
    else:
        assert kept.facts["kernel_detail"] is None
        assert judged.loss == pytest.approx(in_float - 1.0, abs=1e-6)
        assert kept.facts["kernel_error"] == pytest.approx(abs(own / in_float - 1), abs=1e-6)


def test_an_exported_graph_is_asked_only_what_transformers_does_in_passes() -> None:
    steps = ({"input_ids": np.zeros((1, 1))},)
    whole, odd = (
        GenerationPrompt(name=name, inputs={}, tokens=np.zeros((1, 1), np.int64), logits=np.ones((1, 1, 7)), steps=each)
        for name, each in (("traced", steps), ("odd", ()))
    )
    asked = Generation(forced=(whole, odd), free=(odd,), floors={})
    assert asked.in_passes() == Generation(forced=(whole,), free=(), floors={})
    with pytest.raises(UnmakableError) as caught:
        Generation(forced=(odd, whole), free=(), floors={}).in_passes()
    assert caught.value.error_type == "no_generation"
