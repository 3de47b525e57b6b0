"""How much longer a cell takes than its model's own work, from a recorded run; writes the section `cell-cost` of docs/benchmarks.md.

Run it with ``python tests/bench/cell_cost.py reports/latest/matrix.duckdb``. The model's own work is loading it, preparing it for the
target and running it. What else a cell takes is hwmatrix's: starting the process, checking the bundle, comparing outputs, telling the
parent.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "bench")]

from sections import put  # noqa: E402 - it lies beside, in no package

from hwmatrix.store.reading import reading  # noqa: E402 - as above

if TYPE_CHECKING:
    import duckdb

GOAL_MS: Final = 150.0
"""What a cell that generates may take beyond its model's own work."""
QUERY: Final = """
WITH own AS (
    SELECT cell_id, sum(wall_ms) AS ms FROM stages
    WHERE stage IN ('load', 'prepare', 'run', 'prefill', 'decode', 'measure') GROUP BY cell_id
)
SELECT
    cells.target, planned.new_tokens > 0 AS generates, count(*) AS cells,
    median(own.ms) AS own_ms, median(cells.wall_ms - own.ms) AS more_ms, quantile_cont(cells.wall_ms - own.ms, 0.9) AS more_p90_ms
FROM cells JOIN planned USING (run_id, cell_key) JOIN own USING (cell_id)
WHERE cells.status = 'pass' AND cells.role = 'model'
GROUP BY ALL ORDER BY ALL
"""


def main() -> int:
    """Write the section. Returns 1 if a target misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path, help="the matrix.duckdb of a run")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks.md")
    arguments = parser.parse_args()
    with reading(arguments.database) as connection:
        section, good = section_of(connection)
    sys.stdout.write(f"{section}\n")
    put(arguments.output, "cell-cost", section)
    return 0 if good else 1


def section_of(connection: duckdb.DuckDBPyConnection) -> tuple[str, bool]:
    """The section, and whether every target reaches the goal."""
    rows = connection.execute(QUERY).fetchall()
    (run, when) = row_of(connection.execute("SELECT run_id, strftime(created_at, '%Y-%m-%d') FROM runs ORDER BY created_at DESC LIMIT 1"))
    good = all(more <= GOAL_MS for _, generates, _, _, more, _ in rows if generates)
    how = (
        f"Written by `python tests/bench/cell_cost.py`, from the cells of run `{run}` of {when} that passed. The model's own work is "
        "loading, preparing, running and timing it; the rest is starting the process, checking the bundle, comparing outputs and telling "
        "the parent."
    )
    lines = [
        "## What a cell takes beside its model's own work",
        "",
        how,
        "",
        "| Target | Cells | Number | Own work (median) | More (median) | More (90th percentile) |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {target} | {'generation' if generates else 'one forward pass'} | {count} | {own:.0f} ms | {more:.0f} ms | {p90:.0f} ms |"
            for target, generates, count, own, more, p90 in rows
        ),
        "",
        f"Goal: at most {GOAL_MS:.0f} ms more (median) for cells that generate: {'yes' if good else 'no'}.",
    ]
    return "\n".join(lines), good


def row_of(found: duckdb.DuckDBPyConnection) -> tuple[Any, ...]:
    """The only row.

    Raises:
        SystemExit: there is none.
    """
    row = found.fetchone()
    if row is None:
        raise SystemExit("the database has no run")
    return row


if __name__ == "__main__":
    sys.exit(main())
