"""The image and bundle of the latest execution of each cell in some shards, to tell which cells are out of date."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

import duckdb

from hwmatrix.errors import StoreError
from hwmatrix.store.confined import opened
from hwmatrix.store.reading import query

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class MadeWith:
    """A cell's latest execution: its image, its bundle (the SHA-256 of the manifest), and its start (UTC)."""

    cell_key: str
    image_digest: str | None
    bundle: str | None
    started_at: dt.datetime


def made_with(shards: Iterable[Path]) -> dict[str, MadeWith]:
    """The latest execution of every cell of a model in these shards, by the cell's key.

    Raises:
        StoreError: a shard cannot be read.
    """
    latest: dict[str, MadeWith] = {}
    for shard in shards:
        try:
            with opened(shard) as connection:
                rows = connection.execute(query("made_with")).fetchall()
        except duckdb.Error as error:
            raise StoreError(f"{shard}: cannot be read: {error}", advice="Delete it: its cells will be run again.") from error
        for key, digest, bundle, started in rows:
            found = MadeWith(cell_key=key, image_digest=digest, bundle=bundle, started_at=started.replace(tzinfo=dt.UTC))
            if key not in latest or latest[key].started_at < found.started_at:
                latest[key] = found
    return latest
