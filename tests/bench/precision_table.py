"""Tables of what reduced precision costs the default models, from the database of a run: the sections of docs/precision-measured.md.

    python tests/bench/precision_table.py reports/latest/matrix.duckdb            print the tables
    python tests/bench/precision_table.py reports/latest/matrix.duckdb --write    put them into docs/precision-measured.md
    python tests/bench/precision_table.py reports/latest/matrix.duckdb --full     speed, memory and loss of models in full size
    python tests/bench/precision_table.py reports/latest/matrix.duckdb --generation   the same of cells that generate text
    python tests/bench/precision_table.py reports/published/matrix.duckdb --rounded     the precisions that are compared twice

"By the fixed limit" is the verdict that ``relative_error`` of matrix.yaml alone would give.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sections import put

from hwmatrix.matrix.load import load
from hwmatrix.records import Dtype
from hwmatrix.store.reading import reading

if TYPE_CHECKING:
    from collections.abc import Sequence

MATRIX: Final = Path(__file__).parents[2] / "matrix.yaml"
PAGE: Final = Path(__file__).parents[2] / "docs" / "precision-measured.md"
QUERY: Final = """
SELECT
    model, target, coalesce(precision, dtype) AS dtype, status, error_type, relative_error, loss, excess, approximate,
    quality, quality_reference, quality_agreement
FROM matrix WHERE size = 'tiny' AND coalesce(precision, dtype) <> 'float32' AND status IN ('pass', 'mismatch') ORDER BY position
"""
ROUNDED: Final = """
SELECT model, target, dtype, status, error_type, loss, excess, quality, quality_reference
FROM matrix WHERE size = 'tiny' AND new_tokens = 0 AND status IN ('pass', 'mismatch', 'unsupported', 'timeout')
ORDER BY started_at
"""
TWICE: Final = {
    "int8": ("cpu", "openvino"),
    "int8_dynamic": ("cpu", "onnxruntime", "webnn"),
    "a8w8": ("openvino", "onnxruntime", "webnn", "executorch"),
    "int4": ("openvino", "onnxruntime", "webgpu", "webnn"),
    "int4_float16": ("webnn",),
}
"""The targets that compare twice in each precision (docs/precision.md#compared-twice), and run on a CPU."""
FULL: Final = """
SELECT model, target, dtype, p50_ms, ci_low_ms, ci_high_ms, run_peak_mb, relative_error, status, error_type
FROM matrix WHERE size = 'full' AND new_tokens = 0 AND status NOT IN ('unavailable', 'not_run')
ORDER BY position
"""
GENERATION: Final = """
SELECT model, target, dtype, ttft_ms, tpot_ms, tpot_low_ms, tpot_high_ms, run_peak_mb, relative_error, status, error_type
FROM matrix WHERE size = 'full' AND new_tokens > 0 AND status NOT IN ('unavailable', 'not_run')
ORDER BY position
"""


def main() -> int:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", type=Path, nargs="+", help="of a cell in several, the last one counts")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/precision-measured.md")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--full", action="store_true", help="models in full size")
    which.add_argument("--generation", action="store_true", help="text generation with models in full size")
    which.add_argument("--rounded", action="store_true", help="the precisions that are compared twice")
    arguments = parser.parse_args()
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for database in arguments.database:
        with reading(database) as connection:
            cursor = connection.execute(_query(arguments))
            names = [column[0] for column in cursor.description or ()]
            made = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            (plan,) = connection.execute("SELECT CAST(plan AS VARCHAR) FROM runs ORDER BY created_at DESC LIMIT 1").fetchone() or ("{}",)
        found |= {(row["model"], row["target"], row["dtype"]): row for row in made}
    full = arguments.full or arguments.generation
    order = _default_models()
    rows = [row for row in found.values() if full or row["model"] in order]
    if not full:
        rows.sort(key=lambda row: order.index(row["model"]))
    if full:
        section = "full-size" if arguments.full else "full-size-generation"
        tables = [_full_table(target, [row for row in rows if row["target"] == target]) for target in _distinct(rows, "target")]
    elif arguments.rounded:
        section = "rounded-weights"
        tables = [
            _rounded_table(dtype, targets, [row for row in rows if row["dtype"] == dtype and row["target"] in targets])
            for dtype, targets in TWICE.items()
        ]
    else:
        section = "default-models"
        limits = {name: rule["relative_error"] for name, rule in json.loads(plan)["tolerances"].items()}
        of = {dtype: [row for row in rows if row["dtype"] == dtype] for dtype in Dtype}
        tables = [_table(dtype, mine, limits[dtype]) for dtype, mine in of.items() if mine]
    text = "\n\n".join(tables)
    sys.stdout.write(f"{text}\n")
    if arguments.write:
        put(PAGE, section, text)
    return 0


def _query(arguments: argparse.Namespace) -> str:
    if arguments.full:
        return FULL
    if arguments.generation:
        return GENERATION
    return ROUNDED if arguments.rounded else QUERY


@functools.cache
def _default_models() -> tuple[str, ...]:
    """The models that matrix.yaml has as recipes of their own: the database may have every type of transformers besides."""
    spec = load(MATRIX).spec
    return tuple(name for name, model in spec.models.items() if model.tiny is not None)


def _rounded_table(dtype: str, targets: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """The models by target: loss, the kernels' excess, the share of right answers where the reference has more, and a failing verdict."""
    lines = [f"In `{dtype}`:", "", f"| model | {' | '.join(targets)} |", "|---" * (1 + len(targets)) + "|"]
    for model in _distinct(rows, "model"):
        mine = {row["target"]: row for row in rows if row["model"] == model}
        lines.append(f"| {model} | {' | '.join(_rounded_cell(mine.get(target)) for target in targets)} |")
    return "\n".join(lines)


def _rounded_cell(row: dict[str, Any] | None) -> str:
    """Its loss and excess, with what is unusual."""
    if row is None:
        return ""
    if row["loss"] is None:
        return str((row["error_type"] or row["status"]).replace("_", " "))
    parts = [
        _number(row["loss"]),
        "no excess" if row["excess"] is None else f"{row['excess']:,.0f}" if row["excess"] > 10 else _number(row["excess"]),
    ]
    if None not in (row["quality"], row["quality_reference"]) and row["quality"] < row["quality_reference"]:
        parts.append(f"{row['quality']:.0%}")
    if row["status"] != "pass":
        parts.append(f"**{row['error_type'].replace('_', ' ')}**")
    return ", ".join(parts)


def _full_table(target: str, rows: Sequence[dict[str, Any]]) -> str:
    """The models of one target by precision: the speed with its interval, how many times as fast as float32 it is, the memory that the
    process held after the first pass, and the error against the reference in float32.
    """
    dtypes = _distinct(rows, "dtype")
    lines = [f"### {target}", "", f"| model | {' | '.join(dtypes)} |", "|---" * (1 + len(dtypes)) + "|"]
    for model in _distinct(rows, "model"):
        mine = {row["dtype"]: row for row in rows if row["model"] == model}
        wide = _time(mine.get("float32", {}))
        lines.append(f"| {model} | {' | '.join(_full_cell(mine[dtype], wide) if dtype in mine else '' for dtype in dtypes)} |")
    return "\n".join(lines)


def _full_cell(row: dict[str, Any], wide: float | None) -> str:
    """``wide`` is the latency in float32, or the time of a token."""
    if _time(row) is None:
        error = "" if row["relative_error"] is None else f" {_number(row['relative_error'])}"
        why = row["error_type"] or "not timed"
        told = row["status"] if why == row["status"] else f"{row['status']}: {why.replace('_', ' ')}"
        return f"{told}{error}"
    parts = [_tokens(row) if "tpot_ms" in row else _milliseconds(row)]
    if row["dtype"] != "float32" and wide is not None:
        parts.append(f"{wide / _time(row):.2f} times")
    if "ttft_ms" in row:
        parts.append(f"prompt {row['ttft_ms']:.0f} ms")
    if row["run_peak_mb"] is not None:
        parts.append(f"{row['run_peak_mb']:.0f} MB")
    if row["dtype"] != "float32":
        parts.append(f"loss {_number(row['relative_error'])}")
    if row["error_type"] is not None:
        parts.append(f"**{row['error_type'].replace('_', ' ')}**")
    return ", ".join(parts)


def _time(row: dict[str, Any]) -> Any:
    return row.get("tpot_ms", row.get("p50_ms"))


def _tokens(row: dict[str, Any]) -> str:
    """New tokens per second after the first, with the interval of the median time of a token."""
    interval = f" ({1000 / row['tpot_high_ms']:.1f} to {1000 / row['tpot_low_ms']:.1f})" if row["tpot_low_ms"] is not None else ""
    return f"{1000 / row['tpot_ms']:.1f} tokens/s{interval}"


def _milliseconds(row: dict[str, Any]) -> str:
    interval = f" ({row['ci_low_ms']:.0f} to {row['ci_high_ms']:.0f})" if row["ci_low_ms"] is not None else ""
    return f"{row['p50_ms']:.0f} ms{interval}"


def _distinct(rows: Sequence[dict[str, Any]], column: str) -> list[str]:
    return list(dict.fromkeys(str(row[column]) for row in rows))


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
