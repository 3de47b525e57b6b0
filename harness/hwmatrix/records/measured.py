"""The measurements of a cell, declared once.

Each field of :class:`Measured` is a value that a cell's process reports, a column of the table ``cells`` of every shard and database, and a
field of the rows that reports are made from. A new one needs no other declaration: its type says which values a child may send and a
database accepts (``store/domains.py``). docs/architecture.md says where it is set and where it is shown.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from typing import Annotated, Any, Final

import pydantic

from hwmatrix.records.vocabulary import Dtype, Origin, Preparation

Amount = Annotated[float, pydantic.Field(ge=0)]
"""Time or an error: never negative."""
Milliseconds = Amount
Mebibytes = Annotated[float, pydantic.Field(ge=0, le=1e12)]
"""Memory; 1e12 of them are an exbibyte."""
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
Count = Annotated[int, pydantic.Field(ge=0, lt=2**31)]
LargeCount = Annotated[int, pydantic.Field(ge=0, lt=2**63)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements of a cell. Times are milliseconds of wall clock, memory is MiB. None, and never 0, means not measured.

    ``bundle`` is the digest of the bundle's manifest, ``method`` how the model was prepared, in words, and
    ``preparation`` as data; ``replaced`` are the operators that were replaced by others to make it run. ``inputs`` are the kinds of
    input that the model was given (text, image, video, audio); ``text_path``: the model accepts more than text but was given only text.

    ``precision`` is the precision that the runtime says it computes in; NULL: it says nothing, and computes in the requested one.

    ``on_target`` is the share of the work on the target (0 to 1), ``placement_detail`` how that is known. ``relative_error`` is the
    relative L2 error of the worst output against the reference, ``max_error`` the largest absolute error, ``top1`` the agreement of the
    largest logit. ``loss`` is the relative L2 error that the precision alone causes, ``excess`` the target's error as a multiple of it,
    ``approximate`` whether the cell passed only because the task is done as well (:mod:`hwmatrix.measure.verdict`).

    ``allowed_error`` is the relative L2 error that the deciding output was allowed: from the reference, or from the twin if there is a
    ``kernel_error``. That is the distance from the same graph with its rounded weights as float32 numbers, a relative L2 error;
    ``quality_kernel_error`` is the same on the held-out examples. ``kernel_detail`` says why a target that rounds weights was not
    compared with these.

    ``quality`` is the share of held-out examples of the model's task that are right here, with its 95 % interval, ``quality_reference``
    that of the reference on the same examples, NULL where its own answers count as right
    (:class:`hwmatrix.models.learning.quality.Quality`). ``quality_lost`` is how many answers only the reference gets right,
    ``quality_gained`` how many only the target. ``quality_error`` is the relative L2 error of the worst output over these examples.
    ``quality_detail`` names the task, or says why there is no such number.

    ``converged``: timing stopped because the confidence interval was narrow enough. ``timing_detail`` says why a cell that should have been
    timed was not, or what ended its measurement; its verdict was known before. ``yardstick_ms`` is how long a fixed computation,
    ``yardstick``, took between the samples: how fast the machine itself was. ``cores`` are the logical cores that the cell was timed on,
    and of which kind they are if the processor has several (:func:`hwmatrix.measure.cores.described`).

    ``peak_mb`` is the high-water mark until the first inference ended, ``delta_mb`` what the cell added to its starting size,
    ``load_peak_mb`` the mark until the model was prepared, ``run_peak_mb`` that of the first inference alone;
    ``memory_detail`` says whose memory it is if it is not the resident set of the cell's own process, or why it is not known.
    ``device_peak_mb`` is the peak of tensors in a device's own memory, ``device_reserved_mb`` what its allocator held, ``device_processes``
    how many other processes used the device.

    ``origin`` and the fields after it say where a wrong result begins (:class:`hwmatrix.records.Divergence`).

    Of a model that is compiled while it runs: ``graphs`` is the number of compiled graphs, ``graph_breaks`` how often the compiler gave up
    in between and left the rest to Python, ``break_reasons`` where and why; with one graph and no break, the model is compiled as a whole.
    ``recompilations`` is how many graphs later runs with inputs of the same shapes compiled again. ``compile_ms`` is the time of the first
    run, which compiles with an empty cache, ``cached_compile_ms`` that of one more with the cache which the first one left; only of timed
    cells.

    Of a cell that generates: ``prompt_tokens`` are the tokens of the timed prompt. ``ttft_ms`` is the median time to the first token,
    ``tpot_ms`` that per output token after the first, each with its 95 % interval; ``itl_ms`` are the median times between one token and
    the next, by position (docs/measuring.md defines them). ``itl_change_ms`` is by how much they change with the position, from the token
    ``itl_change_at`` on, or as a drift if that is NULL (:mod:`hwmatrix.measure.positions`). ``lengths`` are the tokens of further prompts
    that were timed, and ``lengths_ttft_ms``, ``lengths_tpot_ms`` and ``lengths_cache_mb`` the same values of each. ``growth_kb`` is by how
    much the memory of the cell's process grew with each token, in KiB, if it grew all the time. ``cache_mb`` is the size of the cache at
    the end, and ``cache_error`` the relative L2 error of its last logits against the target's own without a cache. ``failing_component``
    (``prefill`` or ``decode``), ``failing_step`` (0 is the prefill) and ``failing_prompt`` say where generation first fails.
    """

    bundle: str | None = None
    method: str | None = None
    preparation: tuple[Preparation, ...] | None = None
    replaced: tuple[str, ...] | None = None
    inputs: tuple[str, ...] | None = None
    text_path: bool | None = None
    precision: Dtype | None = None
    on_target: Share | None = None
    placement_detail: str | None = None
    relative_error: Amount | None = None
    max_error: Amount | None = None
    cosine: float | None = None
    top1: float | None = None
    loss: Amount | None = None
    excess: Amount | None = None
    approximate: bool | None = None
    kernel_error: Amount | None = None
    kernel_detail: str | None = None
    allowed_error: Amount | None = None
    quality_metric: str | None = None
    quality: Share | None = None
    quality_reference: Share | None = None
    quality_low: Share | None = None
    quality_high: Share | None = None
    quality_agreement: Share | None = None
    quality_kl: float | None = None
    quality_cosine: float | None = None
    quality_error: Amount | None = None
    quality_kernel_error: Amount | None = None
    quality_inputs: Count | None = None
    quality_lost: Count | None = None
    quality_gained: Count | None = None
    quality_detail: str | None = None
    load_ms: Milliseconds | None = None
    prepare_ms: Milliseconds | None = None
    first_ms: Milliseconds | None = None
    warmup_samples: Count | None = None
    converged: bool | None = None
    timing_detail: str | None = None
    yardstick: str | None = None
    yardstick_ms: Milliseconds | None = None
    cores: str | None = None
    baseline_mb: Mebibytes | None = None
    load_peak_mb: Mebibytes | None = None
    run_peak_mb: Mebibytes | None = None
    peak_mb: Mebibytes | None = None
    delta_mb: float | None = None
    uss_mb: Mebibytes | None = None
    memory_detail: str | None = None
    device_peak_mb: Mebibytes | None = None
    device_reserved_mb: Mebibytes | None = None
    device_processes: Count | None = None
    parameters: LargeCount | None = None
    origin: Origin | None = None
    diverges_at: str | None = None
    diverges_operator: str | None = None
    diverges_error: Amount | None = None
    diverges_given: Amount | None = None
    diverges_against: str | None = None
    diverges_detail: str | None = None
    graphs: Count | None = None
    graph_breaks: Count | None = None
    break_reasons: tuple[str, ...] | None = None
    recompilations: Count | None = None
    compile_ms: Milliseconds | None = None
    cached_compile_ms: Milliseconds | None = None
    prompt_tokens: Count | None = None
    ttft_ms: Milliseconds | None = None
    ttft_low_ms: Milliseconds | None = None
    ttft_high_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None
    tpot_low_ms: Milliseconds | None = None
    tpot_high_ms: Milliseconds | None = None
    itl_ms: tuple[Milliseconds, ...] | None = None
    itl_change_ms: float | None = None
    itl_change_at: Count | None = None
    lengths: tuple[Count, ...] | None = None
    lengths_ttft_ms: tuple[Milliseconds, ...] | None = None
    lengths_tpot_ms: tuple[Milliseconds, ...] | None = None
    lengths_cache_mb: tuple[Mebibytes, ...] | None = None
    growth_kb: float | None = None
    cache_mb: Mebibytes | None = None
    cache_error: Amount | None = None
    failing_component: str | None = None
    failing_step: Count | None = None
    failing_prompt: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A field of :class:`Measured` as a column; ``domain`` is its type in schema.sql, which says what values are valid."""

    name: str
    domain: str


_DOMAINS: Final[dict[Any, str]] = {
    str: "VARCHAR",
    float: "Number",
    bool: "BOOLEAN",
    tuple[str, ...]: "Texts",
    tuple[Preparation, ...]: "Preparations",
    tuple[Amount, ...]: "Amounts",
    tuple[Mebibytes, ...]: "Amounts",
    tuple[Count, ...]: "Counts",
    Amount: "Amount",
    Mebibytes: "Mebibytes",
    Share: "Share",
    Count: "Count",
    LargeCount: "LargeCount",
}


@functools.cache
def measured_columns() -> tuple[Column, ...]:
    """Return the columns of :class:`Measured`, in the order of its fields.

    Raises:
        TypeError: a field's type has no domain in ``_DOMAINS``, or cannot be None.
    """
    hints = typing.get_type_hints(Measured, include_extras=True)
    return tuple(_column(field.name, hints[field.name]) for field in dataclasses.fields(Measured))


def _column(name: str, hint: Any) -> Column:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union else ()
    if len(kinds) != 2 or kinds[1] is not type(None):  # noqa: PLR2004 - a type or None
        raise TypeError(f"Measured.{name} must be declared as 'type | None': what was not measured is NULL")
    kind = kinds[0]
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        return Column(name=name, domain=kind.__name__)
    if kind not in _DOMAINS:
        raise TypeError(f"Measured.{name}: {kind} has no domain; add one to _DOMAINS")
    return Column(name=name, domain=_DOMAINS[kind])
