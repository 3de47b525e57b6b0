"""A model from its name: an entry of matrix.yaml, a checkpoint folder, or a checkpoint that the hub's cache already has."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import CellFailure, ConfigError, Problem, RefusedError
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.models import hub
from hwmatrix.models.checkpoint import plan_for
from hwmatrix.models.classify import check_name
from hwmatrix.records import Size

if TYPE_CHECKING:
    from hwmatrix.matrix.spec import MatrixSpec
    from hwmatrix.records import ModelPlan

DEFAULT_MATRIX: Final = Path("matrix.yaml")
_LOG: Final = logging.getLogger(__name__)


def look_up(name: str, *, spec: MatrixSpec | None = None, cache: Path | None = None, size: Size = Size.FULL) -> ModelPlan | None:
    """The model that a name stands for, or None when it is only a name. Nothing is downloaded.

    In this order: an entry of matrix.yaml (its name, its hub id, the last part of its hub id, or an abbreviation of that which
    fits one entry alone; upper and lower case, ``-`` and ``_`` are the same), a checkpoint's folder, a checkpoint in ``cache`` or
    in the cache of the hub's own client. ``spec`` None means the matrix.yaml of the working folder, if it has one.

    Raises:
        ConfigError: the name is a path and no checkpoint can be read there, or it has characters that no model name has.
    """
    if spec is None:
        spec = load(DEFAULT_MATRIX).spec if DEFAULT_MATRIX.is_file() else None
    listed = None if spec is None else _listed(name, spec)
    if spec is not None and listed is not None:
        return model_plan(listed, spec, size)
    if _is_folder(name):
        return _from_folder(name, size, spec)
    check_name(name)
    return _from_cache(name, size, spec, cache)


def _listed(name: str, spec: MatrixSpec) -> str | None:
    """The entry that a name stands for."""
    wanted = _folded(name)
    hub_ids = {entry: _folded(model.hub_id) for entry, model in spec.models.items() if model.hub_id}
    for spellings in (
        {entry: _folded(entry) for entry in spec.models},
        hub_ids,
        {entry: hub_id.rpartition("/")[2] for entry, hub_id in hub_ids.items()},
    ):
        found = [entry for entry, spelling in spellings.items() if spelling == wanted]
        if found:
            return found[0]
    abbreviated = [
        entry for entry, hub_id in hub_ids.items() if hub_id.startswith(f"{wanted}-") or hub_id.rpartition("/")[2].startswith(f"{wanted}-")
    ]
    return abbreviated[0] if len(abbreviated) == 1 else None


def _folded(name: str) -> str:
    return name.lower().replace("_", "-")


def _is_folder(name: str) -> bool:
    return name.startswith((".", "/", "~")) or (bool(name) and Path(name).is_dir())


def _from_folder(name: str, size: Size, spec: MatrixSpec | None) -> ModelPlan:
    folder = Path(name).expanduser().absolute()
    try:
        plan = plan_for(_as_name(folder), folder, size, *_defaults(size, spec))
    except CellFailure as failure:
        raise ConfigError([Problem(where=name, what=str(failure), hint=failure.error_type)]) from failure
    return dataclasses.replace(plan, selector=str(folder))


def _as_name(folder: Path) -> str:
    """A folder's name with only what a model's name may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-._") or "checkpoint"


def _from_cache(name: str, size: Size, spec: MatrixSpec | None, cache: Path | None) -> ModelPlan | None:
    folder = hub.cached(name, cache)
    if folder is None:
        return None
    try:
        plan = plan_for(name, folder, size, *_defaults(size, spec), hub_id=name, revision=folder.name)
    except RefusedError as refused:
        _LOG.warning("%s is in the hub's cache and cannot be used: %s", name, refused)
        return None
    except CellFailure as failure:
        _LOG.warning("%s is in the hub's cache and cannot be used: %s", name, failure)
        return None
    return dataclasses.replace(plan, selector=name)


def _defaults(size: Size, spec: MatrixSpec | None) -> tuple[int, int]:
    """Batch and sequence length of a size: what matrix.yaml says, else what the one that comes with hwmatrix says."""
    if spec is not None:
        return spec.sizes[size].batch, spec.sizes[size].sequence_length
    return 1, 16 if size is Size.TINY else 128
