"""The page's drawing library: Vega, Vega-Lite and Vega-Embed as one script, which vl-convert bundles.

Bundling takes more than a second, and the same version gives the same script, so it is kept in the cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from typing import TYPE_CHECKING, Final

from hwmatrix.basics.files import write_together
from hwmatrix.errors import StoreError
from hwmatrix.report.packing import script_text
from hwmatrix.report.plots import VEGA_LITE_VERSION, converter

if TYPE_CHECKING:
    from pathlib import Path

_SNIPPET: Final = "window.hwmatrixDraw = vegaEmbed;"
_CHARTS: Final = "(() => {\n%s\n})();"
_LOG: Final = logging.getLogger(__name__)


@functools.cache
def chart_library(cache: Path | None) -> str:
    """The script, in the version that also draws the pictures. ``cache`` is the cache folder; None: nothing is cached.

    Raises:
        StoreError: vl-convert is not installed, or cannot bundle it.
    """
    if cache is None:
        return script_text(_CHARTS % _bundle())
    key = hashlib.sha256(f"{converter().__version__}\n{VEGA_LITE_VERSION}\n{_SNIPPET}".encode()).hexdigest()
    file = cache / f"vega-{key[:16]}.js"
    bundle = _cached(file)
    if bundle is None:
        bundle = _bundle()
        _keep(file, bundle)
    return script_text(_CHARTS % bundle)


@functools.cache
def _bundle() -> str:
    try:
        bundle: str = converter().javascript_bundle(_SNIPPET, vl_version=VEGA_LITE_VERSION)
    except ValueError as error:
        raise StoreError(f"the drawing library cannot be bundled: {error}", advice="This is a bug of hwmatrix.") from error
    return bundle


def _cached(file: Path) -> str | None:
    """The bundle from a file; None if it is missing, cannot be read, or does not have the checksum in its first line."""
    try:
        checksum, _, content = file.read_bytes().partition(b"\n")
    except OSError as error:
        _LOG.debug("the drawing library is not cached: %s", error)
        return None
    if hashlib.sha256(content).hexdigest().encode() != checksum:
        _LOG.info("%s is damaged, and is written again", file)
        return None
    return content.decode("utf-8")


def _keep(file: Path, bundle: str) -> None:
    content = bundle.encode("utf-8")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_together({file: hashlib.sha256(content).hexdigest().encode() + b"\n" + content}, durable=False)
    except OSError as error:
        _LOG.info("the drawing library cannot be cached: %s", error)
