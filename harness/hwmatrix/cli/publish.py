"""``hwmatrix publish``: adds runs to the published database, and writes everything that is generated from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.basics.files import write_atomically
from hwmatrix.cli.merge import check_complete, latest_in_words, print_merge
from hwmatrix.cli.options import DEFAULT_OUTPUT
from hwmatrix.cli.report import write_all
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.knowledge.on_record import PUBLISHED, SNAPSHOT, published_databases
from hwmatrix.knowledge.snapshot import collect, write
from hwmatrix.report.headline import with_headline
from hwmatrix.report.rows import read
from hwmatrix.store.latest import merge_places
from hwmatrix.store.reading import DATABASE, database_at


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("publish")(publish_command)


def publish_command(
    *,
    places: Annotated[
        list[Path] | None,
        typer.Argument(help="Merged databases, folders of reports, or folders of runs. [default: reports/latest]", metavar="WHAT"),
    ] = None,
    published: Annotated[Path, typer.Option("--published", help="The folder of published results.", metavar="DIR")] = PUBLISHED,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            "--file", help="The compact form of it, which answers are read from. [default: hwmatrix's, in its repository]", metavar="FILE"
        ),
    ] = None,
) -> None:
    """Add runs to the published database, and rewrite its reports and its compact form.

    For every cell, the latest verdict and its run are kept. Paths of this machine are shortened. Examples:

        hwmatrix publish

        hwmatrix publish reports/latest ../other/reports/latest
    """
    asked = places or [DEFAULT_OUTPUT]
    if places is None and not database_at(DEFAULT_OUTPUT).is_file():
        raise ConfigError(
            [Problem(where=str(DEFAULT_OUTPUT), what="it has no matrix.duckdb", hint="hwmatrix matrix creates it; or name WHAT")]
        )
    kept, merged = merge_places(asked, published / DATABASE, publish=True)
    for report in merged:
        print_merge(report)
    echo(latest_in_words(kept, published / DATABASE))
    write_all(published / DATABASE, published, beside=False)
    file = snapshot or (SNAPSHOT if SNAPSHOT.is_relative_to(Path.cwd()) else None)
    if file is not None:
        write(collect(published_databases(published)), file)
        echo(f"wrote {file}")
    readme = Path("README.md")
    if SNAPSHOT.is_relative_to(Path.cwd()) and readme.is_file():
        write_atomically(readme, with_headline(readme.read_text(encoding="utf-8"), read(published / DATABASE)))
    check_complete(asked, merged)
