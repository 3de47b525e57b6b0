"""The gate: whether a run meets the expectations of matrix.yaml, and is no worse than a baseline."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final

from hwmatrix.records import Status
from hwmatrix.report.comparing import FAILING, Change, ComparedCell, Kind
from hwmatrix.report.settings import short

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hwmatrix.matrix.load import LoadedMatrix
    from hwmatrix.matrix.spec import ExpectSpec
    from hwmatrix.report.diff import Diff, Side

DEFAULT_KINDS: Final = (Kind.BROKEN, Kind.PLACEMENT, Kind.SLOWER)
"""The kinds of changes since a baseline that fail the gate by default."""
GATEABLE: Final = (*DEFAULT_KINDS, Kind.LOST, Kind.MORE_MEMORY, Kind.VANISHED, Kind.FAILS_OTHERWISE)
_UNBUILDABLE: Final = "unbuildable"
"""The error type of a model that matrix.yaml marks as unbuildable."""
_VERDICT: Final = FAILING | {Status.PASS}


class Rule(enum.StrEnum):
    """Why a gate fails."""

    UNEXPECTED_FAILURE = "unexpected_failure"
    EXPECTATION_GONE = "expectation_gone"
    OUR_FAILURE = "our_failure"
    NO_VERDICT = "no_verdict"
    REJECTED_SHARD = "rejected_shard"
    REGRESSION = "regression"
    NOTHING_TESTED = "nothing_tested"
    NOTHING_COMPARED = "nothing_compared"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Violation:
    """One reason for failing. ``line`` is the related line of matrix.yaml."""

    rule: Rule
    model: str | None
    target: str | None
    settings: str | None
    what: str
    advice: str
    line: int | None
    command: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateRules:
    """The requirements on a run: targets that must have verdicts, and changes since a baseline that are not allowed."""

    required: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = DEFAULT_KINDS


def check(matrix: LoadedMatrix, side: Side, diff: Diff | None, rules: GateRules) -> tuple[Violation, ...]:
    """Every reason why the gate fails; empty: it passes."""
    found = [*_run_violations(side, rules), *_rejection_violations(side.rejected), *_expectation_violations(matrix, side)]
    if diff is not None:
        found += _baseline_violations(diff)
        found += [violation for change in diff.of(*rules.kinds) for violation in _change_violations(matrix, change)]
    return tuple(found)


def _run_violations(side: Side, rules: GateRules) -> Iterator[Violation]:
    if not any(cell.status in _VERDICT for cell in side.cells):
        what = f"run {side.run.run_id} has no verdict"
        yield _general_violation(
            Rule.NOTHING_TESTED, what, "A gate that tested nothing must not pass: see why its targets are unavailable."
        )
    for target in rules.required:
        cells = [cell for cell in side.cells if cell.target == target and cell.error_type != _UNBUILDABLE]
        missing = [cell for cell in cells if cell.status in {Status.UNAVAILABLE, Status.NOT_RUN}]
        if not cells:
            yield _general_violation(
                Rule.NO_VERDICT, f"{target} is required, but the run planned nothing on it", "Run it with --targets.", target=target
            )
        elif missing:
            why = next((cell.message for cell in missing if cell.message), "it was not run")
            what = f"{target} is required, but {len(missing)} of {len(cells)} cells have no verdict: {why}"
            yield _general_violation(
                Rule.NO_VERDICT, what, "Run it on a machine that has the hardware, or do not require it.", target=target
            )


def _baseline_violations(diff: Diff) -> Iterator[Violation]:
    """A baseline without any cell of this run fails the gate."""
    if not diff.compared:
        what = f"no cell of run {diff.new.run.run_id} is in the baseline, run {diff.old.run.run_id}"
        yield _general_violation(Rule.NOTHING_COMPARED, what, "Name a baseline of the same models, sizes, targets and isolation.")


def _rejection_violations(rejected: Sequence[str]) -> Iterator[Violation]:
    for reason in rejected:
        yield _general_violation(Rule.REJECTED_SHARD, f"a shard was rejected: {reason}", "Run its target again.")


def _expectation_violations(matrix: LoadedMatrix, side: Side) -> Iterator[Violation]:
    for cell in side.cells:
        expected = [(index, each) for index, each in enumerate(matrix.spec.expect) if _covers(each, cell)]
        holds = any(_holds(each, cell) for _, each in expected)
        line = matrix.lines.get(("models", cell.model))
        if cell.status is Status.INFRA_ERROR:
            yield _cell_violation(Rule.OUR_FAILURE, cell, f"infra_error: {cell.message}", "Fix the image, the engine or the canary.", line)
        elif cell.status in FAILING or (cell.status is Status.FACTORY_ERROR and cell.error_type != _UNBUILDABLE):
            if not holds:
                what = f"is {cell.status.value} ({cell.error_type}): {cell.message}"
                advice = "Fix it, or add it to expect: in matrix.yaml with a reason and a link."
                yield _cell_violation(Rule.UNEXPECTED_FAILURE, cell, what, advice, line)
        elif cell.status is Status.PASS:
            for index, each in expected:
                if not each.strict or (each.processor is not None and cell.instructions is None):
                    continue
                what = f"passes, but matrix.yaml expects {each.status.value} ({each.reason})"
                advice = "Remove it from expect:, or narrow it to what still fails."
                yield _cell_violation(Rule.EXPECTATION_GONE, cell, what, advice, matrix.lines.get(("expect", index)))


def _change_violations(matrix: LoadedMatrix, change: Change) -> Iterator[Violation]:
    cell = change.cell
    if change.kind is Kind.PLACEMENT and change.old is not None and (cell.on_target or 0) > (change.old.on_target or 0):
        return  # more of it runs on the target than before
    if any(_covers(each, cell) and _holds(each, cell) for each in matrix.spec.expect):
        return
    advice = "See hwmatrix diff for the packages that changed; hwmatrix why explains the cell."
    line = matrix.lines.get(("models", cell.model))
    yield _cell_violation(Rule.REGRESSION, cell, f"{change.kind.value.replace('_', ' ')}: {change.detail}", advice, line)


def _covers(each: ExpectSpec, cell: ComparedCell) -> bool:
    """Whether an expectation applies to a cell: also by the precision that its runtime chose, and if its processor is unknown."""
    if each.processor is not None and cell.instructions is not None and not each.processor.is_meant(cell.instructions):
        return False
    dtypes = {cell.dtype, cell.precision or cell.dtype}
    generates = bool(cell.new_tokens)
    return any(each.covers(cell.model, cell.target, dtype, cell.size, generates=generates) for dtype in dtypes)


def _holds(each: ExpectSpec, cell: ComparedCell) -> bool:
    return cell.status is each.status and each.error_type in {None, cell.error_type}


def _cell_violation(rule: Rule, cell: ComparedCell, what: str, advice: str, line: int | None) -> Violation:
    return Violation(
        rule=rule, model=cell.model, target=cell.target, settings=short(cell), what=what, advice=advice, line=line, command=cell.command
    )


def _general_violation(rule: Rule, what: str, advice: str, *, target: str | None = None) -> Violation:
    return Violation(rule=rule, model=None, target=target, settings=None, what=what, advice=advice, line=None)
