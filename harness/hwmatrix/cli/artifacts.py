"""``hwmatrix artifacts``: transfers shards between machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.basics.text import plural
from hwmatrix.cli.terminal import echo
from hwmatrix.host.artifacts import pack, unpack

Folder = Annotated[Path, typer.Argument(help="The folder of a run, with plan.json and shards/.", metavar="RUN")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    artifacts = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Pack the shards of a target, or validate and unpack them.")
    artifacts.command("pack")(pack_command)
    artifacts.command("unpack")(unpack_command)
    app.add_typer(artifacts, name="artifacts")


def pack_command(
    folder: Folder,
    target: Annotated[str, typer.Argument(help="A target of the run.", metavar="TARGET")],
    archive: Annotated[Path, typer.Argument(help="The archive to write.", metavar="FILE")],
) -> None:
    """Pack a target's complete shards, their sidecars and the run's plan into one archive.

    For example:

        hwmatrix artifacts pack reports/latest/runs/20261120T072723Z-42934e cuda shards-cuda.tar
    """
    names = pack(folder, target, archive)
    echo(f"wrote {archive} with {plural(len(names), 'file')}")


def unpack_command(
    folder: Folder,
    archives: Annotated[list[Path], typer.Argument(help="An archive written by artifacts pack.", metavar="FILE ...")],
) -> None:
    """Validate archives, and add their shards to the run that they belong to. An invalid archive is rejected completely.

    File types, names, sizes, checksums and sidecars are checked, and that the archive belongs to this run. Example:

        hwmatrix artifacts unpack reports/latest/runs/20261120T072723Z-42934e shards-cuda.tar shards-mps.tar
    """
    for archive in archives:
        shards = unpack(archive, folder)
        echo(f"{archive}: {plural(len(shards), 'shard')}")
