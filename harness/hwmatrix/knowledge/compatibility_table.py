"""The table of families and architectures against hardware: measured counts, else expectations."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from hwmatrix.knowledge.compatibility import Tally, by_prior, tally
from hwmatrix.knowledge.on_record import on_record
from hwmatrix.records import Backend, Basis, Execution, Family, Level

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hwmatrix.knowledge.evidence import Evidence
    from hwmatrix.knowledge.on_record import OnRecord


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableCell:
    """One family or architecture on one hardware.

    If ``basis`` is measured, ``levels`` counts the models at each level, each at its best, ``level`` is the most frequent one,
    and ``execution`` says whether any of them ran on real hardware there. If it is prior, ``level`` is the most cautious one that a
    document names (None: it names none). ``expected`` are the priors in words, even if there are measurements.
    """

    hardware: Backend
    basis: Basis
    level: Level | None
    compatible: bool | None
    levels: dict[Level, int]
    execution: Execution | None
    expected: tuple[str, ...]

    def __str__(self) -> str:
        """The cell in a few words: ``measured: 2 High, 1 none``, ``expected: Low or REAL``, or nothing."""
        if self.basis is Basis.MEASURED:
            how = f" ({self.execution.value})" if self.execution not in {None, Execution.HARDWARE} else ""
            return f"measured: {Tally(levels=self.levels)}{how}"
        if self.basis is Basis.PRIOR:
            words = list(dict.fromkeys(said.partition(" (")[0] for said in self.expected))
            return f"expected: {' or '.join(words)}"
        return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRow:
    """A family (``architecture`` is None) or one of its architectures, on every hardware."""

    family: Family
    architecture: str | None
    cells: tuple[TableCell, ...]

    def as_dict(self) -> dict[str, Any]:
        """The row as plain data: ``hardware`` maps names to cells."""
        cells = {
            cell.hardware.value: {
                "basis": cell.basis.value,
                "level": cell.level.value if cell.level else None,
                "compatible": cell.compatible,
                "levels": {level.value: count for level, count in cell.levels.items()},
                "execution": cell.execution.value if cell.execution else None,
                "expected": list(cell.expected),
                "text": str(cell),
            }
            for cell in self.cells
        }
        return {"family": self.family.value, "architecture": self.architecture, "hardware": cells}


def compatibility_table(database: Path | None = None) -> tuple[TableRow, ...]:
    """Every family, each followed by its architectures that are on record, against every hardware.

    ``database`` is a merged database; None: the default sources (``on_record``).

    Raises:
        StoreError: the database cannot be read.
    """
    return table_of(on_record(database))


def table_of(found: OnRecord) -> tuple[TableRow, ...]:
    """The same table for measurements that were read already."""
    records = [record for record in found.evidence if record.level is not None]
    rows: list[TableRow] = []
    for family in Family:
        own = [record for record in records if record.family is family]
        rows.append(_row(family, None, own))
        rows += [
            _row(family, name, [record for record in own if record.architecture == name])
            for name in sorted({record.architecture for record in own})
        ]
    return tuple(rows)


def _row(family: Family, architecture: str | None, records: Sequence[Evidence]) -> TableRow:
    cells = tuple(_cell(family, hardware, [record for record in records if record.backend is hardware]) for hardware in Backend)
    return TableRow(family=family, architecture=architecture, cells=cells)


def _cell(family: Family, hardware: Backend, records: Sequence[Evidence]) -> TableCell:
    prior, counted = by_prior(hardware, family), tally(records) if records else None
    decisive, ran = counted or prior, {record.execution for record in records}
    return TableCell(
        hardware=hardware,
        basis=Basis.MEASURED if counted else prior.basis,
        level=decisive.level,
        compatible=decisive.compatible,
        levels=counted.levels if counted else {},
        execution=next((execution for execution in Execution if execution in ran), None),
        expected=tuple(str(each) for each in prior.expected),
    )
