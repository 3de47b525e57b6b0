"""Data that only the page shows, in addition to :class:`ReportRows`: stages, spread of samples, installed packages."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from hwmatrix.records import Stage
from hwmatrix.report.rows import scope
from hwmatrix.store.reading import reading, records

if TYPE_CHECKING:
    from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageRows:
    """Details of a run, by cell and by shard.

    ``stages`` are the milliseconds in each stage that a cell entered. ``quantiles`` are the milliseconds of its samples in steps of 5 %,
    from the shortest to the longest; an emulated cell has none. ``packages`` map a name to a version.
    """

    stages: dict[str, dict[Stage, float]]
    quantiles: dict[str, tuple[float, ...]]
    packages: dict[str, dict[str, str]]


def read_page_rows(database: Path, run_id: str | None) -> PageRows:
    """Read the details of the run that :func:`hwmatrix.report.rows.read` returns.

    Raises:
        StoreError: the database is missing, broken, or of another version.
    """
    stages: dict[str, dict[Stage, float]] = {}
    with reading(database) as connection:
        scope(connection, database, run_id)
        for row in records(connection, "page_stages"):
            stages.setdefault(row["cell_id"], {})[Stage(row["stage"])] = row["wall_ms"]
        return PageRows(
            stages=stages,
            quantiles={row["cell_id"]: tuple(row["quantiles_ms"]) for row in records(connection, "page_quantiles")},
            packages={row["shard_id"]: json.loads(row["packages"]) for row in records(connection, "page_packages")},
        )
