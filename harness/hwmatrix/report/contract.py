"""The types of the JSON reports, the source of both the written JSON and the published JSON Schemas.

Every key is always present. What was not measured is null, never 0. Times are wall-clock milliseconds, memory is MiB,
timestamps are UTC in ISO 8601.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final, Literal

import pydantic
from pydantic.dataclasses import dataclass

from hwmatrix.records import Dtype, Execution, Family, Isolation, Level, Origin, Preparation, Severity, Size, Stage, Status

MATRIX_SCHEMA: Final = "hwmatrix/matrix/1"
ERRORS_SCHEMA: Final = "hwmatrix/errors/2"
GROUPS_SCHEMA: Final = "hwmatrix/groups/1"

_STRICT = pydantic.ConfigDict(extra="forbid", ser_json_inf_nan="null")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class RejectedShard:
    """A shard that the merge refused, and why."""

    file: str
    reason: str


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class PartEntry:
    """One of the runs that the cells come from: how many of them it executed, on which targets."""

    run_id: str
    created_at: dt.datetime
    command: str
    hwmatrix_version: str
    commit_id: str | None
    cells: int
    targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class RunEntry:
    """The run: its command, the version of hwmatrix, and how its cells ended (cells by status).

    ``models`` are counted once each, in whatever sizes and settings. ``parts`` are the runs that the cells come from, the newest first:
    several if the latest verdicts of many runs are reported.
    """

    run_id: str
    created_at: dt.datetime
    command: str
    hwmatrix_version: str
    commit: str | None
    matrix_sha256: str
    isolation: Isolation
    models: int
    counts: dict[Status, int]
    rejected: tuple[RejectedShard, ...]
    parts: tuple[PartEntry, ...] = ()


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class HardwareEntry:
    """One kind of hardware that was looked for: facts by name, or why it is absent."""

    hardware_type: str
    available: bool
    name: str | None
    features: dict[str, Any]
    reason: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class TargetEntry:
    """A target as one shard ran it. A target that left no shard has one entry, with nulls."""

    name: str
    backend: str
    execution: Execution
    unavailable: str | None
    isolation: Isolation | None
    image: str | None
    image_digest: str | None
    host: str | None
    interpreter: str | None
    versions: dict[str, str] | None
    canary_ok: bool | None
    canary_detail: str | None
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    hardware: tuple[HardwareEntry, ...]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ModelEntry:
    """A model in one size. ``parameters`` is a count; ``unbuildable`` says why the model cannot be built.

    ``weights`` says where its weights come from: ``recipe`` (random, matrix.yaml has its configuration), ``factory`` (random, hwmatrix made
    its configuration from the type alone), ``hub``, or the path of a folder; null if the plan does not say.
    """

    name: str
    size: Size
    family: Family
    architecture: str
    hub_id: str | None
    parameters: int | None
    unbuildable: str | None
    weights: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class SettingsEntry:
    """The settings of a cell. ``new_tokens`` is how many tokens are generated; 0: one forward pass."""

    size: Size
    dtype: Dtype
    batch: int
    sequence_length: int
    threads: int
    new_tokens: int


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class PlacementEntry:
    """The share (0 to 1) of the work that ran on the target, and how that is known."""

    on_target: float | None
    detail: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ParityEntry:
    """The distance from the reference: relative L2 error, largest absolute error, cosine.

    ``loss`` is the relative L2 error that the precision alone causes in this model, simulated on the CPU; ``excess`` is the target's error
    as a multiple of that noise floor; ``approximate`` says that the cell passes only because it does its task as well. They are null if
    the noise floor is not known or did not decide.

    ``kernel_error`` is not null if the target was compared with its own rounded weights in float32: its distance from these, a relative L2
    error, of the output whose excess is given. ``loss`` is then the error of those weights, and ``excess`` the distance as a multiple of
    the noise floor of float32 (of ``int4_float16``: of float16) or, where activations are rounded too, of what rounding costs.
    ``kernel_detail`` says why a target that rounds weights was not compared. ``allowed_error`` is the relative L2 error that was allowed.
    """

    relative_error: float | None
    max_error: float | None
    cosine: float | None
    loss: float | None = None
    excess: float | None = None
    approximate: bool | None = None
    kernel_error: float | None = None
    kernel_detail: str | None = None
    allowed_error: float | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class QualityEntry:
    """How well a trained model does its task: the share (0 to 1) of held-out inputs that are right.

    ``value`` is the target's, ``reference`` the reference's on the same ``inputs``, ``interval`` the 95 % interval of ``value``.
    ``agreement`` is the share of answers that equal the reference's. ``kl`` is the mean divergence of its probabilities from the
    reference's in nats, null for embeddings; ``cosine`` the mean cosine between both outputs; ``relative_error`` the relative L2 error of
    the worst output over all inputs. Without a ``metric``, ``detail`` says why there is none. ``kernel_error`` is that of
    :class:`ParityEntry` on the held-out inputs. ``lost`` answers are right only in the reference, ``gained`` only here.
    """

    metric: str | None
    reference: float | None
    value: float | None
    agreement: float | None
    interval: tuple[float, float] | None
    inputs: int | None
    kl: float | None
    cosine: float | None
    relative_error: float | None
    detail: str | None
    kernel_error: float | None = None
    lost: int | None = None
    gained: int | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class LatencyEntry:
    """One inference. ``ci95`` is the 95 % interval of the median; ``contended`` says that something disturbed the timing.

    ``inputs_s`` are the inputs (samples of the batch) per second, at the median.
    """

    p50_ms: float
    p90_ms: float
    p99_ms: float
    mean_ms: float
    min_ms: float
    max_ms: float
    ci95: tuple[float, float] | None
    inputs_s: float | None
    samples: int
    contended: bool | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class LengthEntry:
    """Generation after a prompt of a given length: median times to the first token and per output token after it, size of the cache."""

    prompt_tokens: int
    ttft_ms: float
    tpot_ms: float | None
    cache_mb: float | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class PositionChange:
    """By how many milliseconds the time between tokens changes with their position: a step at ``token`` (counted from 1), or a drift."""

    kind: Literal["step", "drift"]
    ms: float
    token: int | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class GenerationEntry:
    """The generation of ``new_tokens`` after a prompt of ``prompt_tokens`` (null for a prompt without text).

    ``ttft_ms`` is the median time to the first token, ``tpot_ms`` that per output token after it, ``ttft_ci95`` and ``tpot_ci95`` their 95
    % intervals; ``itl_ms`` are the median times from one token to the next, by position, and ``itl_change`` says whether they change with
    it. ``prefill_tokens_s`` are the prompt's tokens over ``ttft_ms``, ``decode_tokens_s`` the tokens per second after the first, of all
    samples of the batch. ``by_prompt_length`` has the same values of prompts of given lengths, ascending. ``cache_mb`` is the size of the
    cache at the end, ``cache_kb_per_token`` by how many KiB it grows with each token of a prompt. ``growth_kb`` is by how many KiB the
    memory of the process grew with each token, if it leaks. ``cache_error`` is the relative L2 error of the last logits against those
    without a cache. If generation failed, ``component`` (prefill or decode), ``first_failing_step`` (0 is the prefill) and ``prompt`` say
    where.
    """

    prompt_tokens: int | None
    new_tokens: int
    ttft_ms: float | None
    ttft_ci95: tuple[float, float] | None
    tpot_ms: float | None
    tpot_ci95: tuple[float, float] | None
    itl_ms: tuple[float, ...] | None
    itl_change: PositionChange | None
    prefill_tokens_s: float | None
    decode_tokens_s: float | None
    by_prompt_length: tuple[LengthEntry, ...] | None
    cache_mb: float | None
    cache_kb_per_token: float | None
    growth_kb: float | None
    cache_error: float | None
    first_failing_step: int | None
    component: str | None
    prompt: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class CompilationEntry:
    """How a model was compiled while it ran. With one graph and no break (``whole``), it is compiled as a whole.

    ``break_reasons`` say where the compiler gave up, and why. ``recompilations`` is how many graphs later runs compiled again.
    ``compile_ms`` is the time of the first run, with an empty cache, ``cached_compile_ms`` that of one more from the cache; both are null
    in a cell that is not timed.
    """

    graphs: int
    whole: bool
    graph_breaks: int
    break_reasons: tuple[str, ...]
    recompilations: int
    compile_ms: float | None
    cached_compile_ms: float | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class MemoryEntry:
    """The high-water mark until the first inference ended, what the cell added to it, and the device's own high-water mark, in MiB.

    ``run_peak_mb`` is the mark of the first inference alone, without what converting the model took.
    ``detail`` says whose memory it is if it is not the resident set of the cell's own process, or why the host's memory is not reported.
    """

    peak_mb: float | None
    delta_mb: float | None
    device_peak_mb: float | None
    run_peak_mb: float | None = None
    detail: str | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class OutputEntry:
    """One output tensor of the target."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class CellError:
    """Why a cell did not pass, and what to do."""

    type: str
    severity: Severity
    message: str
    recommendations: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Evidence:
    """The facts needed to repeat the cell. All but ``run_id`` are null if nothing was executed.

    ``older_than`` names the newest run of the cell's target, if the cell is of an earlier day and that run had other versions or
    another image.
    """

    run_id: str
    isolation: Isolation | None
    image_digest: str | None
    versions: dict[str, str] | None
    command: str | None
    executed_at: dt.datetime | None = None
    older_than: str | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class DivergenceEntry:
    """Where the error begins in a cell whose outputs differ from the reference.

    ``origin`` is ``step`` (``at`` is the node or layer, with its operator or class: its inputs differ by ``inputs_error``, its outputs by
    ``relative_error``), ``gradual`` (the same fields, but errors accumulate over many steps), ``graph`` (before the target),
    ``fused`` (only if the runtime fuses several steps) or ``unknown``. ``against`` is what computed the reference values.
    """

    origin: Origin
    at: str | None
    operator: str | None
    relative_error: float | None
    inputs_error: float | None
    against: str | None
    detail: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class AdaptationEntry:
    """The change that made a failed cell pass: by setting (``{"batch": 4}``), and in words."""

    changed: dict[str, Any]
    words: str


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class AttemptEntry:
    """A retry of a failed cell with one change, and its result. It was compared with a reference of the same settings."""

    changed: dict[str, Any]
    words: str
    preparation: tuple[Preparation, ...] | None
    replaced: tuple[str, ...] | None
    status: Status
    stage: Stage | None
    placement: PlacementEntry | None
    parity: ParityEntry | None
    peak_mb: float | None
    error: CellError | None
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class CellEntry:
    """One planned cell. ``stage`` is the last one that was entered; ``level`` is null if nothing was executed.

    ``level_reason`` says why a cell that passed is Low or Medium. ``workload`` is what it is counted as: one forward pass, or one
    generation, of its model in its smallest batch and length; null: the cell has other settings, so no number of models and no average
    includes it.

    ``inputs`` are the kinds of input that the model was given (text, image, video, audio; empty: another kind); ``text_path`` says that
    it accepts more than text but was given only text. Both are null if not recorded. ``preparation`` is what the model went through before
    it ran (docs/preparation.md), null if not recorded; ``replaced`` are the operators that were replaced to make it run. ``divergence`` is
    null if the outputs agree, or if it was not searched for. ``precision`` is the one that the runtime says it uses, null if it says
    nothing. ``attempts`` are retries after the cell failed, each with one change; ``adaptation`` is the change that made it pass, and then
    its level is Low: status, error and evidence stay those of the cell as it was planned.
    """

    model: str
    target: str
    family: Family
    architecture: str
    status: Status
    stage: Stage | None
    level: Level | None
    level_reason: str | None
    workload: Literal["forward", "generation"] | None
    execution: Execution
    settings: SettingsEntry
    placement: PlacementEntry | None
    precision: Dtype | None
    parity: ParityEntry | None
    quality: QualityEntry | None
    load_ms: float | None
    prepare_ms: float | None
    first_ms: float | None
    latency: LatencyEntry | None
    generation: GenerationEntry | None
    compilation: CompilationEntry | None
    memory: MemoryEntry | None
    outputs: tuple[OutputEntry, ...]
    inputs: tuple[str, ...] | None
    text_path: bool | None
    preparation: tuple[Preparation, ...] | None
    replaced: tuple[str, ...] | None
    divergence: DivergenceEntry | None
    error: CellError | None
    evidence: Evidence
    adaptation: AdaptationEntry | None
    attempts: tuple[AttemptEntry, ...]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class MatrixDocument:
    """matrix.json."""

    schema: Literal["hwmatrix/matrix/1"]
    run: RunEntry
    targets: tuple[TargetEntry, ...]
    models: tuple[ModelEntry, ...]
    cells: tuple[CellEntry, ...]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ErrorEntry:
    """One error. ``component`` is the stage of a cell, or ``plan``, ``canary`` or ``merge``.

    In errors.json, ``traceback`` is the name of its text in ``tracebacks`` of the document.
    """

    hardware_type: str | None
    error_type: str
    severity: Severity
    message: str
    component: str
    timestamp: dt.datetime | None
    model_name: str | None
    recommendations: tuple[str, ...]
    traceback: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class GroupExample:
    """The failure of a group whose model has the fewest parameters. ``message`` is complete; ``command`` repeats the cell.

    ``traceback`` is the text; in errors.json, its name in ``tracebacks`` of the document.
    """

    model: str
    architecture: str
    target: str
    size: Size
    dtype: Dtype
    parameters: int | None
    message: str
    traceback: str | None
    command: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class GroupEntry:
    """Failures that one change would fix.

    ``scope`` is ``target``, or ``factory`` (models that could not be built: ``target`` and ``isolation`` are null) or ``infrastructure``,
    which are never counted against hardware. ``kind`` says what ``blocked_by`` is: an ``operator`` that the target lacks, a ``construct``
    in the code of models (file and function), the ``origin`` of wrong numbers, or the normalized message of an ``error``. ``message`` is
    their common message without numbers, shapes and names; null for operators and origins. ``sites`` are the places of the errors.
    """

    scope: Literal["target", "factory", "infrastructure"]
    target: str | None
    isolation: Isolation | None
    kind: Literal["operator", "construct", "origin", "error"]
    blocked_by: str
    message: str | None
    stage: Stage | None
    error_type: str
    severity: Severity
    summary: str
    recommendations: tuple[str, ...]
    cells: int
    models: tuple[str, ...]
    architectures: tuple[str, ...]
    sites: tuple[str, ...]
    example: GroupExample


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ErrorsDocument:
    """errors.json, most severe first; ``groups`` by what blocks the most architectures of each target.

    ``tracebacks`` has each text once, under the name that ``traceback`` of errors and of groups' examples has. The same text has the same
    name in every report.
    """

    schema: Literal["hwmatrix/errors/2"]
    run_id: str
    errors: tuple[ErrorEntry, ...]
    groups: tuple[GroupEntry, ...]
    tracebacks: dict[str, str]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class GroupsDocument:
    """What ``hwmatrix groups --format json`` prints: the groups of errors.json."""

    schema: Literal["hwmatrix/groups/1"]
    run_id: str
    groups: tuple[GroupEntry, ...]
