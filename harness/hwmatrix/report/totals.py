"""How many models were tried and passed: on each target in each precision, by family; and how many models took which inputs."""

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
    """Models that were tried, those of them that passed, those that passed only changed, and those that ran only their text path."""

    tried: int
    passed: int
    changed: int
    text_path: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TotalLine:
    """One target in one precision.

    ``models`` counts models by one forward pass, ``generating`` those that also generate, by one generation. ``by_family`` has ``models``
    for each family of the table. None: no such model was tried.
    """

    column: Column
    models: Total | None
    generating: Total | None
    by_family: tuple[Total | None, ...]


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
    """The table of totals, with a line for each target and precision. ``models`` are all models of the report, each counted once."""

    models: int
    families: tuple[Family, ...]
    lines: tuple[TotalLine, ...]
    inputs: Inputs


@functools.lru_cache(maxsize=1)
def totals_of(rows: ReportRows) -> Totals:
    """The totals of a run, cached for several reports."""
    counted: dict[Column, dict[tuple[str, str | None], Total]] = {}
    for row in rows.analysis.totals:
        column = Column(target=row["target"], isolation=Isolation(row["isolation"]), dtype=row["dtype"])
        total = Total(**{name: row[name] for name in ("tried", "passed", "changed", "text_path")})
        counted.setdefault(column, {})[row["workload"], row["family"]] = total
    present = {row["family"] for row in rows.analysis.totals}
    families = tuple(family for family in Family if family.value in present)
    inputs = Inputs(**rows.analysis.inputs[0])
    return Totals(
        models=inputs.models,
        families=families,
        lines=tuple(
            TotalLine(
                column=column,
                models=totals.get(("forward", None)),
                generating=totals.get(("generation", None)),
                by_family=tuple(totals.get(("forward", family.value)) for family in families),
            )
            for column, totals in counted.items()
        ),
        inputs=inputs,
    )
