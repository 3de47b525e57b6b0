"""The JSON of ``hwmatrix test``: types and JSON Schema."""

from __future__ import annotations

from typing import Any, Final, Literal

import pydantic
from typing_extensions import TypedDict

TEST_SCHEMA: Final = "hwmatrix/test/1"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class AttemptDocument(TypedDict):
    """One attempt. ``wall_ms`` is the cell's duration; None if nothing was executed."""

    hardware: str
    batch: int
    retry: int
    status: str
    reason: str | None
    error_type: str | None
    wall_ms: float | None
    command: str | None


class CostDocument(TypedDict):
    """Milliseconds per sample on the expected and on the actual hardware; ``factor`` is their ratio, actual / expected."""

    expected_ms: float | None
    actual_ms: float | None
    note: str
    factor: float | None


class TrialDocument(TypedDict):
    """The trial of one kind of hardware. ``command`` repeats the last attempt; values that were not measured are None."""

    model: str
    expected_hardware: str
    actual_hardware: str | None
    fell_back: bool
    status: str
    stage: str | None
    target: str | None
    batch: int
    actual_batch: int | None
    dtype: str | None
    execution: str | None
    on_target: float | None
    placement: str | None
    p50_ms: float | None
    sample_ms: float | None
    cost: CostDocument
    lost_ms: float | None
    attempts: list[AttemptDocument]
    recommendations: list[str]
    command: str | None


class ModelTestDocument(TypedDict):
    """One model's test. ``order_stands_on`` says why hardware was tried in this order; ``database`` and ``runs`` are kept with --save."""

    schema: Literal["hwmatrix/test/1"]
    model: str
    size: str
    family: str
    isolation: str
    order_stands_on: str
    trials: list[TrialDocument]
    database: str | None
    runs: list[str]


_DOCUMENT: Final = pydantic.TypeAdapter(ModelTestDocument)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    body = _DOCUMENT.json_schema(mode="serialization")
    return {"$schema": _DIALECT, "$id": TEST_SCHEMA, **body, "title": "hwmatrix test of one model"}
