"""Tables of what reduced precision costs the default models, from the database of a run: the section of docs/precision.md.

    python tests/bench/precision_table.py reports/latest/matrix.duckdb            print the tables
    python tests/bench/precision_table.py reports/latest/matrix.duckdb --write    put them into docs/precision.md

"By the fixed limit" is the verdict that ``relative_error`` of matrix.yaml alone would give.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sections import put

from hwmatrix.records import Dtype
from hwmatrix.store.reading import reading

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE: Final = Path(__file__).parents[2] / "docs" / "precision.md"
QUERY: Final = """
SELECT
    model, target, coalesce(precision, dtype) AS dtype, status, error_type, relative_error, loss, excess, approximate,
    quality, quality_reference, quality_agreement
FROM matrix WHERE size = 'tiny' AND coalesce(precision, dtype) <> 'float32' AND status IN ('pass', 'mismatch') ORDER BY position
"""


def main() -> int:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", type=Path)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/precision.md")
    arguments = parser.parse_args()
    with reading(arguments.database) as connection:
        cursor = connection.execute(QUERY)
        names = [column[0] for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        (plan,) = connection.execute("SELECT CAST(plan AS VARCHAR) FROM runs ORDER BY created_at DESC LIMIT 1").fetchone() or ("{}",)
    limits = {name: rule["relative_error"] for name, rule in json.loads(plan)["tolerances"].items()}
    text = "\n\n".join(
        _table(dtype, [row for row in rows if row["dtype"] == dtype], limits[dtype])
        for dtype in Dtype
        if any(row["dtype"] == dtype for row in rows)
    )
    sys.stdout.write(f"{text}\n")
    if arguments.write:
        put(PAGE, "default-models", text)
    return 0


def _table(dtype: Dtype, rows: Sequence[dict[str, Any]], limit: float) -> str:
    targets = list(dict.fromkeys(row["target"] for row in rows))
    lines = [f"### {dtype.value}", "", f"| model | loss | {' | '.join(f'{name}: excess, task, verdict' for name in targets)} |"]
    lines.append("|---" * (2 + len(targets)) + "|")
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = {row["target"]: row for row in rows if row["model"] == model}
        loss = next((row["loss"] for row in mine.values() if row["loss"] is not None), None)
        cells = [_cell(mine[target], limit) if target in mine else "" for target in targets]
        lines.append(f"| {model} | {_number(loss)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any], limit: float) -> str:
    """The excess, the share of right answers (with the reference's, if it differs), the verdict, and what the fixed limit would say."""
    verdict = row["status"] if row["status"] == "pass" else f"**{row['error_type'].replace('_', ' ')}**"
    if row["approximate"]:
        verdict = "pass ≈"
    before = row["relative_error"] is not None and row["relative_error"] <= limit
    changed = "" if before == (row["status"] == "pass") else f" (by the fixed limit: {'pass' if before else 'mismatch'})"
    quality = "" if row["quality"] is None else f"{row['quality']:.0%}"
    if row["quality"] != row["quality_reference"] and row["quality_reference"] is not None:
        quality += f" of {row['quality_reference']:.0%}"
    return ", ".join(part for part in (_number(row["excess"]), quality, f"{verdict}{changed}") if part)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


if __name__ == "__main__":
    sys.exit(main())
