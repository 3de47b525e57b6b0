"""Records as JSON, strictly: an unknown key or another schema version is an error."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Final, TypeVar

import pydantic

from hwmatrix.basics.garbage import without_collection
from hwmatrix.errors import StoreError
from hwmatrix.records.plans import PLAN_SCHEMA, Plan

Record = TypeVar("Record")
_adapter: Final[Any] = functools.cache(pydantic.TypeAdapter)


def to_json(record: object, *, indent: int | None = None) -> str:
    """Serialize a record of this module."""
    return _adapter(type(record)).dump_json(record, indent=indent).decode()  # type: ignore[no-any-return]


def from_json(kind: type[Record], text: str | bytes, *, where: str) -> Record:
    """Read a record that :func:`to_json` wrote.

    Raises:
        StoreError: the text is not such a record. ``where`` names the file in the message.
    """
    try:
        with without_collection():
            return _adapter(kind).validate_json(text)  # type: ignore[no-any-return]
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        message = f"{where}: not a valid {kind.__name__}: {first['msg']} at {at or 'the top'} ({error.error_count()} in all)"
        raise StoreError(message, advice="The file was written by another version of hwmatrix, or is damaged: create it again.") from error


@dataclasses.dataclass(frozen=True)
class _Versioned:
    """The version of a plan that this version cannot read."""

    schema: Any = None


def plan_from_json(text: str | bytes, *, where: str) -> Plan:
    """Read a plan, and reject other versions.

    Raises:
        StoreError: it is broken, or of another version.
    """
    advice = "It is damaged, or by another version of hwmatrix: plan again (hwmatrix plan), or start a new run (hwmatrix matrix)."
    try:
        plan = from_json(Plan, text, where=where)
        schema = plan.schema
    except StoreError:
        try:
            schema = _adapter(_Versioned).validate_json(text).schema
        except pydantic.ValidationError as error:
            raise StoreError(f"{where}: not JSON: {error.errors()[0]['msg']}", advice=advice) from error
        if schema == PLAN_SCHEMA:
            raise
    if schema != PLAN_SCHEMA:
        raise StoreError(f"{where}: plan version {schema!r}, this hwmatrix reads {PLAN_SCHEMA!r}", advice=advice)
    return plan
