"""The types of diff.json, the source of both the written JSON and the published JSON Schema. Every key is always present."""

from __future__ import annotations

import datetime as dt
from typing import Final

import pydantic
from pydantic.dataclasses import dataclass

from hwmatrix.records import Dtype, Isolation, Size, Status
from hwmatrix.report.comparing import Kind

DIFF_SCHEMA: Final = "hwmatrix/diff/1"

_STRICT = pydantic.ConfigDict(extra="forbid", ser_json_inf_nan="null")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class RunSide:
    """One of the two runs."""

    run_id: str
    created_at: dt.datetime
    hwmatrix_version: str
    commit: str | None
    cells: int


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class CellState:
    """A cell in one of the two runs: milliseconds, MiB, shares (0 to 1); null: not measured."""

    status: Status
    error_type: str | None
    message: str | None
    on_target: float | None
    p50_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    noise_ms: float | None
    delta_mb: float | None
    device_peak_mb: float | None
    image_digest: str | None
    command: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ChangeEntry:
    """One thing that changed in one cell. ``ratio`` is new over old, of time or memory."""

    kind: Kind
    model: str
    target: str
    size: Size
    dtype: Dtype
    batch: int
    sequence_length: int
    threads: int
    new_tokens: int
    isolation: Isolation
    detail: str
    ratio: float | None
    old: CellState | None
    new: CellState | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class PackageEntry:
    """A package of a target's image that was added (``old`` is null), removed (``new`` is null) or changed its version."""

    target: str
    isolation: Isolation
    package: str
    old: str | None
    new: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class DiffDocument:
    """The whole of diff.json.

    ``untimed`` counts cells that pass in both runs but have no comparable speed, by reason; ``notes`` say in words why no cell was
    compared, and which targets only the old run has.
    """

    old: RunSide
    new: RunSide
    compared: int
    timed: int
    untimed: dict[str, int]
    notes: tuple[str, ...]
    counts: dict[Kind, int]
    changes: tuple[ChangeEntry, ...]
    packages: tuple[PackageEntry, ...]
    schema: str = DIFF_SCHEMA
