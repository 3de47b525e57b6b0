"""A run in waves: a limited number of models at a time with all their cells, which bounds the disk space for bundles."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Final

from hwmatrix.records import CellPlan, ModelPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.records import Plan, Size

MODELS: Final = 256
"""About so many models a wave. Each wave starts every image anew (some ten seconds), and holds the bundles of its models (gigabytes)."""
_MINUTE: Final = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wave:
    """One of them: its models, and their cells by target. ``later`` are the models of those to come. ``number`` begins with 1."""

    number: int
    of: int
    models: tuple[ModelPlan, ...]
    cells: dict[str, tuple[CellPlan, ...]]
    later: tuple[ModelPlan, ...]


def waves(plan: Plan, todo: Mapping[str, Sequence[CellPlan]]) -> list[Wave]:
    """Share out the models that have something to do, in the plan's order, evenly; a few of them are one wave."""
    needed = {(cell.model, cell.size) for cells in todo.values() for cell in cells}
    chosen = [model for model in plan.models if (model.name, model.size) in needed]
    count = max(1, round(len(chosen) / MODELS))
    ends = [len(chosen) * number // count for number in range(count + 1)]
    return [_wave(chosen, todo, ends, number) for number in range(1, count + 1)]


def _wave(chosen: list[ModelPlan], todo: Mapping[str, Sequence[CellPlan]], ends: list[int], number: int) -> Wave:
    models = chosen[ends[number - 1] : ends[number]]
    mine: set[tuple[str, Size]] = {(model.name, model.size) for model in models}
    cells = {target: tuple(cell for cell in listed if (cell.model, cell.size) in mine) for target, listed in todo.items()}
    return Wave(
        number=number,
        of=len(ends) - 1,
        models=tuple(models),
        cells={target: listed for target, listed in cells.items() if listed},
        later=tuple(chosen[ends[number] :]),
    )


class Pace:
    """How fast a run goes, and so how long it will take."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._begin = time.monotonic()

    def done(self, count: int) -> None:
        """So many more cells are done."""
        self._done += count

    def tell(self) -> str:
        """What is done and what is left, such as ``130 of 650 cells are done, about 8 minutes are left``."""
        told = f"{self._done} of {self._total} cells are done"
        if not self._done or self._done >= self._total:
            return told
        left_s = (time.monotonic() - self._begin) / self._done * (self._total - self._done)
        minutes = round(left_s / _MINUTE)
        return f"{told}, about {minutes} minute{'s' if minutes != 1 else ''} left" if minutes else f"{told}, less than a minute left"
