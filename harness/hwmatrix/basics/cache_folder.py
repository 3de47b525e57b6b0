"""The one cache folder of all parts of hwmatrix; its content can be recreated."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOG = logging.getLogger(__name__)


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """HWMATRIX_CACHE, else ``hwmatrix`` below XDG_CACHE_HOME or ~/.cache. It need not be there.

    None where none is set and this user has no home: then nothing is kept.
    """
    named = environment.get("HWMATRIX_CACHE")
    if named:
        return Path(named).absolute()
    try:
        return (Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hwmatrix").absolute()
    except RuntimeError:
        _LOG.info("this user has no home folder, so what is found is not kept; HWMATRIX_CACHE names another folder")
        return None
