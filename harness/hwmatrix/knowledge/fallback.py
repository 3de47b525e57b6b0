"""What to try after a failed attempt (a policy without side effects), and the report of every fallback.

The policy depends only on statuses and hardware, so that a run of cells, the resource pool and a scheduler can all use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.faults.catalogue import UNMATCHED, advice_for
from hwmatrix.knowledge.adapting import short_of_memory, smaller_batch
from hwmatrix.records import Backend, Dtype, Execution, Isolation, ModelPlan, Settings, Size, Status
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.knowledge.evidence import Evidence


RETRIES: Final = 1
"""How often an attempt is repeated after a status that may be transient."""
_MOST_MEMORY: Final = Backend.CPU
"""The fallback for models that are too large for a device: the host's memory is the largest, and can be swapped."""

_DONE: Final = frozenset({Status.PASS, Status.MISMATCH, Status.FALLBACK, Status.FACTORY_ERROR, Status.NOT_RUN})
_ACCIDENTS: Final = frozenset({Status.CRASH, Status.TIMEOUT, Status.INFRA_ERROR})
_REFUSALS: Final = frozenset({Status.UNSUPPORTED, Status.ERROR})
_EXECUTED: Final = frozenset({Status.PASS, Status.MISMATCH})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptPlan:
    """What may be tried: hardware in order (``cuda:1`` is one GPU of several), the requested batch, the number of retries.

    ``adapt_batch`` allows smaller batches.

    Raises:
        ConfigError: no hardware, a hardware twice, a batch below 1, or a negative number of retries.
    """

    order: tuple[str, ...]
    batch: int = 1
    retries: int = RETRIES
    adapt_batch: bool = True

    def __post_init__(self) -> None:
        """Check the values."""
        problems = []
        if not self.order:
            problems.append(Problem(where="hardware", what="there is none to try", hint="name at least one"))
        if len(set(self.order)) < len(self.order):
            problems.append(Problem(where="hardware", what=f"one is listed twice: {', '.join(self.order)}", hint="name each once"))
        if self.batch < 1:
            problems.append(Problem(where="batch", what=f"{self.batch} samples make no batch", hint="use 1 or more"))
        if self.retries < 0:
            problems.append(Problem(where="retries", what=f"{self.retries} is not a valid number of retries", hint="use 0 or more"))
        if problems:
            raise ConfigError(problems)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt. ``retry`` counts how often exactly this was tried before."""

    hardware: str
    batch: int = 1
    retry: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
    """An attempt and how it ended. ``error_type`` is the catalogue's; ``wall_ms`` is the duration of the attempt, if measured.

    ``dtype`` and ``batch`` are what the model was run with; None: not known.
    """

    attempt: Attempt
    status: Status
    reason: str | None = None
    error_type: str | None = None
    wall_ms: float | None = None
    dtype: Dtype | None = None
    batch: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What a fallback costs: milliseconds per sample on the expected hardware, and on the one that executed the model.

    ``factor`` is the second over the first. A time that was not measured is None, and ``note`` says so.
    """

    expected_ms: float | None = None
    actual_ms: float | None = None
    note: str = "not measured"

    @property
    def factor(self) -> float | None:
        """How many times longer a sample took than expected; below 1 it was faster."""
        return self.actual_ms / self.expected_ms if self.expected_ms and self.actual_ms is not None else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FallbackReport:
    """What was expected and what happened: every attempt, the hardware that finally executed the model, and the cost.

    ``actual`` is None if nothing executed the model. ``batch`` is the requested batch, ``actual_batch`` the one that ran.
    """

    model: str
    expected: str
    actual: str | None
    batch: int
    actual_batch: int | None
    status: Status
    attempts: tuple[Tried, ...]
    cost: Cost = dataclasses.field(default_factory=Cost)

    @property
    def fell_back(self) -> bool:
        """Whether the model ran on other hardware or with a smaller batch than requested. Any GPU of the requested kind will do."""
        as_expected = self.actual is not None and self.expected in {self.actual, kind_of(self.actual)}
        return not as_expected or self.actual_batch != self.batch

    @property
    def lost_ms(self) -> float | None:
        """The time lost in failed attempts, in milliseconds; None if none was timed."""
        led_nowhere = self.attempts[:-1] if self.status in _EXECUTED else self.attempts
        times = [tried.wall_ms for tried in led_nowhere if tried.wall_ms is not None]
        return sum(times) if times else None

    @property
    def recommendations(self) -> tuple[str, ...]:
        """Advice on the failed attempts from the catalogue, each once. There is none for unrecognized errors."""
        advice: list[str] = []
        for tried in self.attempts:
            if tried.status is not Status.PASS and tried.error_type not in {None, UNMATCHED}:
                kind = kind_of(tried.attempt.hardware)
                advice += advice_for(str(tried.error_type), kind, dtype=tried.dtype, batch=tried.batch)
        return tuple(dict.fromkeys(advice))

    def sentence(self) -> str:
        """The report in one line."""
        if self.actual is None:
            what = f"{self.model} ran nowhere; {self.expected} was expected"
        elif not self.fell_back:
            what = f"{self.model} ran on {self.actual}, as expected"
        else:
            batch = f" with batch {self.actual_batch} instead of {self.batch}" if self.actual_batch != self.batch else ""
            what = f"{self.model} ran on {self.actual}{batch}; {self.expected} was expected"
        why = "; ".join(
            f"{tried.attempt.hardware}: {tried.status.value}{_reason_suffix(tried)}" for tried in self.attempts[: self._failures]
        )
        return f"{what} ({why})" if why else what

    @property
    def _failures(self) -> int:
        return len(self.attempts) - (self.status in _EXECUTED)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON. Values that were not measured are None."""
        return {
            "model": self.model,
            "expected_hardware": self.expected,
            "actual_hardware": self.actual,
            "fell_back": self.fell_back,
            "status": self.status.value,
            "batch": self.batch,
            "actual_batch": self.actual_batch,
            "attempts": [
                {
                    "hardware": tried.attempt.hardware,
                    "batch": tried.attempt.batch,
                    "retry": tried.attempt.retry,
                    "status": tried.status.value,
                    "reason": tried.reason,
                    "error_type": tried.error_type,
                    "wall_ms": tried.wall_ms,
                }
                for tried in self.attempts
            ],
            "lost_ms": self.lost_ms,
            "cost": {**dataclasses.asdict(self.cost), "factor": self.cost.factor},
            "recommendations": list(self.recommendations),
        }


def general_purpose(hardware: str) -> bool:
    """Whether PyTorch runs a model's own code there, so that no converter is needed."""
    return hardware in tuple(Backend) and descriptor_of(hardware).torch_device is not None


def next_attempt(plan: AttemptPlan, tried: Sequence[Tried] = ()) -> Attempt | None:
    """The next attempt after those in ``tried``; None if nothing is left that could help.

    ===================  =========================================================================================
    ``unavailable``      the next hardware in order
    ``oom``              half the batch, down to 1; then the CPU, with the whole batch again
    ``unsupported``      the next hardware in order that runs a model's own code (a GPU or the CPU, through PyTorch)
    ``error``            the same
    ``crash``            the same again, ``plan.retries`` times; then the next hardware in order
    ``timeout``          the same
    ``infra_error``      the same
    ``mismatch``         nothing: wrong numbers are a result, and correct ones from other hardware would hide it
    ``factory_error``    half the batch if the reference ran out of memory; else nothing: other hardware cannot help
    ``pass``             nothing; the same for ``fallback`` (the target itself computed elsewhere) and ``not_run`` (cut off)
    ===================  =========================================================================================

    The same arguments give the same answer, and every answer is a new attempt, so a loop over it ends.
    """
    if not tried:
        return Attempt(hardware=plan.order[0], batch=plan.batch)
    last = tried[-1]
    short = short_of_memory(last.status, last.error_type, last.reason, hardware=kind_of(last.attempt.hardware))
    smaller = smaller_batch(last.attempt.batch)
    if short and plan.adapt_batch and smaller is not None:
        return Attempt(hardware=last.attempt.hardware, batch=smaller)
    if last.status in _DONE:
        return None
    if last.status in _ACCIDENTS and last.attempt.retry < plan.retries:
        return dataclasses.replace(last.attempt, retry=last.attempt.retry + 1)
    left = _left(plan, tried)
    if last.status is Status.OOM:
        left = [hardware for hardware in left if kind_of(hardware) == _MOST_MEMORY] or left
    elif last.status in _REFUSALS:
        left = [hardware for hardware in left if general_purpose(kind_of(hardware))]
    return Attempt(hardware=left[0], batch=plan.batch) if left else None


def report_of(
    model: str, plan: AttemptPlan, tried: Sequence[Tried], *, expected: str | None = None, cost: Cost | None = None
) -> FallbackReport:
    """The report on finished attempts. ``expected`` is the first hardware of the plan unless the user asked for another.

    Raises:
        ValueError: nothing was tried.
    """
    if not tried:
        raise ValueError("a report needs at least one attempt")
    last = tried[-1]
    executed = last.status in _EXECUTED
    return FallbackReport(
        model=model,
        expected=expected or plan.order[0],
        actual=last.attempt.hardware if executed else None,
        batch=plan.batch,
        actual_batch=last.attempt.batch if executed else None,
        status=last.status,
        attempts=tuple(tried),
        cost=cost or Cost(),
    )


def cost_of(expected_p50_ms: float | None, expected_batch: int, actual_p50_ms: float | None, actual_batch: int) -> Cost:
    """A fallback's cost from two measured medians of one forward pass, each over its batch."""
    expected = None if expected_p50_ms is None else expected_p50_ms / expected_batch
    actual = None if actual_p50_ms is None else actual_p50_ms / actual_batch
    missing = [name for name, value in (("the expected hardware", expected), ("the actual one", actual)) if value is None]
    note = f"not measured on {' and on '.join(missing)}" if missing else "measured: median latency of a batch over its samples"
    return Cost(expected_ms=expected, actual_ms=actual, note=note)


def kind_of(hardware: str) -> str:
    """The kind of one piece of hardware: ``cuda`` of ``cuda:1``."""
    return hardware.partition(":")[0]


def _left(plan: AttemptPlan, tried: Sequence[Tried]) -> list[str]:
    """The untried hardware after the last attempt's in the plan."""
    before = {each.attempt.hardware for each in tried}
    last = tried[-1].attempt.hardware
    after = plan.order[plan.order.index(last) + 1 :] if last in plan.order else plan.order
    return [hardware for hardware in after if hardware not in before]


def _reason_suffix(tried: Tried) -> str:
    return f", {tried.reason.splitlines()[0]}" if tried.reason else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Likeness:
    """Selects comparable rows: of this model and size, on this machine, in this isolation.

    ``settings`` are those of each target by name; a row with another precision, sequence length or number of threads does not count. None:
    any do. The batch may differ, as times are compared by sample.
    """

    model: ModelPlan
    size: Size
    host: str
    isolation: Isolation
    settings: Mapping[str, Settings] | None = None

    def rows(self, evidence: Sequence[Evidence]) -> list[Evidence]:
        """The rows that passed on real hardware and were timed, the newest first."""
        return [
            row
            for row in evidence
            if row.is_same_model(self.model, self.model.name)
            and (row.size, row.host, row.isolation) == (self.size, self.host, self.isolation)
            and (row.status, row.execution) == (Status.PASS, Execution.HARDWARE)
            and row.p50_ms is not None
            and not row.new_tokens
            and self._has_the_settings(row)
        ]

    def _has_the_settings(self, row: Evidence) -> bool:
        if self.settings is None:
            return True
        here = self.settings.get(row.target)
        return here is not None and (row.dtype, row.sequence_length, row.threads) == (here.dtype, here.sequence_length, here.threads)


def measured_hardware(evidence: Sequence[Evidence], like: Likeness) -> tuple[str, ...]:
    """Hardware on which the model passed, the fastest per sample first, each by its newest row."""
    newest: dict[str, Evidence] = {}
    for row in like.rows(evidence):
        newest.setdefault(row.backend.value, row)
    return tuple(sorted(newest, key=lambda hardware: _sample_ms(newest[hardware])))


def measured_cost(
    evidence: Sequence[Evidence], like: Likeness, *, expected: str, batch: int, actual_ms: float | None, actual_batch: int
) -> Cost:
    """A fallback's cost relative to the newest row of the expected hardware, preferably one with the requested batch."""
    there = [row for row in like.rows(evidence) if row.backend.value == expected]
    row = next((each for each in there if each.batch == batch), there[0] if there else None)
    if row is None:
        return cost_of(None, batch, actual_ms, actual_batch)
    cost = cost_of(row.p50_ms, row.batch, actual_ms, actual_batch)
    return dataclasses.replace(cost, note=f"{cost.note}; expected: run {row.run_id}, batch {row.batch}")


def _sample_ms(row: Evidence) -> float:
    return (row.p50_ms or 0.0) / row.batch
