"""The one cache folder of all parts of hwmatrix. Its content can be recreated."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

import platformdirs

from hwmatrix.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

CACHE_VARIABLE: Final = "HWMATRIX_CACHE"
_LOG = logging.getLogger(__name__)


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return HWMATRIX_CACHE, or ``hwmatrix`` in XDG_CACHE_HOME or the system's cache folder (Linux: ~/.cache). It may not exist yet.

    None if no variable is set and this user has no home folder: then nothing is cached.
    """
    if named := environment.get(CACHE_VARIABLE):
        return Path(named).absolute()
    if caches := environment.get("XDG_CACHE_HOME"):
        return (Path(caches) / "hwmatrix").absolute()
    try:
        Path.home()
    except RuntimeError:
        _LOG.info("this user has no home folder, so nothing is cached; set %s to a folder", CACHE_VARIABLE)
        return None
    return platformdirs.user_cache_path("hwmatrix", appauthor=False)


def bundles_folder(cache: Path) -> Path:
    """Return the folder in the cache that has the bundles and exports of all commands."""
    return cache / "bundles"


def needed_cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the same folder, for callers that cannot work without one.

    Raises:
        ConfigError: no variable names one, and this user has no home folder.
    """
    folder = cache_folder(environment)
    if folder is None:
        hint = f"set {CACHE_VARIABLE} to a folder that can be written"
        raise ConfigError([Problem(where=CACHE_VARIABLE, what="there is no folder for caches: this user has no home", hint=hint)])
    return folder
