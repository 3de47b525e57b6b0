"""Fills the columns ``preparation`` and ``replaced`` of a database of schema 14, which has them only in the words of ``method``: once.

python tests/bench/fill_preparation.py reports/published/matrix.duckdb
"""

from __future__ import annotations

import re
import sys
from typing import Final

import duckdb

from hwmatrix.records.vocabulary import Preparation, exported_by

_REPLACED: Final = {
    "squeezes of longer axes left out": "Squeeze",
    "RMS norms fused": "RMS norm",
    "rows taken by Gather": "GatherND",
    "reciprocals as divisions": "Reciprocal",
    "exponents raised": "Exp",
    "windows beyond the input pooled globally": "AveragePool",
}


def of_method(method: str) -> tuple[list[str], list[str] | None]:
    """What a method of schema 14 says: the preparation, and the operators that were replaced; None: none."""
    exporter = re.match(r"(?:ONNX opset \d+ by the )?(transformers|torch) (?:ONNX |OpenVINO )?export", method)
    steps: list[str] = []
    if exporter:
        steps.append(exported_by(exporter[1]))
    elif method.startswith("openvino.convert_model"):
        steps.append(Preparation.TRACE)
    else:
        return [], None
    generates = re.search(r"export of (prefill and )?decode", method)
    if not generates:
        steps.append(Preparation.FIXED_SHAPES)
    elif "lowered to XNNPACK" in method:
        steps.append(Preparation.BOUNDED_LENGTHS)
    if "with constant " in method:
        steps.append(Preparation.CONSTANT_INPUTS)
    replaced = sorted(name for words, name in _REPLACED.items() if words in method)
    traced_with_others = "lowered to XNNPACK" in method  # every model was, and which of the six functions it calls is not on record
    steps += [Preparation.REPLACED_OPERATORS] if replaced or traced_with_others else []
    steps += [Preparation.RAISED_MASKS] if "masks raised" in method else []
    steps += [Preparation.RENAMED_CONSTANTS] if "shared constants renamed" in method else []
    return steps, replaced or None


def fill(path: str) -> int:
    """Fill the columns, and return how many cells have a preparation now."""
    with duckdb.connect(path) as connection:
        for column in ("preparation", "replaced"):
            connection.execute(f"ALTER TABLE cells ADD COLUMN IF NOT EXISTS {column} VARCHAR[]")
        methods = [method for (method,) in connection.execute("SELECT DISTINCT method FROM cells WHERE method IS NOT NULL").fetchall()]
        connection.execute("BEGIN")
        for method in methods:
            update = "UPDATE cells SET preparation = ?, replaced = ? WHERE method = ? AND preparation IS NULL"
            connection.execute(update, [*of_method(method), method])
        connection.execute("COMMIT")
        (count,) = connection.execute("SELECT count(preparation) FROM cells").fetchall()[0]
    return int(count)


if __name__ == "__main__":
    sys.stdout.write(f"{fill(sys.argv[1])} cells have a preparation\n")
