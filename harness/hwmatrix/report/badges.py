"""Badges: what works, in a few words, for a model, a target or a family.

Each is JSON for an endpoint badge of shields.io, which draws it: https://shields.io/badges/endpoint-badge.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from typing import TYPE_CHECKING, Final

from hwmatrix.basics.text import plain
from hwmatrix.records import Dtype, Status
from hwmatrix.report.comparing import FAILING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hwmatrix.report.rows import CellRow, ReportRows

_LONGEST: Final = 100
"""Characters of a name in a file name: file systems allow 255 bytes."""
_UNSAFE: Final = re.compile(r"[^a-z0-9._-]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Badge:
    """One badge. ``name`` is that of its file: ``model-bert``. ``color`` is a color name of shields.io."""

    name: str
    label: str
    message: str
    color: str


def badges(rows: ReportRows) -> tuple[Badge, ...]:
    """One for each model, target and family of a run: by one forward pass of each model, in the first precision of each target."""
    by_target = _grouped(rows.cells, lambda c: c.target)
    first = {target: min((cell.dtype for cell in cells), key=list(Dtype).index) for target, cells in by_target.items()}
    cells = [cell for cell in rows.cells if cell.workload == "forward" and cell.dtype == first[cell.target]]
    found = [
        *(_badge("model", model, own, "target", lambda c: c.target) for model, own in _grouped(cells, lambda c: c.model).items()),
        *(_badge("target", target, own, "model", lambda c: c.model) for target, own in _grouped(cells, lambda c: c.target).items()),
        *(_badge("family", family, own, "model", lambda c: c.model) for family, own in _grouped(cells, lambda c: c.family.value).items()),
    ]
    return tuple(_distinct(found))


def endpoint_json(badge: Badge) -> str:
    """The badge as an endpoint returns it."""
    return json.dumps({"schemaVersion": 1, "label": badge.label, "message": badge.message, "color": badge.color}) + "\n"


def files(rows: ReportRows) -> dict[str, str]:
    """Every badge by the name of its file."""
    return {f"{badge.name}.json": endpoint_json(badge) for badge in badges(rows)}


def _badge(kind: str, name: str, cells: Iterable[CellRow], noun: str, of: Callable[[CellRow], str]) -> Badge:
    """Counts the entries of the other axis: one works if all its cells with a verdict passed, and fails if one failed."""
    passed: set[str] = set()
    failed: set[str] = set()
    for cell in cells:
        if cell.status is Status.PASS:
            passed.add(of(cell))
        elif cell.status in FAILING:
            failed.add(of(cell))
    works, tested = len(passed - failed), len(passed | failed)
    if not tested:
        message, color = "not tested", "lightgrey"
    else:
        message = f"{works} of {tested} {noun}{'s' if tested != 1 else ''}"
        color = "brightgreen" if works == tested else "yellow" if works or passed else "red"
    file = _UNSAFE.sub("-", name.lower())[:_LONGEST].strip("-") or "unnamed"
    return Badge(name=f"{kind}-{file}", label=plain(name)[:60], message=message, color=color)


def _grouped(cells: Iterable[CellRow], of: Callable[[CellRow], str]) -> dict[str, list[CellRow]]:
    """Cells grouped by a key, in the order of first occurrence."""
    found: dict[str, list[CellRow]] = {}
    for cell in cells:
        found.setdefault(of(cell), []).append(cell)
    return found


def _distinct(found: list[Badge]) -> list[Badge]:
    """Number badges whose names became equal when they were made safe for file names."""
    distinct: dict[str, Badge] = {}
    for badge in found:
        numbered = itertools.chain([badge.name], (f"{badge.name}-{number}" for number in itertools.count(2)))
        name = next(name for name in numbered if name not in distinct)
        distinct[name] = dataclasses.replace(badge, name=name)
    return list(distinct.values())
