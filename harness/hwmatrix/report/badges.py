"""Badges: short results for a model, a target or a family, as SVG, and as JSON for badge services.

The JSON has the form of the endpoint badges of shields.io: https://shields.io/badges/endpoint-badge.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
from typing import TYPE_CHECKING, Final

import jinja2

from hwmatrix.records import Status
from hwmatrix.report.comparing import FAILING
from hwmatrix.report.escape import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hwmatrix.report.rows import CellRow, ReportRows

_COLOURS: Final = {"brightgreen": "#2c7a1f", "yellow": "#8a6d00", "red": "#b02a1d", "lightgrey": "#5b6168"}
"""Names of the endpoint's, and what the SVGs use for them: white text on them has a contrast of at least 4.5 (WCAG AA)."""
_WIDTH: Final = 6.6
"""Pixels a character of Verdana at 11 px takes on average; badges have a few pixels to spare."""
_PADDING: Final = 10
_LONGEST: Final = 100
"""Characters of a name in that of a file: file systems take 255 bytes."""
_UNSAFE: Final = re.compile(r"[^a-z0-9._-]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Badge:
    """One badge. ``name`` is that of its files: ``model-bert``."""

    name: str
    label: str
    message: str
    colour: str


def badges(rows: ReportRows) -> tuple[Badge, ...]:
    """One for each model, target and family of a run."""
    cells = rows.cells
    found = [
        *(_badge("model", model, own, "target", lambda c: c.target) for model, own in _by(cells, lambda c: c.model).items()),
        *(_badge("target", target, own, "model", lambda c: c.model) for target, own in _by(cells, lambda c: c.target).items()),
        *(_badge("family", family, own, "model", lambda c: c.model) for family, own in _by(cells, lambda c: c.family.value).items()),
    ]
    return tuple(_distinct(found))


def endpoint_json(badge: Badge) -> str:
    """The badge as an endpoint gives it."""
    return json.dumps({"schemaVersion": 1, "label": badge.label, "message": badge.message, "color": badge.colour}) + "\n"


def svg(badge: Badge) -> str:
    """The badge as a picture that loads nothing, with its text as its title for those who cannot see it."""
    left, right = (round(len(text) * _WIDTH) + _PADDING for text in (badge.label, badge.message))
    template = _environment().get_template("badge.svg.j2")
    return template.render(badge=badge, left=left, right=right, colour=_COLOURS[badge.colour]).strip() + "\n"


def files(rows: ReportRows) -> dict[str, str]:
    """Every badge twice, by file name."""
    return {
        name: text
        for badge in badges(rows)
        for name, text in ((f"{badge.name}.svg", svg(badge)), (f"{badge.name}.json", endpoint_json(badge)))
    }


def _badge(kind: str, name: str, cells: Iterable[CellRow], noun: str, of: Callable[[CellRow], str]) -> Badge:
    """Counts the things of the other axis: one works if all its cells with a verdict passed, fails if one failed."""
    passed: set[str] = set()
    failed: set[str] = set()
    for cell in cells:
        if cell.status is Status.PASS:
            passed.add(of(cell))
        elif cell.status in FAILING:
            failed.add(of(cell))
    works, tested = len(passed - failed), len(passed | failed)
    if not tested:
        message, colour = "not tested", "lightgrey"
    else:
        message = f"{works} of {tested} {noun}{'s' if tested != 1 else ''}"
        colour = "brightgreen" if works == tested else "yellow" if works or passed else "red"
    file = _UNSAFE.sub("-", name.lower())[:_LONGEST].strip("-") or "unnamed"
    return Badge(name=f"{kind}-{file}", label=plain(name)[:60], message=message, colour=colour)


def _by(cells: Iterable[CellRow], of: Callable[[CellRow], str]) -> dict[str, list[CellRow]]:
    """Cells by something of them, in the order in which it occurs first."""
    found: dict[str, list[CellRow]] = {}
    for cell in cells:
        found.setdefault(of(cell), []).append(cell)
    return found


def _distinct(found: list[Badge]) -> list[Badge]:
    """Names that are the same once they are made safe for files get a number."""
    distinct: dict[str, Badge] = {}
    for badge in found:
        numbered = itertools.chain([badge.name], (f"{badge.name}-{number}" for number in itertools.count(2)))
        name = next(name for name in numbered if name not in distinct)
        distinct[name] = dataclasses.replace(badge, name=name)
    return list(distinct.values())


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("hwmatrix.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
