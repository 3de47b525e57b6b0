"""Charts as SVG pictures, drawn by vl-convert, which embeds Vega and needs no browser and no network."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from hwmatrix.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

VEGA_LITE_VERSION: Final = "6.4"
FOLDER: Final = "plots"
_NUMBERED: Final = re.compile(r"\b(clip|gradient_)(\d+)\b")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with its rows. ``name`` is that of its file; ``alt`` describes it in words."""

    name: str
    title: str
    alt: str
    spec: dict[str, Any]


def svg(chart: Chart) -> str:
    """The picture of a chart, with its title and description for those who cannot see it.

    The same chart gives the same bytes: clips and gradients, which Vega numbers per process, are renumbered.

    Raises:
        StoreError: vl-convert is not installed, or rejects the chart.
    """
    convert = converter()
    try:
        text: str = convert.vegalite_to_svg(json.dumps(chart.spec), vl_version=VEGA_LITE_VERSION)
    except ValueError as error:
        raise StoreError(f"the chart {chart.name} cannot be drawn: {error}", advice="This is a bug of hwmatrix.") from error
    text = text.replace(">", f"><title>{escape(chart.title)}</title><desc>{escape(chart.alt)}</desc>", 1)  # Vega's SVG has neither
    numbers: dict[str, str] = {}
    return _NUMBERED.sub(lambda found: numbers.setdefault(found[0], f"{found[1]}{len(numbers) + 1}"), text) + "\n"


def plots(charts: Iterable[Chart]) -> dict[str, str]:
    """Pictures by file name."""
    return {f"{chart.name}.svg": svg(chart) for chart in charts}


def undrawn() -> str | None:
    """Why pictures and the page with its charts cannot be made here, and how to fix that; None if they can."""
    if importlib.util.find_spec("vl_convert") is not None:
        return None
    return (
        f"index.html and {FOLDER}/ are left out: the package vl-convert-python is not installed "
        "(pip install 'hwmatrix[host]', then hwmatrix report)"
    )


def converter() -> Any:
    """The package vl-convert, which only hosts have.

    Raises:
        StoreError: it is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise StoreError("the package vl-convert-python is not installed", advice="pip install 'hwmatrix[host]'") from error
    return vl_convert
