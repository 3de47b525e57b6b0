"""``hwmatrix merge``: merges shards into a database, or several databases into one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwmatrix.basics.text import plural
from hwmatrix.cli.options import DEFAULT_OUTPUT
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import ConfigError, Problem, StoreError
from hwmatrix.host.run_folder import RUNS, RunFolder
from hwmatrix.store.latest import LatestReport, is_run, merge_places
from hwmatrix.store.merge import MergeReport, merge
from hwmatrix.store.reading import keeps_latest, reading

if TYPE_CHECKING:
    from collections.abc import Sequence


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("merge")(merge_command)


def merge_command(
    *,
    places: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs (plan.json, shards/), or merged databases. [default: the latest run's]", metavar="WHAT"),
    ] = None,
    database: Annotated[
        Path, typer.Option("--database", help="The database to merge into; created if missing.", metavar="FILE")
    ] = DEFAULT_OUTPUT / "matrix.duckdb",
) -> None:
    """Merge the shards of runs into a database; or several databases into one with the latest verdict of every cell.

    Merging again changes nothing. Broken shards are listed (exit code 7), the others are merged; a broken database is refused. Examples:

        hwmatrix merge reports/latest/runs/20261120T072723Z-42934e

        hwmatrix merge monday.duckdb tuesday.duckdb --database both.duckdb
    """
    asked = places or [_latest(database.parent)]
    if all(map(is_run, asked)) and not _keeps_latest(database):
        merged: tuple[MergeReport, ...] = (merge(asked, database),)
    else:
        kept, merged = merge_places(asked, database)
        echo(latest_in_words(kept, database))
    for report in merged:
        print_merge(report)
    check_complete(asked, merged)


def check_complete(places: Sequence[Path], merged: Sequence[MergeReport]) -> None:
    """Check that no shard of a merge was rejected, and that every folder of a run had one.

    Raises:
        StoreError: it names the commands that run the targets again.
    """
    rejected = [rejection.file for report in merged for rejection in report.rejected]
    again = []
    for folder in filter(is_run, places):
        shards = [path.name for path in (folder / "shards").glob("*.duckdb")]
        targets = [
            target.name
            for target in RunFolder(path=folder).plan().targets
            if not shards or any(name in rejected and name.rpartition("-")[0] == target.name for name in shards)
        ]
        output = f" --output-dir {folder.parents[1]}" if folder.parent.name == RUNS else ""
        again += [f"hwmatrix run {folder} --targets {' '.join(targets)}{output}"] if targets else []
    if again or rejected:
        what = f"{plural(len(rejected), 'shard')} rejected" if rejected else "a run has no shard"
        raise StoreError(what, advice="\n".join(("Delete rejected shards, run these targets again, then merge:", *again)))


def latest_in_words(kept: LatestReport, database: Path) -> str:
    """The content of a database of latest verdicts, in one line."""
    left = f"; {kept.superseded:,} earlier executions are left out" if kept.superseded else ""
    return f"{database}: the latest verdicts of {kept.runs:,} runs on {kept.cells:,} cells{left}"


def print_merge(report: MergeReport) -> None:
    """Print what a merge did."""
    for rejection in report.rejected:
        echo(f"rejected {rejection.file}: {rejection.reason}")
    if report.withdrawn:
        echo(f"not shown, since a new plan of their run dropped them: {plural(len(report.withdrawn), 'cell')}")
    merged = f"{plural(len(report.merged), 'shard')} merged ({plural(report.rows, 'row')})"
    echo(f"{merged}, {len(report.known)} known before, {len(report.rejected)} rejected")


def _keeps_latest(database: Path) -> bool:
    """Whether a database exists and keeps only the latest verdicts: whole runs cannot be merged into it unchanged."""
    if not database.is_file():
        return False
    try:
        with reading(database) as connection:
            return keeps_latest(connection)
    except StoreError:
        return False  # writing to it will raise the error


def _latest(output: Path) -> Path:
    runs = sorted((output / RUNS).glob("*/plan.json"))
    if not runs:
        raise ConfigError(
            [
                Problem(
                    where="hwmatrix merge",
                    what=f"{output / RUNS} contains no run",
                    hint="hwmatrix matrix creates one; or name a run's folder",
                )
            ]
        )
    return runs[-1].parent
