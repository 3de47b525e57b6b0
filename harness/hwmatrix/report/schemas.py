"""The published JSON Schemas of the JSON reports, generated from the types that write them."""

from __future__ import annotations

from typing import Any

import pydantic

from hwmatrix.report.contract import ERRORS_SCHEMA, MATRIX_SCHEMA, ErrorsDocument, MatrixDocument

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def matrix_schema() -> dict[str, Any]:
    """The JSON Schema of matrix.json."""
    return _schema(MatrixDocument, MATRIX_SCHEMA, "hwmatrix compatibility matrix")


def errors_schema() -> dict[str, Any]:
    """The JSON Schema of errors.json."""
    return _schema(ErrorsDocument, ERRORS_SCHEMA, "hwmatrix error report")


def _schema(document: type, identity: str, title: str) -> dict[str, Any]:
    body = pydantic.TypeAdapter(document).json_schema(mode="serialization")
    return {"$schema": _DIALECT, "$id": identity, **body, "title": title}
