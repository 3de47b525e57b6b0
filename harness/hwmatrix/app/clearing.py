"""Deletes a model's cached data: its bundles with their ONNX exports, and its entries in this process's resource pool."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Final

from hwmatrix.basics.cache_folder import bundles_folder
from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import CellFailure, ConfigError, Problem
from hwmatrix.models import folder
from hwmatrix.models.build import HUB
from hwmatrix.models.bundle import is_of_model
from hwmatrix.models.onnx_export import ONNX_DIR
from hwmatrix.pool.pool import get_global_resource_pool

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.records import ModelPlan

_LOG: Final = logging.getLogger(__name__)


def clear_cached(plan: ModelPlan, cache: Path) -> list[Path]:
    """Remove all bundles of a model, from all versions, with their exports; clear the pool. Returns the removed folders.

    ``cache`` is the folder of all caches (``basics.cache_folder``).

    A bundle may be removed while another process reads it. It is built again when it is next needed.

    Raises:
        ConfigError: something cannot be removed.
    """
    get_global_resource_pool().clear()
    removed: list[Path] = []
    bundles = bundles_folder(cache)
    if plan.weights == HUB:  # not downloaded yet, so there is no bundle either
        return removed
    for manifest in sorted(bundles.glob(f"*/{folder.MANIFEST}")):
        if not _is_bundle_of(manifest, plan):
            continue
        key = manifest.parent.name
        exports = bundles / ONNX_DIR / key
        try:
            with folder.locked(bundles, key):
                folder.discard(manifest.parent)
                if exports.is_dir():
                    shutil.rmtree(exports)
        except (OSError, CellFailure) as error:
            raise ConfigError([Problem(where="--clear-cache", what=f"cannot remove {manifest.parent}: {error}")]) from error
        _LOG.debug("removed %s", manifest.parent)
        removed.append(manifest.parent)
    return removed


def _is_bundle_of(manifest: Path, plan: ModelPlan) -> bool:
    try:
        return is_of_model(read_json(manifest.read_bytes()), plan)
    except (OSError, ValueError, KeyError, TypeError) as error:
        _LOG.info("%s is not a bundle manifest of this version: %r", manifest, error)
        return False
