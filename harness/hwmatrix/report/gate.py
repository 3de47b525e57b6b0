"""The gate: whether a run meets the expectations of matrix.yaml, and is no worse than a baseline."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final

from hwmatrix.matrix.plan import none_of
from hwmatrix.records import Status
from hwmatrix.report.comparing import FAILING, Change, ComparedCell, Kind, why_not_timed
from hwmatrix.report.diff import why_nothing_compared
from hwmatrix.report.settings import short

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hwmatrix.matrix.load import LoadedMatrix
    from hwmatrix.matrix.spec import ExpectSpec
    from hwmatrix.report.diff import Diff, Side

DEFAULT_KINDS: Final = (Kind.BROKEN, Kind.PLACEMENT)
"""The kinds of changes since a baseline that fail the gate by default. A single slower measurement may be a disturbance."""
GATEABLE: Final = (*DEFAULT_KINDS, Kind.SLOWER, Kind.LOST, Kind.MORE_MEMORY, Kind.VANISHED, Kind.FAILS_OTHERWISE)
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
    LIMIT = "limit"
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
    """The requirements on a run: targets that must have verdicts, changes since a baseline that are not allowed, and limits.

    ``max_loss`` is the largest relative error of a cell that passes; ``max_p50_ratio`` how many times as long as in the baseline its median
    may take.
    """

    required: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = DEFAULT_KINDS
    max_loss: float | None = None
    max_p50_ratio: float | None = None


def check(matrix: LoadedMatrix, side: Side, diff: Diff | None, rules: GateRules) -> tuple[Violation, ...]:
    """Every reason why the gate fails; empty: it passes.

    It passes only if each planned cell has a verdict, or is ``unavailable`` on a target that is not required, or ``unbuildable``.
    """
    found = [*_run_violations(matrix, side, rules), *_rejection_violations(side.rejected), *_expectation_violations(matrix, side)]
    if rules.max_loss is not None:
        found += _loss_violations(matrix, side, rules.max_loss)
    if diff is not None and not diff.pairs:
        what = f"{why_nothing_compared(diff)} (run {side.run.run_id}, and {diff.old.run.run_id} as the baseline)"
        found.append(_general_violation(Rule.NOTHING_COMPARED, what, "Name a baseline that has the same cells."))
    elif diff is not None:
        found += [violation for change in diff.of(*rules.kinds) for violation in _change_violations(matrix, change)]
        if rules.max_p50_ratio is not None:
            found += _time_violations(matrix, diff, rules.max_p50_ratio)
    return tuple(found)


def verdicts(side: Side) -> int:
    """How many cells of a run have a verdict."""
    return sum(cell.status in _VERDICT for cell in side.cells)


def unmatched_expectations(matrix: LoadedMatrix, side: Side) -> tuple[str, ...]:
    """The expectations of matrix.yaml that cover no cell of a run of all its models and targets: their lines and models.

    Empty for a run of a part, which need not cover them.
    """
    models, targets = ({getattr(cell, name) for cell in side.cells} for name in ("model", "target"))
    if not (models.issuperset(matrix.spec.models) and targets.issuperset(matrix.spec.targets)):
        return ()
    lines = {index: matrix.lines.get(("expect", index)) for index in range(len(matrix.spec.expect))}
    return tuple(
        f"{matrix.path.name}:{lines[index]}: {each.models if isinstance(each.models, str) else ', '.join(each.models)}"
        for index, each in enumerate(matrix.spec.expect)
        if not any(_covers(each, cell) for cell in side.cells)
    )


def _run_violations(matrix: LoadedMatrix, side: Side, rules: GateRules) -> Iterator[Violation]:
    if not verdicts(side):
        what = f"run {side.run.run_id} has no verdict"
        yield _general_violation(
            Rule.NOTHING_TESTED, what, "A gate that tested nothing must not pass: see why its targets are unavailable."
        )
    for target in dict.fromkeys((*rules.required, *(cell.target for cell in side.cells))):
        cells = [cell for cell in side.cells if cell.target == target and cell.error_type != _UNBUILDABLE]
        needed = {Status.NOT_RUN, Status.UNAVAILABLE} if target in rules.required else {Status.NOT_RUN}
        missing = [cell for cell in cells if cell.status in needed]
        if missing:
            why = next((cell.message for cell in missing if cell.message), "it was not run")
            what = f"{len(missing)} of {len(cells)} cells on {target} have no verdict: {why}"
            advice = "Run it where its hardware is, or continue the run (--resume)."
            yield _general_violation(Rule.NO_VERDICT, what, advice, target=target)
        elif not cells and target in rules.required:
            has = matrix.spec.targets[target].every_dtype
            asked = dict.fromkeys(cell.dtype for cell in side.cells)
            lacks = f" ({none_of(asked, has)})" if not {*has} & {*asked} else ""
            what = f"{target} is required, but the run planned nothing on it{lacks}"
            yield _general_violation(Rule.NO_VERDICT, what, "Select it with --targets, and one of its precisions.", target=target)


def _loss_violations(matrix: LoadedMatrix, side: Side, limit: float) -> Iterator[Violation]:
    for cell in side.cells:
        if cell.status is Status.PASS and cell.loss is not None and not cell.loss <= limit:
            what = f"its outputs differ from the reference's by {cell.loss:.2g}; --max-loss is {limit:g}"
            yield _cell_violation(Rule.LIMIT, cell, what, "Use a wider precision.", matrix.lines.get(("models", cell.model)))


def _time_violations(matrix: LoadedMatrix, diff: Diff, limit: float) -> Iterator[Violation]:
    if not diff.timed:
        reasons = "; ".join(diff.untimed) or "no cell passes in both"
        advice = "Time both runs on one machine, with nothing else running."
        yield _general_violation(Rule.NOTHING_COMPARED, f"the speed of no cell can be compared: {reasons}", advice)
    for old, cell in diff.pairs:
        if old.status is cell.status is Status.PASS and why_not_timed(old, cell) is None and old.p50_ms and cell.p50_ms:
            ratio = cell.p50_ms / old.p50_ms
            if ratio > limit:
                what = f"p50 is {cell.p50_ms:.4g} ms, {ratio:.3g} times that of the baseline ({short(old)}); --max-p50-ratio is {limit:g}"
                advice = "Time both again, with nothing else running."
                yield _cell_violation(Rule.LIMIT, cell, what, advice, matrix.lines.get(("models", cell.model)))


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
                if not each.strict:
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
    advice = "hwmatrix diff lists the packages that changed; hwmatrix why explains the cell."
    if change.kind is Kind.VANISHED:
        advice = "This run did not plan it: select it, or name another baseline."
    line = matrix.lines.get(("models", cell.model))
    yield _cell_violation(Rule.REGRESSION, cell, f"{change.kind.value.replace('_', ' ')}: {change.detail}", advice, line)


def _covers(each: ExpectSpec, cell: ComparedCell) -> bool:
    """Whether an expectation applies to a cell: also by the precision that its runtime chose."""
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
