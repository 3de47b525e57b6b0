"""The JSON file beside a finished shard: its run, its SHA-256, and its row counts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import pydantic

from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

SHARD_SCHEMA: Final = "hwmatrix/shard/2"
COUNTED: Final = ("runs", "shards", "detections", "cells", "stages", "outputs", "samples", "operators", "classifications")
"""The tables whose rows are counted; the merge checks that they are all there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sidecar:
    """The content of the JSON file beside a shard."""

    shard_id: str
    run_id: str
    target: str
    sha256: str
    counts: dict[str, int]


_SIDECAR: Final = pydantic.TypeAdapter(Sidecar)


def sidecar_path(shard: Path) -> Path:
    """The path of a shard's sidecar."""
    return shard.with_name(f"{shard.name}.json")


def read_sidecar(shard: Path) -> Sidecar:
    """Read the JSON file beside a shard.

    Raises:
        StoreError: there is none, or it is broken or of another version.
    """
    path = sidecar_path(shard)
    try:
        data = read_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StoreError("it has no sidecar: it was never finished, or not copied whole") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"its sidecar cannot be read: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SHARD_SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else None
        raise StoreError(f"its version is {found!r}, this hwmatrix reads {SHARD_SCHEMA!r}: run the target again")
    try:
        sidecar: Sidecar = _SIDECAR.validate_python({field.name: data.get(field.name) for field in dataclasses.fields(Sidecar)})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise StoreError(f"its sidecar is broken: {at} is {first['input']!r}") from error
    if set(sidecar.counts) != set(COUNTED):
        raise StoreError(f"its sidecar is broken: it counts {', '.join(sorted(sidecar.counts)) or 'nothing'}")
    return sidecar
