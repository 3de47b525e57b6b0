"""Priors: what the design documents expect of hardware, as data in priors.yaml. They are never a result.

A prior is shown beside measurements ("expected against measured"), and is the answer only if there are none. If documents contradict each
other, each keeps its own prior.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.resources
from typing import Annotated, Final, Literal, Self

import pydantic
from pydantic import Field
from pydantic.dataclasses import dataclass

from hwmatrix.basics.plain_yaml import parsed
from hwmatrix.records import Backend, Family, Level

_STRICT = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)

Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(gt=0)]


class Expectation(enum.StrEnum):
    """What a document expects of a family on some hardware: a level, or a kind of implementation."""

    HIGH = "High"
    MEDIUM = "Medium"
    LOW = "Low"
    NONE = "none"
    REAL = "REAL"
    SIMULATION = "SIMULATION"
    BASELINE = "baseline"


_REFUSALS: Final = frozenset({Expectation.NONE, Expectation.SIMULATION})
"""The expectations that count as not working. The hardware itself does not execute a simulation."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Prior:
    """A document's expectation of one family on one hardware. ``document`` is its title."""

    family: Family
    hardware: Backend
    expectation: Expectation
    document: str
    refused: bool = False

    @property
    def level(self) -> Level | None:
        """The level that the document names, if any."""
        return Level(self.expectation.value) if self.expectation in {level.value for level in Level} else None

    @property
    def works(self) -> bool:
        """Whether the document expects that the hardware itself executes such a model."""
        return not self.refused and self.expectation not in _REFUSALS

    def __str__(self) -> str:
        refused = ", marked as not supported" if self.refused else ""
        return f"{self.expectation.value}{refused} ({self.document})"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ExpectedRequirements:
    """A model's requirements according to a document. Memory and disk in MB."""

    min_memory_mb: Count
    recommended_memory_mb: Count
    cpu_cores: Count
    disk_space_mb: Count
    batch_size: Count

    @pydantic.model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.recommended_memory_mb < self.min_memory_mb:
            raise ValueError("recommended_memory_mb is less than min_memory_mb")
        return self


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class PriorExample:
    """One model as a document describes it. ``compatible`` is the hardware expected to work, if the document lists it."""

    document: str
    model: Text
    family: Family
    recommended_hardware: Backend
    recommended_template: Text
    requirements: ExpectedRequirements
    subfamily: str | None = None
    compatible: tuple[Backend, ...] = ()


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class _Entry:
    expectation: Expectation
    refused: bool = False


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class _Table:
    document: str
    rows: dict[Family, dict[Backend, Expectation | _Entry]]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class _Priors:
    version: Literal[1]
    documents: dict[str, Text]
    tables: tuple[_Table, ...]
    examples: tuple[PriorExample, ...]

    @pydantic.model_validator(mode="after")
    def _has_its_documents(self) -> Self:
        named = {table.document for table in self.tables} | {example.document for example in self.examples}
        if unknown := sorted(named - self.documents.keys()):
            raise ValueError(f"no document is called {', '.join(unknown)}")
        return self


def read_priors(text: str) -> tuple[tuple[Prior, ...], tuple[PriorExample, ...]]:
    """Parse the priors and examples of a priors.yaml, in its order. Documents are named by their titles.

    Raises:
        pydantic.ValidationError: it has unknown keys, families, hardware or words.
    """
    data = pydantic.TypeAdapter(_Priors).validate_python(parsed(text))
    priors = tuple(
        Prior(
            family=family,
            hardware=hardware,
            expectation=said if isinstance(said, Expectation) else said.expectation,
            refused=not isinstance(said, Expectation) and said.refused,
            document=data.documents[table.document],
        )
        for table in data.tables
        for family, row in table.rows.items()
        for hardware, said in row.items()
    )
    examples = tuple(_titled(example, data.documents) for example in data.examples)
    return priors, examples


def priors_for(family: Family, hardware: Backend) -> tuple[Prior, ...]:
    """Return the priors of all documents for a family on some hardware; empty if there are none."""
    return tuple(prior for prior in all_priors() if prior.family is family and prior.hardware is hardware)


def examples_for(model_name: str) -> tuple[PriorExample, ...]:
    """Return the documents' examples of a model, found by its name or by the last part of its hub id."""
    name = model_name.rpartition("/")[2].lower()
    return tuple(example for example in _packaged()[1] if example.model.lower() == name)


def all_priors() -> tuple[Prior, ...]:
    """Return every prior, in the order of priors.yaml."""
    return _packaged()[0]


@functools.cache
def _packaged() -> tuple[tuple[Prior, ...], tuple[PriorExample, ...]]:
    return read_priors((importlib.resources.files("hwmatrix.matrix") / "priors.yaml").read_text(encoding="utf-8"))


def _titled(example: PriorExample, documents: dict[str, str]) -> PriorExample:
    return dataclasses.replace(example, document=documents[example.document])
