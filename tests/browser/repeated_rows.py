"""A matrix of 650 models on 8 targets for tests of the page's size and speed. IT IS NO MEASUREMENT: real rows of a recorded run,
each repeated under other model names until there are enough. It says so in its run id and its command, and is never published.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import duckdb

from hwmatrix.store.cell_columns import SCHEMA_VERSION, schema, sql

RECORDED: Final = Path(__file__).parents[1] / "recorded" / "default.duckdb"
RUN: Final = "repeated-rows-not-a-measurement"
COMMAND: Final = (
    "tests/browser/repeated_rows.py: rows of tests/recorded/default.duckdb, repeated under other model names; not a measurement"
)
MODELS: Final = 650
TARGETS: Final = ("cpu", "openvino", "cuda", "rocm", "mps", "qnn", "webgpu", "webnn")
SAMPLES: Final = 100
"""Of each cell; the published ones have up to thousands."""

_CHOSEN: Final = """
CREATE TEMP TABLE chosen AS
SELECT p.*, n.copy, concat(p.model, '-copy-', lpad(CAST(n.copy AS VARCHAR), 2, '0')) AS new_model, n.row_number
FROM published.planned p
JOIN (
    SELECT model, copy, row_number() OVER (ORDER BY copy, first) AS row_number
    FROM (SELECT model, min(position) AS first FROM published.planned GROUP BY model), range(1, 100) AS copies(copy)
    QUALIFY row_number <= $models
) n USING (model)
WHERE list_contains($targets, p.target)
QUALIFY row_number() OVER (PARTITION BY p.target, p.model, n.copy ORDER BY p.dtype <> 'float32', p.position) = 1
"""
_COPIED: Final = (
    "INSERT INTO runs SELECT * REPLACE ($run AS run_id, $command AS command) FROM published.runs",
    "INSERT INTO shards SELECT * REPLACE ($run AS run_id) FROM published.shards",
    "INSERT INTO detections SELECT * FROM published.detections",
    """
    INSERT INTO planned BY NAME
    SELECT * EXCLUDE (copy, new_model, row_number)
        REPLACE ($run AS run_id, concat(copy, ':', cell_key) AS cell_key, new_model AS model, 16 * row_number + position % 16 AS position)
    FROM chosen
    """,
    """
    INSERT INTO cells BY NAME
    SELECT c.* REPLACE (
        $run AS run_id, concat(h.copy, ':', c.cell_key) AS cell_key, concat(h.copy, ':', c.cell_id) AS cell_id, h.new_model AS model,
        replace(c.command, c.model, h.new_model) AS command
    )
    FROM published.cells c JOIN chosen h USING (cell_key) WHERE c.role = 'model'
    """,
    "INSERT INTO outputs BY NAME SELECT o.* REPLACE (n.cell_id AS cell_id) FROM published.outputs o JOIN copied n ON n.old = o.cell_id",
    "INSERT INTO stages BY NAME SELECT s.* REPLACE (n.cell_id AS cell_id) FROM published.stages s JOIN copied n ON n.old = s.cell_id",
    """
    INSERT INTO samples BY NAME
    SELECT s.* REPLACE (n.cell_id AS cell_id) FROM published.samples s JOIN copied n ON n.old = s.cell_id WHERE s.n < $samples
    """,
)


def repeated_rows(path: Path, *, models: int = MODELS, targets: tuple[str, ...] = TARGETS) -> Path:
    """Write the database and give its path."""
    known = {"run": RUN, "command": COMMAND, "samples": SAMPLES}
    with duckdb.connect(str(path)) as connection:
        connection.execute(schema())
        connection.execute(sql("views.sql"))
        connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", [SCHEMA_VERSION])
        connection.execute(f"ATTACH '{RECORDED}' AS published (READ_ONLY)")
        connection.execute(_CHOSEN, {"models": models, "targets": list(targets)})
        for statement in _COPIED:
            if "FROM published.outputs" in statement:
                connection.execute(
                    "CREATE TEMP TABLE copied AS SELECT c.cell_id AS old, concat(h.copy, ':', c.cell_id) AS cell_id "
                    "FROM published.cells c JOIN chosen h USING (cell_key) WHERE c.role = 'model'"
                )
            connection.execute(statement, {name: value for name, value in known.items() if f"${name}" in statement} or None)
    return path
