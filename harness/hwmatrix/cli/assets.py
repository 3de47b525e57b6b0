"""``hwmatrix assets``: the files and the text of a release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.basics.github_log import annotation
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import ConfigError, HwmatrixError, Problem
from hwmatrix.host.github.assets import make_assets
from hwmatrix.report.diff import make_diff, read_side
from hwmatrix.report.rows import read
from hwmatrix.report.step_summary import release_notes
from hwmatrix.report.write import replace
from hwmatrix.store.reading import DATABASE


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("assets")(assets_command)


def assets_command(
    reports: Annotated[Path, typer.Argument(help="A folder of reports.", metavar="REPORTS")],
    folder: Annotated[Path, typer.Argument(help="The folder for the release files; created if missing.", metavar="DIR")],
    *,
    last: Annotated[
        Path | None, typer.Option("--last", help="The database of the previous release, if there is one.", metavar="FILE")
    ] = None,
    body: Annotated[Path | None, typer.Option("--body", help="The current text of the release.", metavar="FILE")] = None,
    notes: Annotated[Path | None, typer.Option("--notes", help="Write the new release text to this file.", metavar="FILE")] = None,
) -> None:
    """Create the files of a release from reports, with checksums, and its text: the matrix and the changes since the last release.

    For example:

        hwmatrix assets reports/latest assets --last last/matrix.duckdb --body body.md --notes notes.md
    """
    if body is not None and notes is None:
        raise ConfigError([Problem(where="--body", what="it is only used for the new release text", hint="add --notes FILE")])
    names = make_assets(reports, folder)
    echo(f"wrote {len(names)} files into {folder}: {', '.join(names)}")
    if notes is None:
        return
    diff = None
    if last is not None and last.exists():
        try:
            diff = make_diff(read_side(last), read_side(reports / DATABASE))
        except HwmatrixError as error:  # a database of another version must not stop the release
            echo(annotation("warning", f"no comparison with the last release: {error}"))
    text = release_notes(body.read_text(encoding="utf-8") if body else "", read(reports / DATABASE), diff)
    replace(notes.absolute().parent, {notes.name: text})
    echo(f"wrote {notes}")
