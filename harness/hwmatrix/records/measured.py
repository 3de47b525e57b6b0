"""The measurements of a cell, declared once.

Each field of :class:`Measured` is a value that a cell's process reports, a column of the table ``cells`` of every shard and database, and a
field of the rows that reports are made from. A new one needs no other declaration: ``store/cell_columns.py`` creates the column, in new
databases and in older ones that are upgraded. docs/architecture.md says where it is set and where it is shown.
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

Milliseconds = Annotated[float, pydantic.Field(ge=0)]
Mebibytes = Annotated[float, pydantic.Field(ge=0)]
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
Count = Annotated[int, pydantic.Field(ge=0, lt=2**31)]
LargeCount = Annotated[int, pydantic.Field(ge=0, lt=2**63)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Since:
    """The schema version that added a column. Databases of earlier versions are read and upgraded: the value is NULL."""

    schema: int


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

    Of a target that is compared with its own rounded weights in float32: ``kernel_error`` is its distance from these, a relative L2 error,
    of the output whose excess is given, and ``nudged_error`` the most that weights which differ by eight roundings move this output by;
    NULL: they did not run, as nothing was left to explain. ``quality_kernel_error`` and ``quality_nudged_error`` are the same on
    the held-out examples (:class:`hwmatrix.measure.verdict.Kernels`). ``excess`` is then a multiple of the noise floor of float32.

    ``quality`` is the share of held-out examples of the model's task that are right here, with its 95 % interval, ``quality_reference``
    that of the reference on the same examples, NULL where its own answers count as right
    (:class:`hwmatrix.models.learning.quality.Quality`). ``quality_error`` is the relative L2 error of the worst output over these examples.
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
    preparation: Annotated[tuple[Preparation, ...] | None, Since(schema=15)] = None
    replaced: Annotated[tuple[str, ...] | None, Since(schema=15)] = None
    inputs: Annotated[tuple[str, ...] | None, Since(schema=3)] = None
    text_path: Annotated[bool | None, Since(schema=3)] = None
    precision: Annotated[Dtype | None, Since(schema=8)] = None
    on_target: Share | None = None
    placement_detail: str | None = None
    relative_error: float | None = None
    max_error: float | None = None
    cosine: float | None = None
    top1: float | None = None
    loss: Annotated[float | None, Since(schema=8)] = None
    excess: Annotated[float | None, Since(schema=8)] = None
    approximate: Annotated[bool | None, Since(schema=8)] = None
    kernel_error: Annotated[float | None, Since(schema=14)] = None
    nudged_error: Annotated[float | None, Since(schema=14)] = None
    quality_metric: Annotated[str | None, Since(schema=8)] = None
    quality: Annotated[Share | None, Since(schema=8)] = None
    quality_reference: Annotated[Share | None, Since(schema=8)] = None
    quality_low: Annotated[Share | None, Since(schema=8)] = None
    quality_high: Annotated[Share | None, Since(schema=8)] = None
    quality_agreement: Annotated[Share | None, Since(schema=8)] = None
    quality_kl: Annotated[float | None, Since(schema=8)] = None
    quality_cosine: Annotated[float | None, Since(schema=8)] = None
    quality_error: Annotated[float | None, Since(schema=8)] = None
    quality_kernel_error: Annotated[float | None, Since(schema=14)] = None
    quality_nudged_error: Annotated[float | None, Since(schema=14)] = None
    quality_inputs: Annotated[Count | None, Since(schema=8)] = None
    quality_detail: Annotated[str | None, Since(schema=8)] = None
    load_ms: Milliseconds | None = None
    prepare_ms: Milliseconds | None = None
    first_ms: Milliseconds | None = None
    warmup_samples: Count | None = None
    converged: bool | None = None
    timing_detail: Annotated[str | None, Since(schema=15)] = None
    yardstick: Annotated[str | None, Since(schema=4)] = None
    yardstick_ms: Annotated[Milliseconds | None, Since(schema=4)] = None
    cores: Annotated[str | None, Since(schema=15)] = None
    baseline_mb: float | None = None
    load_peak_mb: float | None = None
    run_peak_mb: Annotated[float | None, Since(schema=13)] = None
    peak_mb: float | None = None
    delta_mb: float | None = None
    uss_mb: float | None = None
    memory_detail: Annotated[str | None, Since(schema=6)] = None
    device_peak_mb: float | None = None
    device_reserved_mb: float | None = None
    device_processes: Count | None = None
    parameters: LargeCount | None = None
    origin: Annotated[Origin | None, Since(schema=5)] = None
    diverges_at: Annotated[str | None, Since(schema=5)] = None
    diverges_operator: Annotated[str | None, Since(schema=5)] = None
    diverges_error: Annotated[float | None, Since(schema=5)] = None
    diverges_given: Annotated[float | None, Since(schema=5)] = None
    diverges_against: Annotated[str | None, Since(schema=5)] = None
    diverges_detail: Annotated[str | None, Since(schema=5)] = None
    graphs: Annotated[Count | None, Since(schema=12)] = None
    graph_breaks: Annotated[Count | None, Since(schema=12)] = None
    break_reasons: Annotated[tuple[str, ...] | None, Since(schema=12)] = None
    recompilations: Annotated[Count | None, Since(schema=12)] = None
    compile_ms: Annotated[Milliseconds | None, Since(schema=12)] = None
    cached_compile_ms: Annotated[Milliseconds | None, Since(schema=12)] = None
    prompt_tokens: Annotated[Count | None, Since(schema=9)] = None
    ttft_ms: Annotated[Milliseconds | None, Since(schema=9)] = None
    ttft_low_ms: Annotated[Milliseconds | None, Since(schema=9)] = None
    ttft_high_ms: Annotated[Milliseconds | None, Since(schema=9)] = None
    tpot_ms: Annotated[Milliseconds | None, Since(schema=9)] = None
    tpot_low_ms: Annotated[Milliseconds | None, Since(schema=9)] = None
    tpot_high_ms: Annotated[Milliseconds | None, Since(schema=9)] = None
    itl_ms: Annotated[tuple[Milliseconds, ...] | None, Since(schema=9)] = None
    itl_change_ms: Annotated[float | None, Since(schema=11)] = None
    itl_change_at: Annotated[Count | None, Since(schema=11)] = None
    lengths: Annotated[tuple[Count, ...] | None, Since(schema=10)] = None
    lengths_ttft_ms: Annotated[tuple[Milliseconds, ...] | None, Since(schema=10)] = None
    lengths_tpot_ms: Annotated[tuple[Milliseconds, ...] | None, Since(schema=10)] = None
    lengths_cache_mb: Annotated[tuple[Mebibytes, ...] | None, Since(schema=10)] = None
    growth_kb: Annotated[float | None, Since(schema=10)] = None
    cache_mb: Annotated[float | None, Since(schema=9)] = None
    cache_error: Annotated[float | None, Since(schema=9)] = None
    failing_component: Annotated[str | None, Since(schema=9)] = None
    failing_step: Annotated[Count | None, Since(schema=9)] = None
    failing_prompt: Annotated[str | None, Since(schema=9)] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A field of :class:`Measured` as a column: its SQL type, and the schema version that added it."""

    name: str
    sql_type: str
    since: int


_SQL_TYPES: Final[dict[Any, str]] = {
    str: "VARCHAR",
    float: "DOUBLE",
    int: "INTEGER",
    bool: "BOOLEAN",
    tuple[str, ...]: "VARCHAR[]",
    tuple[Preparation, ...]: "VARCHAR[]",
    tuple[Milliseconds, ...]: "DOUBLE[]",
    tuple[Mebibytes, ...]: "DOUBLE[]",
    tuple[Count, ...]: "INTEGER[]",
    Milliseconds: "DOUBLE",
    Share: "DOUBLE",
    Count: "INTEGER",
    LargeCount: "BIGINT",
}


@functools.cache
def measured_columns() -> tuple[Column, ...]:
    """Return the columns of :class:`Measured`, in the order of its fields.

    Raises:
        TypeError: a field's type has no SQL type in ``_SQL_TYPES``, or cannot be None.
    """
    hints = typing.get_type_hints(Measured, include_extras=True)
    return tuple(_column(field.name, hints[field.name]) for field in dataclasses.fields(Measured))


def _column(name: str, hint: Any) -> Column:
    since = 1
    for note in getattr(hint, "__metadata__", ()):
        if isinstance(note, Since):
            since, hint = note.schema, hint.__origin__
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union else ()
    if len(kinds) != 2 or kinds[1] is not type(None):  # noqa: PLR2004 - a type or None
        raise TypeError(f"Measured.{name} must be declared as 'type | None': what was not measured is NULL")
    kind = str if isinstance(kinds[0], type) and issubclass(kinds[0], enum.StrEnum) else kinds[0]
    if kind not in _SQL_TYPES:
        raise TypeError(f"Measured.{name}: {kind} has no SQL type; add one to _SQL_TYPES")
    return Column(name=name, sql_type=_SQL_TYPES[kind], since=since)
