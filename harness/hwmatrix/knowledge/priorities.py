"""The order in which hardware is tried for a model: the data of priorities.yaml, and the rule that selects an order."""

from __future__ import annotations

import functools
import importlib.resources
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic
from pydantic import Field
from pydantic.dataclasses import dataclass

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.basics.plain_yaml import parsed
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.records import Backend, Classification, Family, Structure
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_STRICT = pydantic.ConfigDict(extra="forbid")

Order = Annotated[tuple[Backend, ...], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Priority:
    """The order of hardware for some kinds of models, and its basis."""

    hardware: Order
    stands_on: Annotated[str, Field(min_length=1)]
    structures: tuple[Structure, ...] = ()
    families: tuple[Family, ...] = ()


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Priorities:
    """The whole of priorities.yaml."""

    version: Literal[1]
    priorities: tuple[Priority, ...]
    unknown: Order


@functools.cache
def priorities() -> Priorities:
    """The validated priorities.yaml."""
    text = (importlib.resources.files("hwmatrix.knowledge") / "priorities.yaml").read_text(encoding="utf-8")
    return pydantic.TypeAdapter(Priorities).validate_python(parsed(text))


def priority_for(classification: Classification) -> tuple[str, ...]:
    """The hardware to try for a kind of model, best first; ends with ``cpu``.

    A rule for the structure takes precedence over one for the family. If neither is known or has a rule, it is the order ``unknown``.
    """
    rule = _rule_for(classification)
    return _names_of(rule.hardware if rule else priorities().unknown)


def reason_for(classification: Classification, *, preferred: str | None = None) -> str:
    """The basis of :func:`priority_for` in words; with ``preferred``, that of :func:`order_of`.

    Raises:
        ConfigError: unknown hardware.
    """
    rule = _rule_for(classification)
    if preferred is not None:
        listed = rule is not None and backend_of(preferred) in rule.hardware
        return f"{preferred} was requested; after it: {rule.stands_on if rule and listed else f'the chain of {preferred}'}"
    return rule.stands_on if rule else "no rule for a model of unknown kind: the order that most kinds share"


def chain_from(hardware: str) -> tuple[str, ...]:
    """The hardware to try after this one for any model, from its backend's descriptor; empty for ``cpu``.

    Raises:
        ConfigError: there is no such hardware.
    """
    return descriptor_of(backend_of(hardware)).fallback


def order_of(
    classification: Classification | None = None, *, preferred: str | None = None, measured: Sequence[str] = ()
) -> tuple[str, ...]:
    """Every hardware to try, in order, each once.

    Args:
        classification: what the model is, if known.
        preferred: the hardware that the user asked for; it comes first.
        measured: hardware on which this model passed, the fastest first. It comes before hardware that is only expected to work.

    Then comes the priority of the model's kind (its entries after ``preferred``), or, if the kind is not known or its priority lacks
    ``preferred``, the fallback chain from there.

    Raises:
        ConfigError: unknown hardware.
    """
    begun = (*((preferred,) if preferred else ()), *measured)
    for hardware in begun:
        backend_of(hardware)
    known = classification is not None and _rule_for(classification) is not None
    expected = priority_for(classification) if classification is not None and known else _names_of(priorities().unknown)
    if preferred is not None:
        listed = known and preferred in expected
        expected = expected[expected.index(preferred) + 1 :] if listed else chain_from(preferred)
    return tuple(dict.fromkeys((*begun, *expected)))


def backend_of(hardware: str) -> Backend:
    """The backend of this name.

    Raises:
        ConfigError: there is none; the hint names the nearest.
    """
    try:
        return Backend(hardware)
    except ValueError as error:
        allowed = [backend.value for backend in Backend]
        raise ConfigError(
            [Problem(where="hardware", what=f"{hardware!r} is not a hardware name", hint=near_miss(hardware, allowed))]
        ) from error


def _rule_for(classification: Classification) -> Priority | None:
    rules = priorities().priorities
    by_structure = (rule for rule in rules if classification.structure in rule.structures)
    by_family = (rule for rule in rules if classification.family in rule.families)
    return next(by_structure, None) or next(by_family, None)


def _names_of(order: Sequence[Backend]) -> tuple[str, ...]:
    return tuple(backend.value for backend in order)
