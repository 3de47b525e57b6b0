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


class BatchTry(TypedDict):
    """A batch that was tried. ``command`` repeats it, and ``wall_ms`` is how long its cell took; None: nothing was executed."""

    batch: int
    status: str
    reason: str | None
    error_type: str | None
    peak_mb: float | None
    device_peak_mb: float | None
    wall_ms: float | None
    command: str | None


class LargestBatchDocument(TypedDict):
    """A search for the largest batch that passes.

    ``passed`` is the largest batch that passed, ``failed`` the smallest that did not (None: there is none). ``complete``: the gap between
    the two is at most a sixteenth of the former, or the largest allowed batch passed; else the search ended before, after ``most_tries``
    or because nothing could run. ``memory_mb`` is the limit of every try, and ``elapsed_s`` how long all of them took, with everything
    around them.
    """

    passed: BatchTry | None
    failed: BatchTry | None
    complete: bool
    tries: int
    most_tries: int
    most_batch: int
    memory_mb: int
    elapsed_s: float


class TrialDocument(TypedDict):
    """The trial of one kind of hardware. ``command`` repeats the last attempt; values that were not measured are None.

    ``largest_batch`` is the result of a search; then the other values are those of the largest batch that passed. None: it was no search.
    """

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
    sequence_length: int | None
    threads: int | None
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
    largest_batch: LargestBatchDocument | None


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
