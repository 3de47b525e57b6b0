"""Recorded measurements for a fallback: hardware on which a model passed, fastest first, and the time per sample.

Times of another machine, another isolation or another size are no comparison, so only rows like the present ones count.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hwmatrix.knowledge.evidence import Evidence, Nearness
from hwmatrix.knowledge.fallback import Cost, cost_of
from hwmatrix.records import Execution, Isolation, ModelPlan, Size, Status

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Likeness:
    """What a row must be like to be compared: of this model and size, on this machine, in this isolation."""

    model: ModelPlan
    size: Size
    host: str
    isolation: Isolation

    def rows(self, evidence: Sequence[Evidence]) -> list[Evidence]:
        """The rows that passed on real hardware and were timed, the newest first."""
        return [
            row
            for row in evidence
            if row.nearness(plan=self.model, model_name=self.model.name, architecture=None, family=None) is Nearness.MODEL
            and (row.size, row.host, row.isolation) == (self.size, self.host, self.isolation)
            and (row.status, row.execution) == (Status.PASS, Execution.HARDWARE)
            and row.p50_ms is not None
        ]


def measured_hardware(evidence: Sequence[Evidence], like: Likeness) -> tuple[str, ...]:
    """Hardware on which the model passed, the fastest a sample first. Each counts with its newest row."""
    newest: dict[str, Evidence] = {}
    for row in like.rows(evidence):
        newest.setdefault(row.backend.value, row)
    return tuple(sorted(newest, key=lambda hardware: _sample_ms(newest[hardware])))


def measured_cost(
    evidence: Sequence[Evidence], like: Likeness, *, expected: str, batch: int, actual_ms: float | None, actual_batch: int
) -> Cost:
    """What a fallback costs against the newest row of the expected hardware; one with the batch that was asked for, if there is one."""
    there = [row for row in like.rows(evidence) if row.backend.value == expected]
    row = next((each for each in there if each.batch == batch), there[0] if there else None)
    if row is None:
        return cost_of(None, batch, actual_ms, actual_batch)
    cost = cost_of(row.p50_ms, row.batch, actual_ms, actual_batch)
    return dataclasses.replace(cost, note=f"{cost.note}; expected: run {row.run_id}, batch {row.batch}")


def _sample_ms(row: Evidence) -> float:
    return (row.p50_ms or 0.0) / row.batch
