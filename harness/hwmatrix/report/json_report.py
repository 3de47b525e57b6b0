"""matrix.json and errors.json."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import pydantic

from hwmatrix.records import Status
from hwmatrix.report import adapted, origins
from hwmatrix.report.compilation import is_whole
from hwmatrix.report.contract import (
    AdaptationEntry,
    CellEntry,
    CompilationEntry,
    ErrorsDocument,
    Evidence,
    GenerationEntry,
    HardwareEntry,
    LatencyEntry,
    MatrixDocument,
    MemoryEntry,
    ModelEntry,
    OutputEntry,
    ParityEntry,
    PartEntry,
    PlacementEntry,
    PositionChange,
    QualityEntry,
    RejectedShard,
    RunEntry,
    SettingsEntry,
    TargetEntry,
)
from hwmatrix.report.failures import cell_error, failures
from hwmatrix.report.groups import group_entries, groups_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwmatrix.records import Size
    from hwmatrix.report.rows import AttemptRow, CellRow, OutputRow, ReportRows

_PART: Final = tuple(field.name for field in dataclasses.fields(PartEntry))
_NAME_LENGTH: Final = 12


def matrix_json(rows: ReportRows) -> str:
    """The text of matrix.json."""
    return _dump(matrix_document(rows))


def errors_json(rows: ReportRows) -> str:
    """The text of errors.json."""
    return _dump(errors_document(rows))


def matrix_document(rows: ReportRows) -> MatrixDocument:
    """matrix.json as a record."""
    outputs: defaultdict[str | None, list[OutputRow]] = defaultdict(list)
    for output in rows.outputs:
        outputs[output.cell_id].append(output)
    attempts = adapted.by_cell(rows)
    return MatrixDocument(
        schema="hwmatrix/matrix/1",
        run=_run(rows),
        targets=_targets(rows),
        models=_models(rows),
        cells=tuple(_cell(cell, outputs[cell.cell_id], attempts.get(cell.cell_key, ())) for cell in rows.cells),
    )


def errors_document(rows: ReportRows) -> ErrorsDocument:
    """errors.json as a record: with each traceback's text once."""
    texts = _Texts()
    errors = tuple(dataclasses.replace(failure.entry, traceback=texts.name(failure.entry.traceback)) for failure in failures(rows))
    groups = tuple(
        dataclasses.replace(group, example=dataclasses.replace(group.example, traceback=texts.name(group.example.traceback)))
        for group in group_entries(groups_of(rows))
    )
    return ErrorsDocument(schema="hwmatrix/errors/2", run_id=rows.run.run_id, errors=errors, groups=groups, tracebacks=texts.by_name)


class _Texts:
    """Long texts, each kept once, under the beginning of its SHA-256."""

    def __init__(self) -> None:
        self.by_name: dict[str, str] = {}

    def name(self, text: str | None) -> str | None:
        """Keep a text and return its name; None for None."""
        if text is None:
            return None
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        name = next(digest[:end] for end in range(_NAME_LENGTH, len(digest) + 1) if self.by_name.get(digest[:end], text) == text)
        self.by_name[name] = text
        return name


def _dump(document: MatrixDocument | ErrorsDocument) -> str:
    return pydantic.TypeAdapter(type(document)).dump_json(document, indent=2).decode() + "\n"


def _run(rows: ReportRows) -> RunEntry:
    counted = Counter(cell.status for cell in rows.cells)
    return RunEntry(
        run_id=rows.run.run_id,
        created_at=rows.run.created_at,
        command=rows.run.command,
        hwmatrix_version=rows.run.hwmatrix_version,
        commit=rows.run.commit_id,
        matrix_sha256=rows.run.matrix_sha256,
        isolation=rows.run.isolation,
        models=len({cell.model for cell in rows.cells}),
        counts={status: counted[status] for status in Status if counted[status]},
        rejected=tuple(RejectedShard(file=row.file, reason=row.reason) for row in rows.rejected),
        parts=tuple(PartEntry(**{name: getattr(part, name) for name in _PART}) for part in rows.parts),
    )


def _targets(rows: ReportRows) -> tuple[TargetEntry, ...]:
    found: defaultdict[str | None, list[HardwareEntry]] = defaultdict(list)
    for row in rows.detections:
        entry = HardwareEntry(
            hardware_type=row.hardware_type, available=row.available, name=row.name, features=row.features, reason=row.reason
        )
        found[row.shard_id].append(entry)
    return tuple(
        TargetEntry(
            name=target.name,
            backend=target.backend,
            execution=target.execution,
            unavailable=target.unavailable,
            isolation=target.isolation,
            image=target.image,
            image_digest=target.image_digest,
            host=target.host,
            interpreter=target.interpreter,
            versions=target.versions,
            canary_ok=target.canary_ok,
            canary_detail=target.canary_detail,
            started_at=target.started_at,
            finished_at=target.finished_at,
            hardware=tuple(found[target.shard_id]),
        )
        for target in rows.targets
    )


def _models(rows: ReportRows) -> tuple[ModelEntry, ...]:
    weights = {(row.model, row.size): row.weights for row in rows.models}
    groups: defaultdict[tuple[str, Size], list[CellRow]] = defaultdict(list)
    for cell in rows.cells:
        groups[cell.model, cell.size].append(cell)
    return tuple(
        ModelEntry(
            name=name,
            size=size,
            family=group[0].family,
            architecture=group[0].architecture,
            hub_id=group[0].hub_id,
            parameters=next((cell.parameters for cell in group if cell.parameters is not None), None),
            unbuildable=next((cell.message for cell in group if cell.error_type == "unbuildable"), None),
            weights=weights.get((name, size)),
        )
        for (name, size), group in groups.items()
    )


def _cell(cell: CellRow, outputs: Iterable[OutputRow], attempts: Iterable[AttemptRow]) -> CellEntry:
    return CellEntry(
        model=cell.model,
        target=cell.target,
        family=cell.family,
        architecture=cell.architecture,
        status=cell.status,
        stage=cell.stage,
        level=cell.level,
        level_reason=cell.level_reason,
        workload=cell.workload,
        execution=cell.execution,
        settings=SettingsEntry(
            size=cell.size,
            dtype=cell.dtype,
            batch=cell.batch,
            sequence_length=cell.sequence_length,
            threads=cell.threads,
            new_tokens=cell.new_tokens,
        ),
        placement=_placement(cell),
        precision=cell.precision,
        parity=_parity(cell),
        quality=_quality(cell),
        load_ms=cell.load_ms,
        prepare_ms=cell.prepare_ms,
        first_ms=cell.first_ms,
        latency=_latency(cell),
        generation=_generation(cell),
        compilation=_compilation(cell),
        memory=_memory(cell),
        outputs=tuple(OutputEntry(name=output.name, shape=output.shape, dtype=output.dtype) for output in outputs),
        inputs=cell.inputs,
        text_path=cell.text_path,
        preparation=cell.preparation,
        replaced=cell.replaced,
        divergence=origins.entry(cell),
        error=cell_error(cell),
        evidence=Evidence(
            run_id=cell.run_id,
            isolation=cell.isolation,
            image_digest=cell.image_digest,
            versions=cell.versions,
            command=cell.command,
            executed_at=cell.started_at,
            older_than=cell.older_than,
        ),
        adaptation=_adaptation(cell),
        attempts=tuple(adapted.entry(cell, attempt, cell.run_id) for attempt in attempts),
    )


def _adaptation(cell: CellRow) -> AdaptationEntry | None:
    words = adapted.changed(cell)
    return AdaptationEntry(changed=cell.adaptation, words=words) if cell.adaptation is not None and words is not None else None


def _placement(cell: CellRow) -> PlacementEntry | None:
    if cell.on_target is None and cell.placement_detail is None:
        return None
    return PlacementEntry(on_target=cell.on_target, detail=cell.placement_detail)


def _parity(cell: CellRow) -> ParityEntry | None:
    if cell.relative_error is None and cell.max_error is None and cell.cosine is None:
        return None
    return ParityEntry(
        relative_error=cell.relative_error,
        max_error=cell.max_error,
        cosine=cell.cosine,
        loss=cell.loss,
        excess=cell.excess,
        approximate=cell.approximate,
        kernel_error=cell.kernel_error,
        kernel_detail=cell.kernel_detail,
        allowed_error=cell.allowed_error,
    )


def _quality(cell: CellRow) -> QualityEntry | None:
    if cell.quality_metric is None and cell.quality_detail is None:
        return None
    return QualityEntry(
        metric=cell.quality_metric,
        reference=cell.quality_reference,
        value=cell.quality,
        agreement=cell.quality_agreement,
        interval=_interval(cell.quality_low, cell.quality_high),
        inputs=cell.quality_inputs,
        kl=cell.quality_kl,
        cosine=cell.quality_cosine,
        relative_error=cell.quality_error,
        detail=cell.quality_detail,
        kernel_error=cell.quality_kernel_error,
        lost=cell.quality_lost,
        gained=cell.quality_gained,
    )


def _generation(cell: CellRow) -> GenerationEntry | None:
    if not cell.new_tokens or cell.cell_id is None:
        return None
    return GenerationEntry(
        prompt_tokens=cell.prompt_tokens,
        new_tokens=cell.new_tokens,
        ttft_ms=cell.ttft_ms,
        ttft_ci95=_interval(cell.ttft_low_ms, cell.ttft_high_ms),
        tpot_ms=cell.tpot_ms,
        tpot_ci95=_interval(cell.tpot_low_ms, cell.tpot_high_ms),
        itl_ms=cell.itl_ms,
        itl_change=_change(cell),
        prefill_tokens_s=cell.prefill_tokens_s,
        decode_tokens_s=cell.decode_tokens_s,
        by_prompt_length=cell.by_length or None,
        cache_mb=cell.cache_mb,
        cache_kb_per_token=cell.cache_kb_per_token,
        growth_kb=cell.growth_kb,
        cache_error=cell.cache_error,
        first_failing_step=cell.failing_step,
        component=cell.failing_component,
        prompt=cell.failing_prompt,
    )


def _compilation(cell: CellRow) -> CompilationEntry | None:
    if cell.graphs is None:
        return None
    return CompilationEntry(
        graphs=cell.graphs,
        whole=is_whole(cell),
        graph_breaks=cell.graph_breaks or 0,
        break_reasons=cell.break_reasons or (),
        recompilations=cell.recompilations or 0,
        compile_ms=cell.compile_ms,
        cached_compile_ms=cell.cached_compile_ms,
    )


def _change(cell: CellRow) -> PositionChange | None:
    if cell.itl_change_ms is None:
        return None
    return PositionChange(kind="drift" if cell.itl_change_at is None else "step", ms=cell.itl_change_ms, token=cell.itl_change_at)


def _interval(low: float | None, high: float | None) -> tuple[float, float] | None:
    return (low, high) if low is not None and high is not None else None


def _latency(cell: CellRow) -> LatencyEntry | None:
    measured = (cell.p50_ms, cell.p90_ms, cell.p99_ms, cell.mean_ms, cell.min_ms, cell.max_ms)
    p50, p90, p99, mean, shortest, longest = measured
    if p50 is None or p90 is None or p99 is None or mean is None or shortest is None or longest is None or cell.samples is None:
        return None
    return LatencyEntry(
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        mean_ms=mean,
        min_ms=shortest,
        max_ms=longest,
        ci95=_interval(cell.ci_low_ms, cell.ci_high_ms),
        inputs_s=cell.inputs_s,
        samples=cell.samples,
        contended=cell.contended,
    )


def _memory(cell: CellRow) -> MemoryEntry | None:
    if cell.peak_mb is None and cell.delta_mb is None and cell.device_peak_mb is None and cell.memory_detail is None:
        return None
    return MemoryEntry(
        peak_mb=cell.peak_mb,
        delta_mb=cell.delta_mb,
        device_peak_mb=cell.device_peak_mb,
        run_peak_mb=cell.run_peak_mb,
        detail=cell.memory_detail,
    )
