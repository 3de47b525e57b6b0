"""Splits a run into parts: some models on one target, about equally long, so that every worker is busy until the end.

A part is what one worker does in one go: with one start of the image, one warm parent, one pair of canaries.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import duckdb

from hwmatrix.records import CellPlan, ModelPlan
from hwmatrix.store.confined import opened
from hwmatrix.store.reading import query

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from hwmatrix.records import ModelKey, Plan

PART_S: Final = 60.0
"""How long a part should take, in seconds: long enough that starting its runner (about 10 CPU seconds, see docs/cluster.md) does not
count much, short enough that a fast worker does more of them, and that a lost machine costs little."""
_UNKNOWN_S: Final = {True: 2.0, False: 0.5}
"""The cost of a cell if nothing was measured at all, if it is timed and if it is not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Models whose bundles are made together, and their cells by target. ``cost_s`` is the estimate of its slowest target, in seconds."""

    models: tuple[ModelPlan, ...]
    cells: dict[str, tuple[CellPlan, ...]]
    cost_s: float


def grouped(plan: Plan, todo: Mapping[str, Sequence[CellPlan]], costs_s: Mapping[str, float], workers: int) -> list[Group]:
    """Split the cells to run into groups of models, the slowest group first.

    Args:
        plan: the whole plan, for the models.
        todo: the cells to run, by target.
        costs_s: the seconds that cells took the last time, by key (see :func:`costs`).
        workers: how many workers there are.
    """
    wanted: dict[ModelKey, dict[str, list[CellPlan]]] = defaultdict(lambda: defaultdict(list))
    for target, cells in todo.items():
        for cell in cells:
            wanted[cell.model_key][target].append(cell)
    usual = {target: _usual(cells, costs_s, _UNKNOWN_S[plan.timing]) for target, cells in todo.items()}
    cost = {
        model: {target: sum(costs_s.get(cell.key, usual[target]) for cell in cells) for target, cells in by_target.items()}
        for model, by_target in wanted.items()
    }
    longest = max((sum(of_model.get(target, 0.0) for of_model in cost.values()) for target in todo), default=0.0)
    rounds = max(1, math.ceil(math.ceil(longest / PART_S) * len(todo) / max(1, workers)))
    even = math.ceil(rounds * workers / max(1, len(todo)))  # as many parts for each worker, or the last ones run while others wait
    count = max(1, min(len(wanted), even))
    shares = _shares({model: max(by_target.values()) for model, by_target in cost.items()}, count)
    groups = [_group(plan, [(model, wanted[model]) for model in share], cost) for share in shares]
    return sorted(groups, key=lambda group: -group.cost_s)


def costs(databases: Iterable[Path]) -> dict[str, float]:
    """The seconds that each cell took the last time, by its key, from merged databases; of several, the first that has the cell.

    A database that is missing or cannot be read is passed over: the costs only decide how the work is split.
    """
    found: dict[str, float] = {}
    for database in databases:
        if not database.is_file():
            continue
        try:
            with opened(database) as connection:
                rows = connection.execute(query("cell_costs")).fetchall()
        except duckdb.Error:
            continue
        found = dict(rows) | found
    return found


def _usual(cells: Sequence[CellPlan], costs_s: Mapping[str, float], unknown_s: float) -> float:
    """The cost of a cell that was never measured: the median of the target's others, or of all, or this one."""
    measured = [costs_s[cell.key] for cell in cells if cell.key in costs_s]
    return statistics.median(measured or costs_s.values() or [unknown_s])


def _shares(cost: Mapping[ModelKey, float], count: int) -> list[list[ModelKey]]:
    """Split models into shares of about equal cost: each, the most expensive first, goes to the share that is the cheapest so far."""
    heap: list[tuple[float, int]] = [(0.0, index) for index in range(count)]
    shares: list[list[ModelKey]] = [[] for _ in range(count)]
    for model in sorted(cost, key=lambda model: (-cost[model], model)):
        so_far, index = heapq.heappop(heap)
        shares[index].append(model)
        heapq.heappush(heap, (so_far + cost[model], index))
    return [share for share in shares if share]


def _group(
    plan: Plan, members: Sequence[tuple[ModelKey, Mapping[str, Sequence[CellPlan]]]], cost: Mapping[ModelKey, Mapping[str, float]]
) -> Group:
    chosen = {model for model, _ in members}
    cells: dict[str, list[CellPlan]] = defaultdict(list)
    total: dict[str, float] = defaultdict(float)
    for model, by_target in members:
        for target, listed in by_target.items():
            cells[target] += listed
            total[target] += cost[model][target]
    return Group(
        models=tuple(model for model in plan.models if model.key in chosen),
        cells={target: tuple(listed) for target, listed in cells.items()},
        cost_s=max(total.values()),
    )
