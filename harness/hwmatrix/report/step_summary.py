"""GitHub output of a run: the job summary, annotations on lines of matrix.yaml, release notes."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hwmatrix.basics.escape import code, short
from hwmatrix.records import Status
from hwmatrix.report.comparing import FAILING
from hwmatrix.report.diff_text import diff_md
from hwmatrix.report.failures import cell_error
from hwmatrix.report.gate import Rule, Violation
from hwmatrix.report.gate_text import annotation
from hwmatrix.report.markdown import matrix_md

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.matrix.load import LoadedMatrix
    from hwmatrix.report.diff import Diff
    from hwmatrix.report.rows import CellRow, ReportRows

SUMMARY_BYTES: Final = 1024 * 1024
"""GitHub drops the summary of a step that is larger: https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands."""
NOTES_CHARACTERS: Final = 125_000
"""The longest text of a release that the API accepts."""
ANNOTATIONS: Final = 10
"""Errors of a step that GitHub shows. A line of the log counts the others."""
BEGIN: Final = "<!-- hwmatrix: begin -->"
END: Final = "<!-- hwmatrix: end -->"


def step_summary(rows: ReportRows, problems: Sequence[str], *, room: int = SUMMARY_BYTES) -> str:
    """The matrix and the failures as Markdown of at most ``room`` bytes of UTF-8; what was rejected or is missing comes first."""
    head = "".join(f"- {code(short(problem, 300))}\n" for problem in problems)
    first = f"### Rejected or missing results\n\n{head}\n" if head else ""
    return cut(first + matrix_md(rows), room, "The rest is in matrix.md, in the artifact with the reports of this run.")


def cut(text: str, room: int, word: str) -> str:
    """The text, or as many whole lines as fit into ``room`` bytes, followed by ``word``."""
    if len(text.encode()) <= room:
        return text
    ending = f"\n\n*{word}*\n"
    left = room - len(ending.encode())
    kept: list[str] = []
    for line in text.splitlines(keepends=True):
        left -= len(line.encode())
        if left < 0:
            break
        kept.append(line)
    whole = "".join(kept).rstrip("\n") + ending
    return whole if len(whole.encode()) <= room else word[: max(room, 0)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FailureKind:
    """Failures that share one annotation: those of a model, of one type and status."""

    model: str
    status: Status
    error_type: str


def failure_annotations(rows: ReportRows, loaded: LoadedMatrix, file: str) -> list[str]:
    """An annotation for each model and kind of failure, on the model's line of matrix.yaml; then a line that counts the others."""
    groups: defaultdict[_FailureKind, list[CellRow]] = defaultdict(list)
    for cell in rows.cells:
        error = cell_error(cell)
        if error is not None and cell.status in FAILING:
            groups[_FailureKind(model=cell.model, status=cell.status, error_type=error.type)].append(cell)
    shown = [annotation(_violation(kind, cells, loaded), file) for kind, cells in list(groups.items())[:ANNOTATIONS]]
    more = len(groups) - len(shown)
    return shown + ([f"and {more} more kinds of failure: matrix.md lists them"] if more > 0 else [])


def _violation(kind: _FailureKind, cells: list[CellRow], loaded: LoadedMatrix) -> Violation:
    where = ", ".join(dict.fromkeys(f"{cell.target} ({cell.dtype.value})" for cell in cells))
    message = short(cells[0].message or "", 120)
    return Violation(
        rule=Rule.UNEXPECTED_FAILURE,
        model=kind.model,
        target=None,
        settings=None,
        what=f"{kind.status.value} ({kind.error_type}) on {where}",
        advice=message,
        line=loaded.lines.get(("models", kind.model)),
    )


def release_notes(body: str, rows: ReportRows, diff: Diff | None, *, room: int = NOTES_CHARACTERS) -> str:
    """The text of a release: what people wrote, then the matrix and the changes since the last release, which replace earlier ones.

    ``room`` counts bytes, of which there are at least as many as characters. What people wrote is never cut.
    """
    mine = body
    if BEGIN in body and END in body:
        before, _, rest = body.partition(BEGIN)
        mine = before + rest.partition(END)[2]
    mine = mine.replace("\r\n", "\n").strip()
    changes = diff_md(diff) if diff is not None else "There is no earlier release with a matrix to compare with.\n"
    left = room - len(mine.encode()) - len(BEGIN) - len(END) - 10
    if left < 1000:  # noqa: PLR2004 - no room for a table
        return mine + "\n"
    word = "The rest is in the files of this release."
    changed = cut(changes, left // 3, word)
    matrix = cut(matrix_md(rows), left - len(changed.encode()), word)
    return f"{mine}\n\n{BEGIN}\n{matrix}\n{changed}\n{END}\n".lstrip()
