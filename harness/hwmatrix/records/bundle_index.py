"""The index of a run's bundles: where each model's bundle is, or why there is none. The reference image writes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path  # noqa: TC003 - pydantic resolves annotations
from typing import TYPE_CHECKING, Final, Literal

from hwmatrix.basics.files import write_atomically
from hwmatrix.errors import StoreError
from hwmatrix.records.files import from_json, to_json
from hwmatrix.records.strict import STRICT
from hwmatrix.records.vocabulary import Size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwmatrix.records.plans import ModelKey

INDEX: Final = "bundles.json"
"""The name of the file."""


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class BundleEntry:
    """The location of a model's bundle (a folder name in the cache), or why there is none."""

    model: str
    size: Size
    batch: int
    sequence_length: int
    key: str | None = None
    digest: str | None = None
    error_type: str | None = None
    message: str | None = None
    traceback: str | None = None

    @property
    def model_key(self) -> ModelKey:
        """The key of its model."""
        return self.model, self.size, self.batch, self.sequence_length


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Index:
    """The content of the file."""

    schema: Literal["hwmatrix/bundle-index/2"]
    bundles: tuple[BundleEntry, ...]


def read_index(file: Path) -> dict[ModelKey, BundleEntry]:
    """The entries of an index, by the keys of the models.

    Raises:
        StoreError: it cannot be read, or is of another version.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise StoreError(f"{file}: cannot be read: {error}", advice="Make the bundles again: start a new run.") from error
    return {entry.model_key: entry for entry in from_json(_Index, content, where=str(file)).bundles}


def write_index(file: Path, entries: Iterable[BundleEntry]) -> None:
    """Write an index."""
    write_atomically(file, to_json(_Index(schema="hwmatrix/bundle-index/2", bundles=tuple(entries)), indent=1) + "\n")
