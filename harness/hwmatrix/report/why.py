"""Explains the result of a cell: how far it got, the first error, what to do, and the closest configuration that works."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.faults.belonging import belongs_to
from hwmatrix.records import Execution, Stage, Status
from hwmatrix.report import adapted
from hwmatrix.report.contract import CellError
from hwmatrix.report.failures import cell_error
from hwmatrix.report.rows import AttemptRow, CellRow, TargetRow, read_with_stages
from hwmatrix.store.reading import OTHER_RESULTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hwmatrix.report.rows import ReportRows

WHY_SCHEMA: Final = "hwmatrix/why/1"
NEAREST: Final = 4
"""How many alternatives are shown."""
_LOG_LINES: Final = 12
_NO_END: Final = frozenset({Status.PASS, Status.NOT_RUN, Status.UNAVAILABLE})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One stage: milliseconds in it, or None if it was not entered. The last entered one of a failing cell is where it ended."""

    stage: Stage
    wall_ms: float | None
    ended_here: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alternative:
    """A similar configuration that works: a cell that passed, and how it differs from the requested one."""

    cell: CellRow
    differs: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Everything that the run knows about one cell. ``log`` is the end of its traceback, ``doubts`` are reasons for low confidence.

    ``attempts`` are retries after it failed, each with one change. ``belongs_to`` says whom to tell, where the data say so.
    """

    run_id: str
    cell: CellRow
    target: TargetRow | None
    steps: tuple[Step, ...]
    error: CellError | None
    log: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    doubts: tuple[str, ...]
    attempts: tuple[AttemptRow, ...] = ()
    belongs_to: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhyDocument:
    """What ``hwmatrix why --format json`` prints."""

    answers: tuple[Answer, ...]
    schema: str = WHY_SCHEMA


def explain(database: Path, model: str, target: str, *, run_id: str | None = None) -> tuple[Answer, ...]:
    """One answer for each cell of the model on the target (one for each precision), failing ones first.

    Raises:
        StoreError: the database cannot be read, or holds no such run.
        ConfigError: the run planned no such cell; the error names near misses.
    """
    rows, stages = read_with_stages(database, model, target, run_id)
    cells = [cell for cell in rows.cells if (cell.model, cell.target) == (model, target)]
    if not cells:
        raise ConfigError([_unknown_cell(rows, model, target)])
    answers = [_answer(rows, cell, stages.get(cell.cell_id or "", {})) for cell in cells]
    return tuple(sorted(answers, key=lambda answer: answer.cell.status is Status.PASS))


def _unknown_cell(rows: ReportRows, model: str, target: str) -> Problem:
    models = {cell.model for cell in rows.cells}
    if model not in models:
        return Problem(
            where="MODEL", what=f"run {rows.run.run_id} has no model {model!r}", hint=f"{near_miss(model, models)}; {OTHER_RESULTS}"
        )
    targets = {cell.target for cell in rows.cells if cell.model == model}
    return Problem(
        where="TARGET", what=f"run {rows.run.run_id} has no {model} on {target!r}", hint=f"{near_miss(target, targets)}; {OTHER_RESULTS}"
    )


def _answer(rows: ReportRows, cell: CellRow, stages: dict[Stage, float]) -> Answer:
    return Answer(
        run_id=rows.run.run_id,
        cell=cell,
        target=next((target for target in rows.targets if target.name == cell.target), None),
        steps=steps(cell, stages),
        error=cell_error(cell),
        log=tuple((cell.traceback or "").strip().splitlines()[-_LOG_LINES:]),
        alternatives=alternatives(rows.cells, cell) if cell.status is not Status.PASS else (),
        doubts=tuple(f"{row['doubt']}: {row['detail']}" for row in rows.analysis.doubts if row["cell_key"] == cell.cell_key),
        attempts=adapted.by_cell(rows).get(cell.cell_key, ()),
        belongs_to=belongs_to(
            status=cell.status, error_type=cell.error_type, preparation=cell.preparation, target=cell.target, origin=cell.origin
        ),
    )


def steps(cell: CellRow, stages: Mapping[Stage, float]) -> tuple[Step, ...]:
    """Every stage of the cell in order, given the milliseconds in those that it entered."""
    end = ended(cell)
    return tuple(Step(stage=stage, wall_ms=stages.get(stage), ended_here=stage is end) for stage in Stage.of(cell.new_tokens))


def ended(cell: CellRow) -> Stage | None:
    """The stage in which a failing cell ended; None for other cells, and if no stage was entered."""
    return None if cell.status in _NO_END else cell.stage


def alternatives(cells: Iterable[CellRow], asked: CellRow) -> tuple[Alternative, ...]:
    """The most similar cells that passed: the model on this target with other settings, on other targets, then related models here."""
    found: list[tuple[tuple[int, int, float], Alternative]] = []
    for cell in cells:
        if cell.status is not Status.PASS or bool(cell.new_tokens) is not bool(asked.new_tokens):
            continue  # one forward pass is no way to generate
        if cell.model == asked.model and cell.target == asked.target:
            rank, differs = 0, _setting_differences(asked, cell)
        elif cell.model == asked.model and cell.size is asked.size:
            rank, differs = 1, f"on {cell.target}{_dtype_difference(asked, cell)}"
        elif cell.target == asked.target and cell.architecture == asked.architecture:
            rank, differs = 2, f"{cell.model}, of the same architecture"
        elif cell.target == asked.target and cell.family is asked.family:
            rank, differs = 3, f"{cell.model}, of the same family{_dtype_difference(asked, cell)}"
        else:
            continue
        on_hardware = 0 if cell.execution is Execution.HARDWARE else 1
        found.append(((rank, on_hardware, cell.p50_ms or float("inf")), Alternative(cell=cell, differs=differs)))
    return tuple(alternative for _, alternative in sorted(found, key=lambda each: each[0])[:NEAREST])


def _setting_differences(asked: CellRow, cell: CellRow) -> str:
    named = (
        ("size", asked.size.value, cell.size.value),
        ("precision", asked.dtype.value, cell.dtype.value),
        ("batch", asked.batch, cell.batch),
        ("tokens", asked.sequence_length, cell.sequence_length),
        ("generated tokens", asked.new_tokens, cell.new_tokens),
        ("threads", *(each.threads or "the runtime's" for each in (asked, cell))),
        ("isolation", asked.column_isolation.value, cell.column_isolation.value),
    )
    return ", ".join(f"{name} {other} instead of {own}" for name, own, other in named if own != other)


def _dtype_difference(asked: CellRow, cell: CellRow) -> str:
    return "" if cell.dtype is asked.dtype else f" in {cell.dtype.value}"
