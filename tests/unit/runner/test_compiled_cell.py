"""What a cell records of its compilation: the time only if it is measured, from an empty cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from factory_plans import cell_plan, model_plan, target_plan

pytest.importorskip("duckdb")

from hwmatrix.errors import BundleError
from hwmatrix.records import Backend, MeasureRule, Status
from hwmatrix.runner import cell
from hwmatrix.runner.job import CellJob, Progress
from hwmatrix.targets.protocol import Compilation

if TYPE_CHECKING:
    from hwmatrix.targets.protocol import Target

RULE = MeasureRule(warmup_s=0.1, warmup_iterations=1, min_s=0.1, min_samples=1, max_s=1.0, half_width=0.1)


class Compiler:
    """A target that has compiled a model."""

    def __init__(self, **_: Any) -> None:
        self.calls: list[str] = []
        MADE.append(self)

    def check(self) -> None:
        self.calls.append("check")

    def start_cold(self) -> None:
        self.calls.append("start_cold")

    def compilation(self, *, again: bool) -> Compilation:
        return Compilation(
            graphs=2, graph_breaks=0, break_reasons=(), recompilations=0, compile_ms=9.0, cached_compile_ms=5.0 if again else None
        )

    @staticmethod
    def preload(_: object) -> None:
        """Import nothing."""


MADE: list[Compiler] = []


def job(*, timed: bool, backend: str = "inductor") -> CellJob:
    return CellJob(
        cell=cell_plan(),
        model=model_plan(),
        target=dataclasses.replace(target_plan(), backend=Backend(backend)),
        bundle=Path("none"),
        rule=RULE if timed else None,
        tolerances={},
    )


@pytest.mark.parametrize(
    ("timed", "backend", "calls"),
    [(True, "inductor", ["check", "start_cold"]), (False, "inductor", ["check"]), (True, "cpu", ["check"])],
)
def test_only_a_timed_cell_that_compiles_starts_cold(
    monkeypatch: pytest.MonkeyPatch, *, timed: bool, backend: str, calls: list[str]
) -> None:
    def missing(_: object) -> None:
        raise BundleError("no bundle")

    monkeypatch.setattr(cell, "target_class", lambda _: Compiler)
    monkeypatch.setattr(cell.bundles, "verify", missing)
    told: list[dict[str, Any]] = []
    cell.execute(job(timed=timed, backend=backend), told.append)
    assert MADE[-1].calls == calls
    assert told[-1]["verdict"] is not Status.PASS


@pytest.mark.parametrize("timed", [True, False])
def test_the_time_to_compile_is_recorded_only_if_it_is_measured(*, timed: bool) -> None:
    told: list[dict[str, Any]] = []
    progress = Progress(told.append)
    cell._found_compiled(job(timed=timed), cast("Target", Compiler()), progress, again=timed)
    progress.end(Status.PASS)
    facts = told[-1]["facts"]
    assert (facts["graphs"], facts.get("compile_ms"), facts.get("cached_compile_ms")) == (2, *((9.0, 5.0) if timed else (None, None)))
