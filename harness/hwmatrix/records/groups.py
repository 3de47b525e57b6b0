"""How many weights share one scale in int4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

GROUP_SIZES: Final = (128, 32, 16)
"""The sizes of groups, the preferred first: 128 and 32 are what people deploy, 16 is the smallest that ONNX Runtime has."""


def group_size(widths: Iterable[int]) -> int | None:
    """The first of :data:`GROUP_SIZES` that divides the widths of all layers of a model; None if none does."""
    known = [*widths]
    return next((size for size in GROUP_SIZES if not any(width % size for width in known)), None)
