"""Deletes a model's cached data: its bundles with their ONNX exports, and its entries in this process's resource pool."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.files import sha256_of
from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import CellFailure, ConfigError, Problem
from hwmatrix.models import folder
from hwmatrix.models.build import RECIPE
from hwmatrix.models.bundle import recipe_identity
from hwmatrix.models.checkpoint import inspect
from hwmatrix.models.onnx_export import ONNX_DIR
from hwmatrix.pool.pool import get_global_resource_pool

if TYPE_CHECKING:
    from hwmatrix.records import ModelPlan

_IDENTITY: Final = ("architecture", "model_class", "seed", "config", "batch", "sequence_length")
_LOG: Final = logging.getLogger(__name__)


def clear_cached(plan: ModelPlan, cache: Path) -> list[Path]:
    """Remove all bundles of a model, from all versions, with their exports; clear the pool. Returns the removed folders.

    A bundle may be removed while another process reads it. It is built again when it is next needed.

    Raises:
        ConfigError: something cannot be removed.
    """
    get_global_resource_pool().clear()
    weights = _weights(plan)
    removed: list[Path] = []
    for manifest in sorted(cache.glob(f"*/{folder.MANIFEST}")):
        if not _is_bundle_of(manifest, plan, weights):
            continue
        key = manifest.parent.name
        exports = cache / ONNX_DIR / key
        try:
            with folder.locked(cache, key):
                folder.discard(manifest.parent)
                if exports.is_dir():
                    shutil.rmtree(exports)
        except (OSError, CellFailure) as error:
            raise ConfigError([Problem(where="--clear-cache", what=f"cannot remove {manifest.parent}: {error}")]) from error
        _LOG.debug("removed %s", manifest.parent)
        removed.append(manifest.parent)
    return removed


def _weights(plan: ModelPlan) -> Any:
    """The entry for the model's weights in a manifest: the recipe's identity, or the checksum of every file."""
    if plan.weights == RECIPE:
        return recipe_identity(plan)
    checkpoint = Path(plan.weights)
    if not checkpoint.is_dir():  # not downloaded from the hub yet, so there is no bundle either
        return None
    return {str(file.relative_to(checkpoint)): sha256_of(file) for file in inspect(checkpoint).files}


def _is_bundle_of(manifest: Path, plan: ModelPlan, weights: Any) -> bool:
    try:
        identity = read_json(manifest.read_bytes())["identity"]
        same = {name: identity[name] for name in (*_IDENTITY, "role", "weights")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        _LOG.info("%s is not a bundle manifest: %r", manifest, error)
        return False
    return same == {name: getattr(plan, name) for name in _IDENTITY} | {"role": plan.role.value, "weights": weights}
