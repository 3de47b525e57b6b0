"""Writes measured and estimated memory: memory.md for people, memory.json for programs, and the tables of docs/requirements.md."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

from memory_fit import MeasuredPeak

from hwmatrix.knowledge.calibration import MEASURES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hwmatrix.knowledge.calibration import Calibration, Errors

BEGIN: Final = "<!-- written by tests/bench/requirements.py: begin -->"
END: Final = "<!-- end -->"
_FAR: Final = 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportedCell:
    """A measured cell with its estimate, and the run that measured it. Memory in MiB."""

    measured: MeasuredPeak
    estimate_mb: float
    run_id: str

    @property
    def off(self) -> float:
        """The estimate's signed relative error."""
        return self.estimate_mb / self.measured.peak_mb - 1


def publish(folder: Path, found: Calibration, cells: Sequence[ReportedCell], unmeasured: Sequence[dict[str, Any]]) -> None:
    """Write memory.md and memory.json into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.md").write_text(as_markdown(found, cells, unmeasured), encoding="utf-8")
    (folder / "memory.json").write_text(as_json(found, cells, unmeasured), encoding="utf-8")


def write_page(page: Path, found: Calibration, cells: Sequence[ReportedCell]) -> None:
    """Replace the text between the markers of docs/requirements.md.

    Raises:
        SystemExit: the page has no such markers.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} lacks the line {BEGIN} or {END}")
    origin = f"Measured on {found.date} on {found.machine}; the evidence is in {found.evidence}."
    fitted = ["The coefficients:", "", *coefficients_table(found), "", "What they were fitted to, in MiB:", "", *ranges_table(found)]
    lines = [
        "",
        origin,
        "",
        *errors_table(found),
        "",
        *fitted,
        "",
        "Cells whose estimate is off by more than 25 %:",
        "",
        *far_off(cells),
        "",
    ]
    page.write_text("\n".join([before + begin, *lines, end]) + after, encoding="utf-8")


def as_json(found: Calibration, cells: Sequence[ReportedCell], unmeasured: Sequence[dict[str, Any]]) -> str:
    """All results, as JSON."""
    return (
        json.dumps(
            {
                "schema": "hwmatrix/memory/1",
                "date": found.date,
                "machine": found.machine,
                "backends": {backend.value: dataclasses.asdict(told) for backend, told in found.backends.items()},
                "cells": [
                    dataclasses.asdict(cell.measured)
                    | {"estimate_mb": round(cell.estimate_mb, 1), "error": round(cell.off, 4), "run_id": cell.run_id}
                    for cell in cells
                ],
                "unmeasured": list(unmeasured),
            },
            indent=1,
        )
        + "\n"
    )


def as_markdown(found: Calibration, cells: Sequence[ReportedCell], unmeasured: Sequence[dict[str, Any]]) -> str:
    """All results, as Markdown."""
    rows = [
        (
            f"`{cell.measured.model}`" + (" (held out)" if cell.measured.held_out else ""),
            cell.measured.backend,
            cell.measured.dtype,
            cell.measured.batch,
            cell.measured.sequence_length,
            f"{cell.measured.peak_mb:,.0f}",
            f"{cell.estimate_mb:,.0f}",
            f"{cell.off:+.1%}",
        )
        for cell in cells
    ]
    lacking = [
        (f"`{row['model']}`", row["target"], row["dtype"], row["batch"], row["sequence_length"], row["status"], row["error_type"] or "")
        for row in unmeasured
    ]
    return "\n".join(
        [
            "# Memory: measured and estimated",
            "",
            f"{len(cells)} cells of {found.date} on {found.machine}, each executed in a container. `matrix.duckdb` beside this",
            "file has all of them with their runs. How estimates are made: [docs/requirements.md](../../docs/requirements.md).",
            "",
            "## Errors of the estimate",
            "",
            *errors_table(found),
            "",
            "## Coefficients",
            "",
            *coefficients_table(found),
            "",
            "Fitted to, in MiB:",
            "",
            *ranges_table(found),
            "",
            "## Cells",
            "",
            "Memory in MiB. Held out: no fit saw any cell of the model.",
            "",
            *_table(("Model", "Target", "Precision", "Batch", "Tokens", "Measured", "Estimate", "Error"), rows, right=5),
            "",
            "## Cells without a measured peak",
            "",
            *(_table(("Model", "Target", "Precision", "Batch", "Tokens", "Status", "Error"), lacking) if lacking else ["None."]),
            "",
        ]
    )


def errors_table(found: Calibration) -> list[str]:
    """The number of cells and the errors of their estimates, by backend and kind of cells."""
    rows = []
    for backend, told in found.backends.items():
        kinds: tuple[tuple[str, Errors | None], ...] = (
            ("fitted", told.in_sample),
            ("each model left out of the fit in turn", told.left_out),
            ("models that no fit saw", told.held_out),
        )
        rows += [
            (f"`{backend}`", kind, errors.cells, f"{errors.median:.1%}", f"{errors.p90:.1%}", f"{errors.within_25:.1%}")
            for kind, errors in kinds
            if errors is not None
        ]
    return _table(("Target", "Cells", "Number", "Median error", "90th percentile", "Within 25 %"), rows, right=2)


def coefficients_table(found: Calibration) -> list[str]:
    """The coefficients, by backend and phase. A dash marks a term that the phase does not have."""
    terms = ("stored", "weights", "copied", "tied", "activations", "comparison")
    rows = []
    for backend, told in found.backends.items():
        for phase, coefficients in (("load", told.coefficients.load), ("run", told.coefficients.run)):
            values = [getattr(coefficients, term, None) for term in terms]
            shown = ["-" if value is None else f"{value:.2f}" for value in values]
            rows.append((f"`{backend}`", phase, f"{coefficients.constant:,.0f} MiB", *shown))
    return _table(("Target", "Phase", "constant", *terms), rows, right=2)


def ranges_table(found: Calibration) -> list[str]:
    """The ranges that the formula was fitted to, in MiB, by backend."""
    rows = [
        (f"`{backend}`", ", ".join(told.dtypes), len(told.models), *(f"{low:,.0f} to {high:,.0f}" for low, high in told.ranges.values()))
        for backend, told in found.backends.items()
    ]
    return _table(("Target", "Precisions", "Models", *MEASURES), rows, right=2)


def far_off(cells: Iterable[ReportedCell]) -> list[str]:
    """The cells whose estimate is off by more than 25 %."""
    rows = [
        (f"`{cell.measured.model}`", cell.measured.backend, cell.measured.dtype, f"{cell.measured.batch} x {cell.measured.sequence_length}",
         f"{cell.measured.peak_mb:,.0f}", f"{cell.estimate_mb:,.0f}", f"{cell.off:+.1%}")
        for cell in sorted(cells, key=lambda cell: -abs(cell.off))
        if abs(cell.off) > _FAR
    ]  # fmt: skip
    return _table(("Model", "Target", "Precision", "Batch x tokens", "Measured", "Estimate", "Error"), rows, right=4) if rows else ["None."]


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: int | None = None) -> list[str]:
    """A Markdown table; columns from ``right`` on are numbers."""
    marks = ["---:" if right is not None and index >= right else "---" for index in range(len(head))]
    return [f"| {' | '.join(map(str, row))} |" for row in (head, marks, *rows)]
