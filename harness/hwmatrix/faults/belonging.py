"""Whom a failure belongs to, as far as the recorded data say so: the model's library, the export, or the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwmatrix.records import Origin, Preparation, Status

if TYPE_CHECKING:
    from collections.abc import Collection

PRECISION_LOSS: Final = "precision_loss"
"""The error type of a cell whose target is right, but whose precision costs the model too much."""
_OF_EXPORTS: Final = frozenset({"data_dependent_export", "export_failed", "export_timeout", "shape_specialized"})


def belongs_to(
    *, status: Status, error_type: str | None, preparation: Collection[str] | None, target: str, origin: Origin | None = None
) -> str | None:
    """Whom to tell about a failure; None if the data do not say.

    Args:
        status: how the cell ended.
        error_type: its type in the catalogue.
        preparation: what the model went through before it ran; None: it was not prepared, or that is not on record.
        target: the target's name.
        origin: where wrong numbers begin, if that was searched for.
    """
    if status in {Status.PASS, Status.NOT_RUN, Status.UNAVAILABLE, Status.INFRA_ERROR}:
        return None
    if error_type == PRECISION_LOSS:
        return f"no one: {target} is right, and the precision costs this model so much"
    if status is Status.FACTORY_ERROR:
        return "the library that builds the model: no target has seen it"
    if error_type in _OF_EXPORTS or origin is Origin.GRAPH:
        exporter = "transformers' export" if preparation is None or Preparation.TRANSFORMERS_EXPORT in preparation else "the export"
        return f"{exporter}, or the model's code in it{f': {target} got a graph that is wrong already' if preparation else ''}"
    return target if origin in {Origin.STEP, Origin.FUSED} else None
