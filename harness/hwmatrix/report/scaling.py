"""How latency and throughput change with one setting: batch, sequence length or threads, all else being equal on one machine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.records import Execution, Status
from hwmatrix.report.rows import CellRow

if TYPE_CHECKING:
    from collections.abc import Iterable

SETTINGS: Final = ("batch", "sequence_length", "threads")
"""The settings that are varied."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """At least two cells that differ only in ``setting``, by its value ascending: of one model, target and precision, on one machine."""

    setting: str
    cells: tuple[CellRow, ...]

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the other settings."""
        return tuple(name for name in ("size", *SETTINGS, "new_tokens") if name != self.setting)

    def value(self, cell: CellRow) -> int:
        """The setting of a cell."""
        return int(getattr(cell, self.setting))

    def gain(self, cell: CellRow) -> float | None:
        """The inputs per second of a cell over those of the first cell."""
        first = self.cells[0].inputs_s
        return cell.inputs_s / first if first and cell.inputs_s else None


def lines_of(cells: Iterable[CellRow]) -> tuple[Line, ...]:
    """The lines of a report, by setting: only cells that passed on hardware and were timed."""
    timed = [cell for cell in cells if cell.status is Status.PASS and cell.execution is Execution.HARDWARE and cell.p50_ms is not None]
    found = []
    for setting in SETTINGS:
        alike: dict[tuple[Any, ...], list[CellRow]] = {}
        for cell in timed:
            others = tuple(getattr(cell, name) for name in (*SETTINGS, "new_tokens") if name != setting)
            place = (cell.model, cell.hub_id, cell.size, cell.target, cell.dtype, cell.column_isolation, cell.host)
            alike.setdefault((*place, *others), []).append(cell)
        for line in alike.values():
            ordered = sorted(line, key=lambda cell: int(getattr(cell, setting)))
            if len({getattr(cell, setting) for cell in line}) > 1:
                found.append(Line(setting=setting, cells=tuple(ordered)))
    return tuple(found)
