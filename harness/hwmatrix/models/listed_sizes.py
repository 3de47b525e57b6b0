"""Sizes of the full-size models of the packaged matrix.yaml, by name and without torch."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
from typing import Any, Final, Literal

import pydantic

from hwmatrix.basics.plain_yaml import parsed
from hwmatrix.models.spelling import abbreviated_entry, entry_for
from hwmatrix.records.strict import STRICT

_FILE: Final = "sizes.yaml"


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Pass:
    """One forward pass of one sample in float32, in bytes, as of :class:`hwmatrix.models.sizes.ModelSize`."""

    sequence_length: int
    input_bytes: int
    activation_bytes: int
    output_bytes: int
    largest_output_bytes: int


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedSize:
    """A full-size model of matrix.yaml: what determines its shapes, its parameters, and passes of several sequence lengths."""

    model: str
    hub_id: str | None
    architecture: str
    model_class: str
    config: dict[str, Any]
    parameters: int
    stored_bytes: int
    tied_bytes: int
    passes: tuple[Pass, ...]


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Table:
    version: Literal[1]
    versions: dict[str, str]
    sizes: tuple[ListedSize, ...]


@functools.cache
def listed_sizes() -> tuple[ListedSize, ...]:
    """Every entry of sizes.yaml."""
    text = (importlib.resources.files("hwmatrix.models") / _FILE).read_text(encoding="utf-8")
    return pydantic.TypeAdapter(_Table).validate_python(parsed(text)).sizes


def listed_size(name: str) -> ListedSize | None:
    """The entry that a name refers to: by its own name, its hub id, the last part of the hub id, or an unambiguous beginning."""
    return _entry(name, {size.model: size for size in listed_sizes()})


def listed_checkpoint(name: str) -> ListedSize | None:
    """The entry that a name refers to by its hub id alone: ``llama`` would match only one small Llama of many."""
    return _entry(name, {size.hub_id: size for size in listed_sizes() if size.hub_id})


def _entry(name: str, sizes: dict[str, ListedSize]) -> ListedSize | None:
    hub_ids = {known: size.hub_id for known, size in sizes.items()}
    found = entry_for(name, hub_ids) or abbreviated_entry(name, hub_ids)
    return sizes[found] if found is not None else None
