"""The totals of a run: passed out of tried cells, by family and target."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from hwmatrix.records import Family, Isolation
from hwmatrix.report.grid import Column

if TYPE_CHECKING:
    from hwmatrix.report.rows import ReportRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Total:
    """Cells that were tried, those of them that passed, and those that ran only their model's text path."""

    tried: int
    passed: int
    text_path: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TotalLine:
    """One family on every target; ``family`` is None for all of them together. None: the run has no such cell."""

    family: Family | None
    totals: tuple[Total | None, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """Models by their inputs. ``given_more`` and ``text_path`` count those that take images, sound or video; ``unmade`` were not built."""

    models: int
    known: int
    given_more: int
    text_path: int
    unmade: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Totals:
    """The table of totals: all families together first."""

    columns: tuple[Column, ...]
    lines: tuple[TotalLine, ...]
    inputs: Inputs


@functools.lru_cache(maxsize=1)
def totals_of(rows: ReportRows) -> Totals:
    """The totals of a run, cached for several reports."""
    found: dict[str | None, dict[Column, Total]] = {}
    for row in rows.analysis.totals:
        column = Column(target=row["target"], isolation=Isolation(row["isolation"]))
        total = Total(tried=row["tried"], passed=row["passed"], text_path=row["text_path"])
        found.setdefault(row["family"], {})[column] = total
    columns = tuple(dict.fromkeys(Column(target=cell.target, isolation=cell.column_isolation) for cell in rows.cells))
    families: list[Family | None] = [None, *(family for family in Family if family.value in found)]
    return Totals(
        columns=columns,
        lines=tuple(
            TotalLine(family=family, totals=tuple(map(found.get(family.value if family else None, {}).get, columns))) for family in families
        ),
        inputs=Inputs(**rows.analysis.inputs[0]),
    )
