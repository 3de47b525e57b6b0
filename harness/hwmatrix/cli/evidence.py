"""``hwmatrix evidence``: the measurements that answers are based on, and the compact form of published ones in the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.cli.options import DEFAULT_OUTPUT, Format, FormatOption, Output
from hwmatrix.cli.tables import show_evidence
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import ConfigError, GateError, Problem
from hwmatrix.knowledge.on_record import PUBLISHED, SNAPSHOT, in_step, on_record, published_databases
from hwmatrix.knowledge.snapshot import collect, read, write


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("evidence")(evidence_command)


Named = Annotated[Path | None, typer.Option("--database", help="Show only this merged database or folder of reports.", metavar="DB")]
Published = Annotated[Path, typer.Option("--published", help="With --write or --check: the folder of published results.", metavar="DIR")]
Write = Annotated[bool, typer.Option("--write", help="Write the latest verdict of every published cell into --file.")]
Check = Annotated[bool, typer.Option("--check", help="Check that --file matches the published databases; exit code 8 if not.")]
File = Annotated[
    Path, typer.Option("--file", help="With --write or --check. [default: the file in the package]", metavar="FILE", show_default=False)
]


def evidence_command(
    *,
    database: Named = None,
    output_dir: Output = DEFAULT_OUTPUT,
    write_file: Write = False,
    check: Check = False,
    published: Published = PUBLISHED,
    file: File = SNAPSHOT,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show the measurements that answers are based on here: their sources, age and versions.

    Each cell is taken from the first source that has it: reports/latest, reports/published, the published results in the package. Examples:

        hwmatrix evidence

        hwmatrix evidence --database reports/published

        hwmatrix evidence --write
    """
    if write_file or check:
        databases = _databases(published)
        if check:
            _check(databases, file)
            echo(f"{file} matches the {len(databases)} databases of {published}")
            return
        made = collect(databases)
        write(made, file)
        echo(f"wrote {file}: {len(made.cells):,} cells of {len(databases)} databases, {file.stat().st_size:,} bytes")
        return
    answer = on_record(database, latest=output_dir).answer()
    if output is Format.JSON:
        echo(json.dumps(answer, indent=2))
    else:
        show_evidence(answer)


def _databases(published: Path) -> dict[str, Path]:
    """The published databases.

    Raises:
        ConfigError: there are none.
    """
    databases = published_databases(published)
    if not databases:
        what = "there is no matrix.duckdb in it or in one of its folders"
        raise ConfigError([Problem(where=str(published), what=what, hint="name the folder of published results: --published DIR")])
    return databases


def _check(databases: dict[str, Path], file: Path) -> None:
    """Compare a snapshot with the databases.

    Raises:
        GateError: it does not match them.
        StoreError: it cannot be read.
    """
    if not in_step(databases, read(file)):
        raise GateError(f"{file}: it does not match the published results", advice="Update it: hwmatrix evidence --write.")
