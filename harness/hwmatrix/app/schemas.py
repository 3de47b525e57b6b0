"""The JSON Schemas of the JSON reports, generated from the types that write them and stored in docs/schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pydantic

from hwmatrix.app import trial_document, types_document
from hwmatrix.knowledge import fit_document
from hwmatrix.report.contract import ERRORS_SCHEMA, GROUPS_SCHEMA, MATRIX_SCHEMA, ErrorsDocument, GroupsDocument, MatrixDocument
from hwmatrix.report.diff_contract import DIFF_SCHEMA, DiffDocument
from hwmatrix.report.expected_contract import EXPECTED_SCHEMA, ExpectedDocument
from hwmatrix.report.gate_text import GATE_SCHEMA, GateDocument
from hwmatrix.report.history import HISTORY_SCHEMA, HistoryDocument
from hwmatrix.report.why import WHY_SCHEMA, WhyDocument
from hwmatrix.reporter import document as error_report

if TYPE_CHECKING:
    from collections.abc import Callable

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def matrix_schema() -> dict[str, Any]:
    """The JSON Schema of matrix.json."""
    return _schema(MatrixDocument, MATRIX_SCHEMA, "hwmatrix compatibility matrix")


def errors_schema() -> dict[str, Any]:
    """The JSON Schema of errors.json."""
    return _schema(ErrorsDocument, ERRORS_SCHEMA, "hwmatrix errors of a run")


def groups_schema() -> dict[str, Any]:
    """The JSON Schema of what ``hwmatrix groups --format json`` prints."""
    return _schema(GroupsDocument, GROUPS_SCHEMA, "hwmatrix groups of failures")


def diff_schema() -> dict[str, Any]:
    """The JSON Schema of what ``hwmatrix diff --format json`` prints."""
    return _schema(DiffDocument, DIFF_SCHEMA, "hwmatrix comparison of two runs")


def gate_schema() -> dict[str, Any]:
    """The JSON Schema of what ``hwmatrix gate --format json`` prints."""
    return _schema(GateDocument, GATE_SCHEMA, "hwmatrix gate")


def expected_schema() -> dict[str, Any]:
    """The JSON Schema of expected.json."""
    return _schema(ExpectedDocument, EXPECTED_SCHEMA, "hwmatrix expected against measured")


def history_schema() -> dict[str, Any]:
    """The JSON Schema of what ``hwmatrix history --format json`` prints."""
    return _schema(HistoryDocument, HISTORY_SCHEMA, "hwmatrix history")


def why_schema() -> dict[str, Any]:
    """The JSON Schema of what ``hwmatrix why --format json`` prints."""
    return _schema(WhyDocument, WHY_SCHEMA, "hwmatrix why")


REPORTS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "matrix": matrix_schema,
    "errors": errors_schema,
    "groups": groups_schema,
    "expected": expected_schema,
    "diff": diff_schema,
    "gate": gate_schema,
    "history": history_schema,
    "why": why_schema,
    "fit": fit_document.json_schema,
    "hardware-errors": error_report.json_schema,
    "test": trial_document.json_schema,
    "types": types_document.json_schema,
}
"""The JSON reports by the name that ``hwmatrix schema`` takes. The files are docs/schemas/<name>-report.schema.json."""


def _schema(document: type, identity: str, title: str) -> dict[str, Any]:
    body = pydantic.TypeAdapter(document).json_schema(mode="serialization")
    return {"$schema": _DIALECT, "$id": identity, **body, "title": title}
