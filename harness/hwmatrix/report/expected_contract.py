"""The types of expected.json, the source of both the written JSON and the published JSON Schema. Every key is always present."""

from __future__ import annotations

import enum
from typing import Final

import pydantic
from pydantic.dataclasses import dataclass

from hwmatrix.matrix.priors import Expectation as Word
from hwmatrix.records import Dtype, Execution, Family, Isolation, Level, Size, Status

EXPECTED_SCHEMA: Final = "hwmatrix/expected/1"

_STRICT = pydantic.ConfigDict(extra="forbid", ser_json_inf_nan="null")


class Verdict(enum.StrEnum):
    """How measurements compare with expectations, disagreements first."""

    WORSE = "worse than expected"
    BETTER = "better than expected"
    CONTRADICTORY = "contradictory priors"
    AGREES = "agrees"
    UNEXPECTED = "nothing expected"
    NOT_MEASURED = "not measured"


class Ranking(enum.StrEnum):
    """How the order in which hardware is tried compares with the fastest measured hardware."""

    OTHER = "another is faster"
    AGREES = "agrees"
    TIED = "not told apart"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class PriorEntry:
    """What one design document expects, and how that compares: ``verdict`` is null if nothing was measured.

    ``refused``: the document marks the entry as not supported, whatever level it names.
    """

    document: str
    expectation: Word
    refused: bool
    verdict: Verdict | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ModelEvidence:
    """The cell that represents a model: its best one there. ``level`` is null if nothing was executed."""

    model: str
    size: Size
    target: str
    dtype: Dtype
    status: Status
    level: Level | None
    isolation: Isolation
    cell_key: str


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Expectation:
    """A family on one kind of hardware: what was expected, what was measured, and how the two compare.

    ``models`` counts those that were executed there, ``levels`` how many of them reached each level, and ``level`` is what most of them
    reached; ``passing`` of them pass, and ``pass_share`` is their share (0 to 1). ``cells`` and ``passed_cells`` count every
    precision and size. ``place`` is the hardware's place in the order in which
    it is tried for this family (1 is the first; null: not in that order). ``reason`` says why models were not executed.
    """

    family: Family
    hardware: str
    execution: Execution
    verdict: Verdict
    priors: tuple[PriorEntry, ...]
    place: int | None
    level: Level | None
    levels: dict[Level, int]
    models: int
    passing: int
    pass_share: float | None
    cells: int
    passed_cells: int
    reason: str | None
    evidence: tuple[ModelEvidence, ...]
    run_id: str


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class FamilyOrder:
    """The order in which hardware is tried for a family, against the fastest that was measured.

    ``expected`` is the first of the order that was timed in this run, ``rival`` the fastest other hardware against it on the same
    models, settings and machine: ``ratio`` times as fast (geometric mean) over ``compared`` cells, of which ``faster`` and ``slower``
    are told apart by their 95 % intervals, and ``contended`` were disturbed. ``fastest`` is the one of the two that won (null: neither,
    or nothing to compare).
    """

    family: Family
    verdict: Ranking
    order: tuple[str, ...]
    stands_on: str
    expected: str | None
    rival: str | None
    fastest: str | None
    ratio: float | None
    compared: int
    faster: int
    slower: int
    contended: int


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ExpectedDocument:
    """The whole of expected.json, disagreements first. ``counts`` are families on hardware by verdict."""

    run_id: str
    counts: dict[Verdict, int]
    expectations: tuple[Expectation, ...]
    orders: tuple[FamilyOrder, ...]
    schema: str = EXPECTED_SCHEMA
