"""``hwmatrix groups``: failures grouped by the change that would fix them, groups that block the most architectures first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import pydantic
import typer
from rich.console import Console

from hwmatrix.basics.escape import short
from hwmatrix.basics.text import plain
from hwmatrix.cli.options import DEFAULT_OUTPUT, Format, FormatOption, Targets, recorded_names
from hwmatrix.cli.tables import print_table
from hwmatrix.cli.terminal import echo, runnable, safe_text
from hwmatrix.report.contract import GroupsDocument
from hwmatrix.report.groups import Scope, group_entries, groups_of
from hwmatrix.report.numbers import NOTHING
from hwmatrix.report.rows import read

if TYPE_CHECKING:
    from hwmatrix.report.groups import FailureGroup

_TITLES: Final = {
    Scope.FACTORY: "models that could not be built, which is not counted against any hardware",
    Scope.INFRASTRUCTURE: "failures outside of the cells",
}


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("groups")(groups_command)


def groups_command(
    database: Annotated[
        Path, typer.Option("--database", help="A merged database, or a folder of reports that contains one.", metavar="FILE")
    ] = DEFAULT_OUTPUT,
    *,
    targets: Targets = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Number of groups to show for each target.", metavar="N")] = 10,
    run_id: Annotated[str | None, typer.Option("--run", help="The id of a run. [default: the latest]", metavar="ID")] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show what blocks most: missing operators, constructs in model code, errors grouped by message.

    Each group has its smallest example and the command that reproduces it. JSON contains all groups, with tracebacks. Examples:

        hwmatrix groups

        hwmatrix groups --targets openvino --limit 3

        hwmatrix groups --database reports/published --format json
    """
    rows, wanted = read(database, run_id), targets or []
    recorded_names("--targets", wanted, {cell.target for cell in rows.cells}, f"run {rows.run.run_id}")
    groups = tuple(group for group in groups_of(rows) if not wanted or group.target in wanted)
    if output is Format.JSON:
        document = GroupsDocument(schema="hwmatrix/groups/1", run_id=rows.run.run_id, groups=group_entries(groups))
        echo(pydantic.TypeAdapter(GroupsDocument).dump_json(document, indent=2).decode())
        return
    if not groups:
        echo("Nothing failed.")
    places: dict[tuple[Scope, str | None, str | None], list[FailureGroup]] = {}
    for group in groups:
        places.setdefault((group.scope, group.target, group.isolation), []).append(group)
    for (scope, target, isolation), found in places.items():
        _print(" ".join(filter(None, (target and f"{plain(target)} ({isolation})", _TITLES.get(scope)))), found, limit)


def _print(title: str, groups: list[FailureGroup], limit: int) -> None:
    console = Console()
    console.print(safe_text(f"\n{title}", "bold"))
    print_table(("architectures", "stage", "error", "blocked by", "smallest example"), [_row(group) for group in groups[:limit]])
    if len(groups) > limit:
        console.print(safe_text(f"and {len(groups) - limit} more: --limit, or --format json", "dim"))


def _row(group: FailureGroup) -> tuple[str, ...]:
    blocker, example = group.blocker, group.example
    words = [blocker.what] if blocker.message in {"", blocker.what} else [blocker.what, blocker.message]
    return (
        str(len(group.architectures)),
        blocker.stage or NOTHING,
        plain(blocker.error_type),
        "\n".join(short(word, 160) for word in words),
        "\n".join(filter(None, (plain(example.model), short(runnable(example.command or ""), 200)))),
    )
