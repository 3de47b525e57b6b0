"""The published JSON Schemas of the JSON reports, generated from the types that write them."""

from __future__ import annotations

import json
from pathlib import Path
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


def write_published(folder: Path) -> None:
    """Write both schemas where the package publishes them, after a change of the contract."""
    for name, schema in (("matrix-1", matrix_schema()), ("errors-1", errors_schema())):
        (folder / f"{name}.schema.json").write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_published(Path(__file__).parent / "published")
