"""The outcome of a test of one model: its trials as a document, and the files that are kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from hwmatrix.app.trial_document import (
    TEST_SCHEMA,
    AttemptDocument,
    BatchTry,
    CostDocument,
    LargestBatchDocument,
    ModelTestDocument,
    TrialDocument,
)
from hwmatrix.app.trials import Ended, Trial
from hwmatrix.knowledge.evidence import Evidence
from hwmatrix.knowledge.fallback import Cost, FallbackReport, Likeness, Tried, measured_cost, report_of
from hwmatrix.knowledge.largest_batch import found_by
from hwmatrix.records import Execution, Isolation, ModelPlan, Status
from hwmatrix.report.write import replace, write_reports
from hwmatrix.store.reading import DATABASE

if TYPE_CHECKING:
    from pathlib import Path

_FILE: Final = "test.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The whole outcome of a test: its trials, their runs, and the earlier records. ``memory_mb`` is the limit of every attempt."""

    model: ModelPlan
    isolation: Isolation
    trials: Sequence[Trial]
    ended: Ended
    evidence: Sequence[Evidence]
    like: Likeness
    why: str
    memory_mb: int = 0


def document_of(outcome: Outcome, *, kept: Path | None) -> ModelTestDocument:
    """The test as plain values. ``kept`` is the path of the database, if it is kept."""
    return ModelTestDocument(
        schema=TEST_SCHEMA,
        model=outcome.model.name,
        size=outcome.model.size.value,
        family=outcome.model.family.value,
        isolation=outcome.isolation.value,
        order_stands_on=outcome.why,
        trials=[_trial_document(trial, outcome) for trial in outcome.trials],
        database=str(kept) if kept is not None and outcome.ended.folders else None,
        runs=[folder.path.name for folder in outcome.ended.folders],
    )


def keep(outcome: Outcome, document: ModelTestDocument, output: Path, cache: Path) -> list[Path]:
    """Write the test's JSON, and the reports of the run with most targets, beside the database; return the files.

    ``cache`` is the cache folder.

    Raises:
        StoreError: the folder cannot be written.
    """
    written = replace(output, {_FILE: json.dumps(document, indent=2) + "\n"})
    if not outcome.ended.folders:
        return written
    widest = max(outcome.ended.folders, key=lambda folder: (len(folder.plan().targets), folder.path.name))
    return [*written, *write_reports(output / DATABASE, output, run_id=widest.path.name, cache=cache), output / DATABASE]


def _trial_document(trial: Trial, outcome: Outcome) -> TrialDocument:
    report = _report(trial, outcome)
    row = trial.rows[trial.decisive] or {}
    p50 = row.get("p50_ms") if row.get("execution") != Execution.EMULATED else None  # an emulator's time is not a speed
    data = report.as_dict()
    attempts = [
        cast("AttemptDocument", {**attempt, "command": (attempt_row or {}).get("command")})
        for attempt, attempt_row in zip(data["attempts"], trial.rows, strict=True)
    ]
    return TrialDocument(
        model=report.model,
        expected_hardware=report.expected,
        actual_hardware=report.actual,
        fell_back=report.fell_back,
        status=report.status.value,
        stage=row.get("stage"),
        target=row.get("target"),
        batch=report.batch,
        actual_batch=report.actual_batch,
        dtype=row.get("dtype"),
        sequence_length=row.get("sequence_length"),
        threads=row.get("threads"),
        execution=row.get("execution"),
        on_target=row.get("on_target"),
        placement=row.get("placement_detail"),
        p50_ms=p50,
        sample_ms=None if p50 is None or report.actual_batch is None else p50 / report.actual_batch,
        cost=cast("CostDocument", data["cost"]),
        lost_ms=report.lost_ms,
        attempts=attempts,
        recommendations=list(report.recommendations),
        command=row.get("command"),
        largest_batch=_largest_batch(trial, outcome),
    )


def _largest_batch(trial: Trial, outcome: Outcome) -> LargestBatchDocument | None:
    if trial.search is None:
        return None
    found = found_by(trial.search, trial.tried)
    rows = {id(tried): row for tried, row in zip(trial.tried, trial.rows, strict=True)}

    def told(tried: Tried | None) -> BatchTry | None:
        if tried is None:
            return None
        row = rows[id(tried)] or {}
        return BatchTry(
            batch=tried.attempt.batch,
            status=tried.status.value,
            reason=tried.reason,
            error_type=tried.error_type,
            peak_mb=row.get("peak_mb"),
            device_peak_mb=row.get("device_peak_mb"),
            wall_ms=tried.wall_ms,
            command=row.get("command"),
        )

    return LargestBatchDocument(
        passed=told(found.passed),
        failed=told(found.failed),
        complete=found.complete,
        tries=sum(row is not None for row in trial.rows),
        most_tries=trial.search.tries,
        most_batch=trial.search.most,
        memory_mb=outcome.memory_mb,
        elapsed_s=outcome.ended.elapsed_s,
    )


def _report(trial: Trial, outcome: Outcome) -> FallbackReport:
    """The trial's report with its cost. If no hardware was requested, the first available one was expected."""
    here = (tried.attempt.hardware for tried in trial.tried if tried.status is not Status.UNAVAILABLE)
    expected = trial.plan.order[0] if trial.asked else next(here, trial.plan.order[0])
    report = report_of(outcome.model.name, trial.plan, trial.tried, expected=expected)
    if trial.search is not None:
        return _report_of_search(trial, report)
    row = trial.rows[-1]
    if not report.fell_back or row is None or report.actual_batch is None:
        return report if report.fell_back else dataclasses.replace(report, cost=Cost(note="as expected"))
    timed = row["p50_ms"] if row["execution"] == Execution.HARDWARE else None
    cost = measured_cost(
        outcome.evidence, outcome.like, expected=expected, batch=report.batch, actual_ms=timed, actual_batch=report.actual_batch
    )
    return dataclasses.replace(report, cost=cost)


def _report_of_search(trial: Trial, report: FallbackReport) -> FallbackReport:
    """The report of the largest batch that passed, which is as good as expected; without one, of the last attempt."""
    best = trial.tried[trial.decisive]
    if best.status is not Status.PASS:
        return dataclasses.replace(report, cost=Cost(note="not measured"))
    batch, hardware = best.attempt.batch, best.attempt.hardware
    return dataclasses.replace(report, actual=hardware, batch=batch, actual_batch=batch, status=best.status, cost=Cost(note="as expected"))
