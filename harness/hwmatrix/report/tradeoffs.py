"""Which cells of a model no other beats in latency, memory and loss together (``queries/report_tradeoffs.sql``)."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.text import plain
from hwmatrix.records import Dtype
from hwmatrix.report import grid
from hwmatrix.report.rows import CellRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hwmatrix.report.rows import ReportRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A cell that can be compared with others.

    ``memory_mb`` is the peak of the device's memory if ``on_device``, else of the process: of its first inference if ``while_running``,
    else of all that the cell did. ``loss`` is the relative error against the reference, 0 for float32. ``beaten_by`` are the cells that are
    better in one of latency, memory and loss, and no worse in the others, the fastest first; empty: no other beats it.
    """

    cell: CellRow
    memory_mb: float
    on_device: bool
    while_running: bool
    loss: float
    beaten_by: tuple[CellRow, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tradeoff:
    """The cells of one model with the same settings on one machine: the unbeaten ones first, in each group the fastest first.

    ``title`` names the model, and the settings and the machine as far as they distinguish the comparisons of a report. ``left_out`` are
    cells that passed and cannot be compared, with the reason.
    """

    title: str
    candidates: tuple[Candidate, ...]
    left_out: tuple[tuple[CellRow, str], ...]

    @property
    def unbeaten(self) -> tuple[Candidate, ...]:
        """The cells that no other beats."""
        return tuple(each for each in self.candidates if not each.beaten_by)

    @property
    def memory_word(self) -> str:
        """Whose peak the memory is, with its unit."""
        kinds = {each.on_device for each in self.candidates}
        if len(kinds) > 1:
            return "peak MiB of process or device"
        if True in kinds:
            return "device peak MiB"
        return "peak MiB of inference" if all(each.while_running for each in self.candidates) else "peak MiB with conversion"

    def beats(self, best: Candidate) -> tuple[CellRow, ...]:
        """The cells that one beats."""
        return tuple(each.cell for each in self.candidates if best.cell in each.beaten_by)


@functools.lru_cache(maxsize=1)
def tradeoffs_of(rows: ReportRows) -> tuple[Tradeoff, ...]:
    """The comparisons of a report, in the order of its models; cached for several reports."""
    by_position = {cell.position: cell for cell in rows.cells}
    groups = [list(found) for _, found in groupby(rows.analysis.tradeoffs, key=lambda row: row["first"])]
    firsts = [by_position[found[0]["position"]] for found in groups]
    return tuple(_tradeoff(found, by_position, title) for found, title in zip(groups, _titles(firsts), strict=True))


def left_out(found: Iterable[Tradeoff]) -> dict[str, dict[str, int]]:
    """By the reason, how many cells of which targets and precisions passed and could not be compared."""
    names: dict[str, Counter[str]] = {}
    for tradeoff in found:
        for cell, reason in tradeoff.left_out:
            names.setdefault(reason, Counter())[short_name(cell)] += 1
    return {reason: dict(sorted(counts.items())) for reason, counts in names.items()}


def precision(cell: CellRow) -> str:
    """The precision of a cell, with the runtime's choice if it was free: ``default (bfloat16)``."""
    chosen = cell.precision if cell.dtype is Dtype.DEFAULT else None
    return f"{cell.dtype.value} ({chosen.value})" if chosen is not None else cell.dtype.value


def short_name(cell: CellRow) -> str:
    """The target and the precision: ``openvino bfloat16``."""
    return plain(f"{cell.target} {precision(cell)}")


def _tradeoff(found: Sequence[dict[str, Any]], by_position: dict[int, CellRow], title: str) -> Tradeoff:
    return Tradeoff(
        title=title,
        candidates=tuple(
            Candidate(
                cell=by_position[row["position"]],
                memory_mb=row["memory_mb"],
                on_device=row["on_device"],
                while_running=row["while_running"],
                loss=row["loss"],
                beaten_by=tuple(by_position[position] for position in row["beaten_by"]),
            )
            for row in found
            if row["left_out"] is None
        ),
        left_out=tuple((by_position[row["position"]], row["left_out"]) for row in found if row["left_out"] is not None),
    )


_SETTINGS: Final = ("size", "batch", "sequence_length", "new_tokens", "threads")


def _titles(firsts: Sequence[CellRow]) -> list[str]:
    """The names of comparisons, from one cell of each: settings, isolation and machine only as far as they differ."""
    differing = [name for name in _SETTINGS if len({getattr(cell, name) for cell in firsts}) > 1]
    isolations, hosts = ({getattr(cell, name) for cell in firsts} for name in ("column_isolation", "host"))
    titles = []
    for cell in firsts:
        words = [grid.describe(cell, differing)] if differing else []
        words += [cell.column_isolation.value] if len(isolations) > 1 else []
        words += [f"machine {(cell.host or 'unknown')[:6]}"] if len(hosts) > 1 else []
        details = ", ".join(filter(None, words))
        titles.append(plain(f"{cell.model} ({details})" if details else cell.model))
    return titles
