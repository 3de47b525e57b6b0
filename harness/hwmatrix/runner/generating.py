"""A cell that generates: prefill of several prompts, and decoding with the cache, step by step.

The continuation of each prompt is forced (:mod:`hwmatrix.models.generation`), and the logits of every step are compared with the
reference's. A trained model also continues examples of its task with its own tokens. Then the first prompt is timed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from hwmatrix.basics.garbage import without_collection
from hwmatrix.errors import CellFailure, UnsupportedError
from hwmatrix.measure import latency, memory, parity, positions, verdict
from hwmatrix.models import bundle as bundles
from hwmatrix.models.generation import LENGTH, PADDED, TRACED, UNCACHED
from hwmatrix.models.generation_export import DECODE, PREFILL, SPECIALIZED
from hwmatrix.models.learning import quality
from hwmatrix.records import Dtype, NoiseFloor, Role, Stage, Status
from hwmatrix.records.backends import descriptor_of
from hwmatrix.runner.job import (
    CellJob,
    Judged,
    Progress,
    judged_found,
    judged_in,
    memory_found,
    quality_found,
    take_samples,
    timed,
    unless_it_fails,
)
from hwmatrix.targets.protocol import Generating, target_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hwmatrix.measure.parity import Comparison
    from hwmatrix.models.bundle import Generation, GenerationPrompt
    from hwmatrix.records import MeasureRule, Placement
    from hwmatrix.records.backends import Descriptor
    from hwmatrix.targets.protocol import GeneratingInFloat, RoundingGenerating

    Array = np.ndarray[Any, Any]

_AGAIN: Final = "repeated"
"""The name of the first prompt when it comes once more, after all others: a state that is not reset would show."""
_NEARLY: Final = 0.1
"""The relative L2 error up to which logits count as right in any precision, when only an exception is to be explained."""
_ANSWERS: Final = quality.Answers(kind="tokens", outputs=("logits",))


def run(job: CellJob, progress: Progress) -> Judged:
    """Generate, compare and time.

    Raises:
        CellFailure: an outcome that has a status of its own.
    """
    descriptor = descriptor_of(job.target.backend)
    _check(descriptor)
    kind = target_class(job.target.backend)
    with without_collection():
        kind.preload(job.model_classes)  # a forked child inherits this from its parent; a spawned one does not
    meter = memory.Meter((job.service or {}).get("process"))
    progress.enter(Stage.LOAD)
    target = cast("Generating", kind(settings=job.cell.settings, options=job.target.options, service=job.service))
    target.check()
    bundle = bundles.verify(job.bundle)
    asked = bundle.generation().in_passes() if descriptor.exports else bundle.generation()
    asked = _with_wrong_logits(asked) if job.model.role is Role.CANARY_WRONG else asked
    progress.found(bundle=bundle.digest, inputs=bundle.kinds, text_path=bundle.text_path)
    parameters, load_ms = timed(lambda: target.load_generator(bundle))
    # Exported graphs are read where they are compiled: their loading is part of ``prepare_ms``.
    progress.found(parameters=parameters, load_ms=None if descriptor.exports else load_ms)

    progress.enter(Stage.PREPARE)
    prepared, prepare_ms = timed(lambda: target.prepare_generator(asked.forced[0]))
    reported = target.precision()
    progress.found(**dataclasses.asdict(prepared), prepare_ms=prepare_ms, precision=reported)
    dtype = judged_in(job, reported)
    meter.loaded()

    found = _Found(target, progress)
    first = asked.forced[0]
    found.force(first, first.name)
    progress.found(first_ms=found.first_ms, **memory_found(meter.ran(), target.device_use()))
    for prompt in asked.forced[1:]:
        with _of_the_traced_length_only(found, first, prompt) if descriptor.exports else contextlib.nullcontext():
            found.force(prompt, prompt.name)
    found.force(first, _AGAIN)
    task = found.continue_freely(asked.free)
    progress.found(failing_component=None, failing_step=None, failing_prompt=None)
    placement = target.placement()
    progress.found(on_target=placement.on_target, placement_detail=placement.detail)

    progress.enter(Stage.COMPARE)
    allowance = verdict.Allowance(dtype=dtype, tolerance=job.tolerances[dtype], floor=found.floor(asked, dtype))
    judged = _judged(found, asked, placement, allowance, task, descriptor, progress)
    rule = job.rule if judged.computes_right else None

    def measure_rest(deadline: float) -> None:
        if rule is None:
            return
        progress.enter(Stage.MEASURE)
        if _time(target, first, rule, found.took_s[TRACED], deadline=deadline, progress=progress):
            progress.report()
            _time_by_length(target, asked.forced, rule, found.took_s, deadline=deadline, progress=progress)

    return Judged(verdict=judged, target=target, bundle=bundle, measure=measure_rest)


def _judged(  # noqa: PLR0917 - what a cell has at this point
    found: _Found,
    asked: Generation,
    placement: Placement,
    allowance: verdict.Allowance,
    task: quality.Quality | None,
    descriptor: Descriptor,
    progress: Progress,
) -> verdict.Judgement:
    """Compare the logits of all steps with the reference's and, of rounded weights, with those of the same weights in float32."""
    compared = found.compared()
    progress.found(**(dataclasses.asdict(compared.worst) if compared.worst else {}))
    judged = verdict.judge(compared, placement, allowance, task)
    if allowance.dtype in descriptor.rounds and verdict.incomparable(compared) is None:
        twin = unless_it_fails(lambda: found.twin(asked, allowance.dtype), judged, progress)
        judged = judged if twin is None else verdict.judge(compared, placement, allowance, task, twin=twin)
    progress.found(**judged_found(judged), cache_error=found.cache_error(), **found.first_failing(judged))
    if judged.error_type != "mismatch":
        return judged
    return found.explained(judged, exported=bool(descriptor.exports))


def _check(descriptor: Descriptor) -> None:
    if descriptor.no_generation is not None:
        raise UnsupportedError(descriptor.no_generation, needs=("a cache of fixed size",), error_type="generation_unsupported")


def _with_wrong_logits(asked: Generation) -> Generation:
    """The forced prompts with other logits than the reference's: a target that passes with these is not really compared."""
    forced = tuple(dataclasses.replace(prompt, logits=np.roll(prompt.logits, 1, axis=-1)) for prompt in asked.forced)
    return dataclasses.replace(asked, forced=forced, free=())


class _Found:
    """The logits of every step, by prompt, and where generation is: if the process ends, its parent knows the step."""

    def __init__(self, target: Generating, progress: Progress) -> None:
        self._target = target
        self._progress = progress
        self._logits: dict[str, list[Array]] = {}
        self._expected: dict[str, Array] = {}
        self._prompts: dict[str, GenerationPrompt] = {}
        self._where = (Stage.PREFILL, PREFILL, 0, TRACED)
        self.first_ms: float | None = None
        self.took_s: dict[str, float] = {}

    def force(self, prompt: GenerationPrompt, name: str) -> None:
        """Generate with the prompt's continuation forced, and keep the logits and how long that took."""
        kept = self._logits.setdefault(name, [])
        self._expected[name], self._prompts[name] = prompt.logits, prompt
        begin = time.perf_counter()
        self._generate(prompt, name, kept.append, forced=True)
        self.took_s[name] = time.perf_counter() - begin

    def continue_freely(self, prompts: Sequence[GenerationPrompt]) -> quality.Quality | None:
        """Let a trained model continue examples of its task; None if there are none, or if its logits cannot be compared."""
        if not prompts:
            return None
        logits: list[Array] = []
        for prompt in prompts:
            steps: list[Array] = []
            self._generate(prompt, prompt.name, steps.append, forced=False)
            logits.append(np.stack(steps, axis=1))
        actual = {"logits": np.concatenate(logits)}
        expected = {"logits": np.concatenate([prompt.logits.swapaxes(0, 1) for prompt in prompts])}
        if verdict.incomparable(parity.compare(actual, expected)) is not None:
            self._progress.found(quality_detail="the logits of its own continuations cannot be compared")
            return None
        labels = np.concatenate([prompt.tokens for prompt in prompts])
        found = quality.quality(_ANSWERS, actual, expected, labels)
        self._progress.found(**quality_found(found, f"continues examples of its task freely, {labels.shape[1]} tokens each"))
        return found

    def _generate(self, prompt: GenerationPrompt, name: str, keep: Callable[[Array], None], *, forced: bool) -> None:
        begin = time.perf_counter()
        self._enter(Stage.PREFILL, PREFILL, 0, name)

        def on_step(number: int, logits: Callable[[], Array]) -> None:
            if self.first_ms is None:
                self.first_ms = (time.perf_counter() - begin) * 1000
            keep(logits())
            if number + 1 < prompt.tokens.shape[1]:
                self._enter(Stage.DECODE, DECODE, number + 1, name)

        self._target.generate(prompt, on_step, forced=forced)

    def _enter(self, stage: Stage, component: str, step: int, name: str) -> None:
        self._where = (stage, component, step, name)
        self._progress.found(failing_component=component, failing_step=step, failing_prompt=name)
        self._progress.enter(stage)

    def compared(self) -> Comparison:
        """The logits of all steps compared with the reference's, each step as an output of its own."""
        return parity.compare(_by_step(self._logits), _by_step(self._expected))

    def twin(self, asked: Generation, dtype: Dtype) -> verdict.Twin:
        """The logits of all steps compared with those of the rounded weights in float32.

        Raises:
            TwinError: these cannot generate, or their logits cannot be compared.
        """
        given = self._forced_by(cast("RoundingGenerating", self._target).generator_in_float())
        floor = self.floor(asked, dtype.kernels_in)
        return verdict.twin(_by_step(self._logits), given, _by_step(self._expected), None if floor is None else floor.outputs)

    def _forced_by(self, in_float: GeneratingInFloat) -> dict[str, Array]:
        """The logits of all steps that this generates for the same prompts."""
        found: dict[str, list[Array]] = {}
        for name, prompt in self._prompts.items():
            if name == _AGAIN:
                found[name] = found[TRACED]
                continue
            kept = found.setdefault(name, [])
            in_float.generate(prompt, lambda _number, logits, kept=kept: kept.append(logits()), forced=True)  # type: ignore[misc]
        return _by_step(found)

    def floor(self, asked: Generation, dtype: Dtype) -> NoiseFloor | None:
        """The noise floor of every step: the largest over those of the first prompt."""
        known = asked.floors.get(dtype)
        if known is None and (kernels := asked.floors.get(dtype.kernels_in)) is not None:
            return NoiseFloor(outputs=None, overflows=kernels.overflows)
        if known is None or known.outputs is None:
            return known
        largest = max(known.outputs.values())
        outputs = {_output(name, number): largest for name, steps in self._logits.items() for number in range(len(steps))}
        return dataclasses.replace(known, outputs=outputs)

    def first_failing(self, judged: verdict.Judgement) -> dict[str, Any]:
        """The prompt, the step and the component whose logits are the first that differ too much, by the fields of ``Measured``."""
        for name, number in self._wrong(judged):
            component = DECODE if number else PREFILL
            return {"failing_component": component, "failing_step": number, "failing_prompt": name}
        return {}

    def _wrong(self, judged: verdict.Judgement) -> list[tuple[str, int]]:
        """The prompts and steps whose logits differ too much, in the order in which they were computed."""
        wrong = {*judged.failing}
        return [(name, number) for name, steps in self._logits.items() for number in range(len(steps)) if _output(name, number) in wrong]

    def stays_right(self, first: GenerationPrompt) -> bool:
        """Whether the traced prompt was right, and is right again now. Where generation was before stays where it is."""
        where = self._where
        try:
            if self._nearly_right(TRACED):
                self.force(first, _AGAIN)
        except Exception:  # noqa: BLE001 - whatever it raises, it is not right again
            return False
        finally:
            self._enter(*where)
        return self._nearly_right(TRACED) and self._nearly_right(_AGAIN)

    def _nearly_right(self, name: str) -> bool:
        actual, expected = self._logits.get(name, []), self._expected.get(name)
        return expected is not None and all(_relative_error(logits, expected[step]) <= _NEARLY for step, logits in enumerate(actual))

    def cache_error(self) -> float | None:
        """The relative L2 error of the traced prompt's last logits against those of the same tokens without a cache; None: not known."""
        without = self._logits.get(UNCACHED)
        if not without or not np.isfinite(without[0]).all() or not np.isfinite(self._logits[TRACED][-1]).all():
            return None
        return _relative_error(self._logits[TRACED][-1], without[0])

    def explained(self, judged: verdict.Judgement, *, exported: bool) -> verdict.Judgement:
        """A mismatch with its kind, where the prompts tell it: a fault of the cache, or an export for one length."""
        wrong = self._wrong(judged)
        names = {name for name, _ in wrong}
        last = (TRACED, len(self._logits[TRACED]) - 1)
        if last in wrong and (TRACED, 0) not in wrong and UNCACHED in self._logits and UNCACHED not in names:
            kind, why = "cache_mismatch", "without its cache the target computes the same step right"
        elif UNCACHED in names and last in wrong:
            kind, why = "mismatch", "without its cache the target is wrong too: the cache is not the cause"
        elif exported and wrong and names.isdisjoint({TRACED, _AGAIN}) and names - {PADDED}:
            listed = ", ".join(dict.fromkeys(name for name, _ in wrong))
            kind, why = SPECIALIZED, f"the traced prompt is right, prompts of other lengths are wrong ({listed})"
        else:
            return judged
        return dataclasses.replace(judged, error_type=kind, message=f"{judged.message}; {why}")


@contextlib.contextmanager
def _of_the_traced_length_only(found: _Found, first: GenerationPrompt, prompt: GenerationPrompt) -> Iterator[None]:
    """An error on a prompt of another length than the traced one is a fault of the export, if the traced one is right before and after.

    If it is not right again, the error has another cause, such as a state that was not reset. An outcome with a status of its own, such as
    a crash, keeps it.

    Raises:
        UnsupportedError: such an error (``shape_specialized``).
    """
    try:
        yield
    except Exception as error:
        own_status = isinstance(error, CellFailure) and error.status != Status.ERROR
        if own_status or prompt.name == PADDED or not found.stays_right(first):
            raise
        message = f"the export is right for the traced prompt, and fails on the {prompt.name} one: {type(error).__name__}: {error}"
        raise UnsupportedError(message, needs=("dynamic axes",), error_type=SPECIALIZED) from error


def _relative_error(actual: Array, expected: Array) -> float:
    size = float(np.linalg.norm(expected))
    return float(np.linalg.norm(actual - expected)) / size if size else float(np.linalg.norm(actual))


def _by_step(logits: Mapping[str, Iterable[Array]]) -> dict[str, Array]:
    """Each step's logits as an output of its own."""
    return {_output(name, number): each for name, steps in logits.items() for number, each in enumerate(steps)}


def _output(prompt: str, step: int) -> str:
    """The name of a step's logits in messages."""
    return f"the logits of step {step} after the {prompt} prompt"


def _time(target: Generating, prompt: GenerationPrompt, rule: MeasureRule, took_s: float, *, deadline: float, progress: Progress) -> bool:
    """Time a prompt and its continuation until the rule is met, and watch the memory. False: there was no time for it."""
    resident = memory.resident()
    timed = _Timed(target, prompt)
    timing = take_samples(timed.call, rule, progress, deadline=deadline, took_s=took_s)
    if timing is None:
        return False
    gaps = timed.gaps(timing)
    facts: dict[str, Any] = {"prompt_tokens": _tokens(prompt), "cache_mb": target.cache_mb()}
    facts |= _median("ttft", gaps[:, 0])
    if gaps.shape[1] > 1:
        facts |= _median("tpot", gaps[:, 1:].mean(axis=1)) | {"itl_ms": tuple(float(value) for value in np.median(gaps[:, 1:], axis=0))}
        change = positions.change(gaps[:, 1:])
        facts |= {} if change is None else {"itl_change_ms": change.ms, "itl_change_at": change.token}
    progress.found(**facts)
    now = memory.resident()
    repetitions = max(len(gaps), memory.LEAST_REPETITIONS)
    in_time = time.perf_counter() + repetitions * max(timing.wall_ns) / 1e9 <= deadline
    if resident is not None and now is not None and now.now_mb - resident.now_mb >= memory.LEAK_MB and in_time:
        progress.found(growth_kb=_growth_kb(target, prompt, repetitions))
    return True


def _growth_kb(target: Generating, prompt: GenerationPrompt, repetitions: int) -> float | None:
    """Generate again, and read the memory after each time, which would disturb a timing. Returns the KiB that leak with each token."""
    held: list[float] = []
    for _ in range(repetitions):
        target.generate(prompt, lambda _number, _logits: None, forced=True)
        held.append(_resident_mb())
    growth = memory.growth(held)
    return None if growth is None else growth * 1024 / prompt.tokens.shape[1]


def _resident_mb() -> float:
    found = memory.resident()
    return found.now_mb if found is not None else 0.0


def _time_by_length(
    target: Generating,
    prompts: Sequence[GenerationPrompt],
    rule: MeasureRule,
    took_s: Mapping[str, float],
    *,
    deadline: float,
    progress: Progress,
) -> None:
    """Time the prompts of given lengths as far as there is time, if there are at least two. ``took_s`` is how long each took before.

    Each is repeated for the longest time of the rule, and at least once: a curve needs no intervals.
    """
    few = dataclasses.replace(rule, warmup_s=0.0, warmup_iterations=1, min_samples=1)
    chosen = [prompt for prompt in prompts if prompt.name.startswith(LENGTH)]
    if len(chosen) <= 1:
        return
    timed: list[Array] = []
    caches: list[float | None] = []
    for prompt in chosen:
        calls = _Timed(target, prompt)
        timing = latency.measure(calls.call, few, deadline=deadline, took_s=took_s[prompt.name], least=1)
        if timing is None:
            break
        timed.append(calls.gaps(timing))
        caches.append(target.cache_mb())
    if len(timed) <= 1:
        return
    known = [size for size in caches if size is not None]
    progress.found(
        lengths=tuple(int(prompt.inputs["input_ids"].shape[1]) for prompt in chosen[: len(timed)]),
        lengths_ttft_ms=tuple(float(np.median(gaps[:, 0])) for gaps in timed),
        lengths_tpot_ms=tuple(float(np.median(gaps[:, 1:].mean(axis=1))) for gaps in timed) if timed[0].shape[1] > 1 else None,
        lengths_cache_mb=tuple(known) if len(known) == len(caches) else None,
    )


class _Timed:
    """A prompt and its continuation as a call that is timed, and the times between its tokens."""

    def __init__(self, target: Generating, prompt: GenerationPrompt) -> None:
        self._target = target
        self._prompt = prompt
        self._taken: list[Array] = []

    def call(self) -> int | None:
        """Generate; return the nanoseconds by the device's own clock, if it has one."""
        stamps = [time.perf_counter_ns()]
        own = self._target.generate(self._prompt, lambda _number, _logits: stamps.append(time.perf_counter_ns()), forced=True)
        self._taken.append(np.diff(np.array(stamps, dtype=np.int64)) if own is None else np.array(own, dtype=np.int64))
        return None if own is None else sum(own)

    def gaps(self, timing: latency.Timing) -> Array:
        """The milliseconds to each token from the one before (repetitions, tokens), without the warm-up."""
        found: Array = np.stack(self._taken[timing.warmup_samples :]) / 1e6
        return found


def _median(name: str, values: Array) -> dict[str, float]:
    ordered = sorted(float(value) for value in values)
    interval = latency.median_interval(ordered)
    found = {f"{name}_ms": latency.median(ordered)}
    return found if interval is None else found | {f"{name}_low_ms": interval[0], f"{name}_high_ms": interval[1]}


def _tokens(prompt: GenerationPrompt) -> int | None:
    return int(prompt.inputs["input_ids"].shape[1]) if "input_ids" in prompt.inputs else None
