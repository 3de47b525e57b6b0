"""Finds a model by its name: an entry of matrix.yaml, a checkpoint folder, or a checkpoint in the hub's cache."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import CellFailure, ConfigError, Problem
from hwmatrix.knowledge.evidence import named
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.matrix.spec import SizeSpec
from hwmatrix.models import hub
from hwmatrix.models.build import HUB
from hwmatrix.models.checkpoint import inspect, plan_for
from hwmatrix.models.classify import classify
from hwmatrix.models.listed_sizes import listed_size, listed_sizes
from hwmatrix.models.names import check_name
from hwmatrix.models.spelling import abbreviated_entry, entry_for
from hwmatrix.models.types import is_type
from hwmatrix.records import TYPE_PREFIX, Family, ModelPlan, Size
from hwmatrix.store.reading import reading

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwmatrix.knowledge.evidence import Evidence
    from hwmatrix.knowledge.on_record import OnRecord
    from hwmatrix.matrix.spec import MatrixSpec
    from hwmatrix.models.listed_sizes import ListedSize


DEFAULT_MATRIX: Final = Path("matrix.yaml")
CONFIG: Final = "config.json"
_SIZES: Final = {Size.TINY: SizeSpec(), Size.FULL: SizeSpec(sequence_length=128)}
"""Batch and sequence length if there is no matrix.yaml: those of the packaged one."""
_LOG: Final = logging.getLogger(__name__)


def look_up(name: str, *, spec: MatrixSpec | None = None, cache: Path | None = None, size: Size = Size.FULL) -> ModelPlan | None:
    """The model that a name refers to, or None if nothing but the name is known. Nothing is downloaded.

    An entry of matrix.yaml, if :func:`listed_name` finds one; else a checkpoint's folder; else a checkpoint in ``cache``, or in the
    cache of the hub's own client.

    ``spec`` None means the matrix.yaml of the working folder, if it has one. The plan's ``weights`` are ``hub`` for a cached
    checkpoint without weights.

    Raises:
        ConfigError: the name is a path and no checkpoint can be read there, or it is empty or has invalid characters; the working
            folder's matrix.yaml is wrong.
    """
    if spec is None and DEFAULT_MATRIX.is_file():
        spec = load(DEFAULT_MATRIX).spec
    listed = listed_name(name, spec, cache=cache) if spec else None
    if spec and listed:
        return model_plan(listed, spec, size)
    if is_folder(name):
        return _from_folder(name, size, spec)
    check_name(name)
    return _from_cache(name, size, spec, cache)


def listed_name(name: str, spec: MatrixSpec, *, cache: Path | None = None) -> str | None:
    """The entry of matrix.yaml that a name refers to, the same for every command; None if it refers to something else.

    In this order: the entry of exactly that name; None if a checkpoint's folder has the name; the entry with this name, hub id, or last
    part of a hub id (case is ignored, and ``-`` and ``_`` are equal); None if a checkpoint in ``cache`` or in the cache of the hub's own
    client has the name, or a type of transformers; the only entry whose hub id it abbreviates (``facebook/wav2vec2-base`` for
    ``facebook/wav2vec2-base-960h``).
    """
    if name in spec.models:
        return name
    if name.startswith(TYPE_PREFIX):
        return None
    hub_ids = {entry: model.hub_id for entry, model in spec.models.items()}
    spelled = entry_for(name, hub_ids)
    if is_folder(name) and (spelled is None or _is_path(name) or (Path(name) / CONFIG).is_file()):
        return None
    if spelled is not None:
        return spelled
    shortened = abbreviated_entry(name, hub_ids)
    return None if shortened is None or is_type(name) or _from_cache(name, Size.TINY, spec, cache) else shortened


def name_on_record(name: str, database: Path) -> str:
    """The name of a model in a merged database, given its hub id; the given name if the database has no such model.

    Raises:
        StoreError: the database cannot be read.
    """
    with reading(database) as connection:
        hub_ids = dict(connection.execute("SELECT DISTINCT model, hub_id FROM planned ORDER BY ALL").fetchall())
    if name in hub_ids:
        return name
    return entry_for(name, hub_ids) or abbreviated_entry(name, hub_ids) or name


def is_folder(name: str) -> bool:
    """Whether a name is a path, or the name of an existing folder."""
    if _is_path(name):
        return True
    try:
        return bool(name) and Path(name).is_dir()
    except OSError:  # longer than a path can be
        return False


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~"))


def _from_folder(name: str, size: Size, spec: MatrixSpec | None) -> ModelPlan:
    folder = Path(name).expanduser().absolute()
    defaults = _defaults(size, spec)
    try:
        plan = plan_for(_as_name(folder), folder, size, defaults.batch, defaults.sequence_length)
    except CellFailure as failure:
        raise ConfigError([Problem(where=name, what=str(failure), hint=failure.error_type)]) from failure
    return dataclasses.replace(plan, selector=str(folder))


def _as_name(folder: Path) -> str:
    """A folder's name, reduced to the characters that are valid in a model's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-._") or "checkpoint"


def _from_cache(name: str, size: Size, spec: MatrixSpec | None, cache: Path | None) -> ModelPlan | None:
    """The model of an earlier download; None if there is none. One that cannot be used is logged."""
    folder = (hub.cached(name, cache) if cache else None) or hub.cached(name)
    if folder is None:
        return None
    defaults = _defaults(size, spec)
    try:
        weights = None if _has_weights(folder) else HUB
        plan = plan_for(name, folder, size, defaults.batch, defaults.sequence_length, hub_id=name, revision=folder.name, weights=weights)
    except CellFailure as failure:
        _LOG.warning("%s is in the hub's cache but cannot be used, so only its name is known: %s", name, failure)
        return None
    return dataclasses.replace(plan, selector=name)


def _has_weights(folder: Path) -> bool:
    """Whether a snapshot has all weights in a format that can be loaded. Without them, its configuration still describes the model."""
    try:
        inspect(folder)
    except CellFailure:
        return False
    return True


def _defaults(size: Size, spec: MatrixSpec | None) -> SizeSpec:
    return spec.sizes[size] if spec else _SIZES[size]


SOURCE: Final = "the table of sizes that comes with hwmatrix"
_LENGTH: Final = 128
"""Tokens in full size, as in the packaged matrix.yaml, within the model's minimum and maximum."""


def shipped_model(name: str) -> ModelPlan | None:
    """The model of sizes.yaml that a name refers to, in full size; None if it is not listed there."""
    listed = listed_size(name)
    if listed is None:
        return None
    known = classify(listed.model, model_class=listed.model_class, architecture=listed.architecture)
    return ModelPlan(
        name=listed.model,
        size=Size.FULL,
        family=known.family or Family.EMBEDDING,
        architecture=listed.architecture,
        model_class=listed.model_class,
        hub_id=listed.hub_id,
        config=listed.config,
        sequence_length=_length_of(listed),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownModel:
    """The model that a name refers to, and where the name was found."""

    plan: ModelPlan
    known_from: str


def known_model(name: str, found: OnRecord) -> KnownModel | None:
    """The model of a name that is neither in matrix.yaml nor a checkpoint; None if only the name is known.

    Full-size models come first: local records, then the packaged models, then other records; then tiny models on record.
    """
    shipped = shipped_model(name)
    own, memory = named(name, found.own_memory), named(name, found.memory)
    return (
        _of_cells([cell for cell in own if cell.size is Size.FULL])
        or (KnownModel(plan=shipped, known_from=SOURCE) if shipped is not None else None)
        or _of_cells([cell for cell in memory if cell.size is Size.FULL])
        or _of_cells(memory)
    )


def _of_cells(cells: Iterable[Evidence]) -> KnownModel | None:
    """The model of the newest cell whose run describes it."""
    plans = ((cell.model_plan, cell.run_id) for cell in cells)
    return next((KnownModel(plan=plan, known_from=f"run {run_id} of the database") for plan, run_id in plans if plan is not None), None)


def _length_of(listed: ListedSize) -> int:
    """The valid length closest to the usual one. If only one pass is listed, the model's size does not depend on the length."""
    lengths = sorted(each.sequence_length for each in listed.passes)
    return _LENGTH if len(lengths) == 1 else min(max(_LENGTH, lengths[0]), lengths[-1])


def shipped_names() -> list[str]:
    """The hub ids of the models of sizes.yaml, in its order."""
    return [size.hub_id or size.model for size in listed_sizes()]
