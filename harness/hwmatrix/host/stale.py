"""Finds the verdicts of a run that are out of date: another image, another model, or too old."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hwmatrix.records import CellPlan, ModelKey
    from hwmatrix.store.freshness import MadeWith


@dataclasses.dataclass(frozen=True, kw_only=True)
class StaleRule:
    """``max_age`` is the maximum age of a verdict; None sets no limit."""

    max_age: dt.timedelta | None = None


def stale(
    cells: Iterable[CellPlan],
    made: Mapping[str, MadeWith],
    rule: StaleRule,
    *,
    images: Mapping[str, str | None],
    bundles: Mapping[ModelKey, str | None],
    now: dt.datetime,
) -> dict[str, str]:
    """Return the cells with a stale verdict by key, and the reason. ``images`` are the digests by target that would be used now."""
    found: dict[str, str] = {}
    for cell in cells:
        last = made.get(cell.key)
        if last is None:
            continue
        bundle = bundles.get(cell.model_key)
        if last.image_digest != images.get(cell.target):
            found[cell.key] = "another image"
        elif last.bundle is not None and bundle != last.bundle:
            found[cell.key] = "another model"
        elif rule.max_age is not None and now - last.started_at > rule.max_age:
            found[cell.key] = f"older than {rule.max_age.days} days"
    return found
