"""``hwmatrix history``: runs kept over time, and how single cells changed."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.basics.text import commit, plain, plural
from hwmatrix.cli.options import DEFAULT_OUTPUT
from hwmatrix.cli.tables import print_table
from hwmatrix.cli.terminal import echo, safe_text
from hwmatrix.errors import ConfigError, Problem, StoreError
from hwmatrix.knowledge.names import name_on_record
from hwmatrix.records import Execution
from hwmatrix.report.history import RunSummary, Trend, history_json, history_md, read_runs, read_trends
from hwmatrix.report.settings import short
from hwmatrix.store.history import add
from hwmatrix.store.reading import database_at

if TYPE_CHECKING:
    from hwmatrix.report.history import Moment

DEFAULT_HISTORY: Final = Path("reports/history.duckdb")


class HistoryFormat(enum.StrEnum):
    """How a history is printed."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("history")(history_command)


def history_command(
    model: Annotated[str | None, typer.Argument(help="Show the history of this model.", metavar="MODEL")] = None,
    target: Annotated[str | None, typer.Argument(help="Only on this target.", metavar="TARGET")] = None,
    *,
    adding: Annotated[
        list[Path] | None,
        typer.Option("--add", help="First add these merged databases or folders of reports: --add A B", metavar="RUN ..."),
    ] = None,
    release: Annotated[str | None, typer.Option("--release", help="A label for the added runs.", metavar="NAME")] = None,
    database: Annotated[Path, typer.Option("--database", help="The history; created if missing.", metavar="FILE")] = DEFAULT_HISTORY,
    output: Annotated[HistoryFormat, typer.Option("--format", help="A table, or a document.")] = HistoryFormat.TABLE,
) -> None:
    """Keep runs over time, and show how cells changed: statuses, latency, memory, images.

    A history is a merged database of many runs: diff, gate and report read it too (FILE@RUN). Examples:

        hwmatrix history --add reports/latest --release 1.2

        hwmatrix history

        hwmatrix history bert openvino
    """
    if release is not None and not adding:
        raise ConfigError([Problem(where="--release", what="nothing is added", hint="name databases with --add")])
    if adding:
        for added in add(database, [database_at(place) for place in adding], release=release):
            echo(
                f"{added.database}: {plural(len(added.runs), 'run')} and {plural(added.shards, 'shard')} added, {added.known} known before",
                err=True,
            )
    database = database_at(database)
    if not database.is_file():
        raise StoreError(f"{database}: there is no such file", advice=f"Add a run to it: hwmatrix history --add {DEFAULT_OUTPUT}")
    runs = read_runs(database)
    model = None if model is None else name_on_record(model, database)
    trends = read_trends(database, model=model, target=target) if model is not None else ()
    if model is not None and not trends:
        _refuse(database, model, target)
    if output is HistoryFormat.TABLE:
        _print(runs, trends)
    else:
        echo((history_md if output is HistoryFormat.MARKDOWN else history_json)(runs, trends), nl=False)


def _refuse(database: Path, model: str, target: str | None) -> None:
    """Report whether the model or the target is missing in the history.

    Raises:
        ConfigError: always.
    """
    known = read_trends(database)
    models = sorted({trend.last.model for trend in known})
    if model not in models:
        raise ConfigError([Problem(where="MODEL", what=f"{database} has no model {model!r}", hint=near_miss(model, models))])
    targets = sorted({trend.last.target for trend in known if trend.last.model == model})
    raise ConfigError([Problem(where="TARGET", what=f"{database} has no {model} on {target!r}", hint=near_miss(str(target), targets))])


def _print(runs: tuple[RunSummary, ...], trends: tuple[Trend, ...]) -> None:
    if not trends:
        rows = [
            (
                run.release or "",
                f"{run.created_at:%Y-%m-%d %H:%M}",
                commit(run.commit_id or ""),
                str(run.passed),
                str(run.failed),
                run.run_id,
            )
            for run in runs
        ]
        print_table(("release", "when (UTC)", "commit", "pass", "fail", "run"), rows)
        return
    for trend in trends:
        last = trend.last
        title = f"{plain(last.model)} on {plain(last.target)}: {short(last)} ({last.isolation.value})"
        Console().print(safe_text(title, style="bold"))
        moments = [_row(moment) for moment in trend.moments]
        print_table(("release", "when (UTC)", "status", "p50 ms", "added MiB", "image", "run"), moments)


def _row(moment: Moment) -> tuple[str, ...]:
    timed = moment.p50_ms is not None and moment.execution is not Execution.EMULATED
    return (
        moment.release or "",
        f"{moment.created_at:%Y-%m-%d %H:%M}",
        f"{moment.status.value}{f' ({moment.error_type})' if moment.error_type else ''}",
        f"{moment.p50_ms:.3g}" if timed else "",
        f"{moment.delta_mb:.0f}" if moment.delta_mb is not None else "",
        (moment.image_digest or "").removeprefix("sha256:")[:12],
        moment.run_id,
    )
