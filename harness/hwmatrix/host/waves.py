"""A run in waves: a limited number of models at a time with all their cells, which bounds the disk space for bundles."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Final

from hwmatrix.records import CellPlan, ModelPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.records import Plan

MODELS: Final = 256
"""The approximate number of models per wave. Each wave restarts every image (some ten seconds), and keeps its models' bundles
(gigabytes)."""
_MINUTE: Final = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wave:
    """One wave: its models, and their cells by target. ``later`` are the models of later waves. ``number`` starts at 1."""

    number: int
    of: int
    models: tuple[ModelPlan, ...]
    cells: dict[str, tuple[CellPlan, ...]]
    later: tuple[ModelPlan, ...]


def waves(plan: Plan, todo: Mapping[str, Sequence[CellPlan]]) -> list[Wave]:
    """Split the models that have cells to run into waves of equal size, in the plan's order. A few models are a single wave."""
    needed = {cell.model_key for cells in todo.values() for cell in cells}
    chosen = [model for model in plan.models if model.key in needed]
    count = max(1, round(len(chosen) / MODELS))
    ends = [len(chosen) * number // count for number in range(count + 1)]
    return [_wave(chosen, todo, ends, number) for number in range(1, count + 1)]


def _wave(chosen: list[ModelPlan], todo: Mapping[str, Sequence[CellPlan]], ends: list[int], number: int) -> Wave:
    models = chosen[ends[number - 1] : ends[number]]
    mine = {model.key for model in models}
    cells = {target: tuple(cell for cell in listed if cell.model_key in mine) for target, listed in todo.items()}
    return Wave(
        number=number,
        of=len(ends) - 1,
        models=tuple(models),
        cells={target: listed for target, listed in cells.items() if listed},
        later=tuple(chosen[ends[number] :]),
    )


class Pace:
    """Measures the pace of a run to estimate the remaining time."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._begin = time.monotonic()

    def done(self, count: int) -> None:
        """Add finished cells."""
        self._done += count

    def tell(self) -> str:
        """Describe the progress, such as ``130 of 650 cells are done, about 8 minutes left``."""
        told = f"{self._done} of {self._total} cells are done"
        if not self._done or self._done >= self._total:
            return told
        left_s = (time.monotonic() - self._begin) / self._done * (self._total - self._done)
        minutes = round(left_s / _MINUTE)
        return f"{told}, about {minutes} minute{'s' if minutes != 1 else ''} left" if minutes else f"{told}, less than a minute left"
