"""Where wrong results begin, as text: a sentence for one cell, and the common part of cells with one cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwmatrix.records import Origin
from hwmatrix.report.contract import DivergenceEntry

if TYPE_CHECKING:
    from hwmatrix.report.rows import CellRow

_COMMON: Final = {
    Origin.GRADUAL: "errors that grow gradually",
    Origin.GRAPH: "a wrong export or conversion",
    Origin.FUSED: "errors caused by fusing several steps",
}


def entry(cell: CellRow) -> DivergenceEntry | None:
    """A cell's divergence as its published type; None if it was not searched for."""
    if cell.origin is None:
        return None
    return DivergenceEntry(
        origin=cell.origin,
        at=cell.diverges_at,
        operator=cell.diverges_operator,
        relative_error=cell.diverges_error,
        inputs_error=cell.diverges_given,
        against=cell.diverges_against,
        detail=cell.diverges_detail,
    )


def common(cell: CellRow) -> str | None:
    """What the cell has in common with others of the same cause: the first wrong operator, or the kind of origin. None: unknown."""
    if cell.failing_step:
        return "decoding with the cache; the prefill is right"
    if cell.origin is Origin.STEP and cell.diverges_operator is not None:
        return f"{cell.diverges_operator}, the first wrong step"
    return _COMMON.get(cell.origin) if cell.origin is not None else None


def generation(cell: CellRow) -> str | None:
    """Where generation first fails, in words; None if it does not, or was not tried."""
    if cell.failing_component is None or cell.failing_step is None:
        return None
    step = "" if cell.failing_step == 0 else f" at step {cell.failing_step}"
    return f"in the {cell.failing_component}{step}, after the {cell.failing_prompt} prompt"


def sentence(cell: CellRow) -> str | None:
    """Where the cell's difference begins, on one line; None if it was not searched for."""
    if cell.origin is None:
        return None
    against = f", compared with {cell.diverges_against}" if cell.diverges_against else ""
    detail = f"; {cell.diverges_detail}" if cell.diverges_detail else ""
    if cell.origin is Origin.UNKNOWN:
        return f"not found{detail}{against}"
    if cell.origin is Origin.GRAPH:
        return f"before the target, in the exported or converted graph{against}{detail}"
    if cell.origin is Origin.FUSED:
        return f"where the runtime fuses several steps{against}{detail}"
    step = f"{cell.diverges_at or 'the whole model'} ({cell.diverges_operator})"
    error = "" if cell.diverges_error is None else f" differs by {cell.diverges_error:.3g}"
    given = "" if cell.diverges_given is None else f", with inputs that differ by {cell.diverges_given:.3g}"
    if cell.origin is Origin.GRADUAL:
        return f"no single step, the error grows gradually: {step}{error}{given}{against}{detail}"
    return f"{step}{error or ' differs'}{given}{against}{detail}"
