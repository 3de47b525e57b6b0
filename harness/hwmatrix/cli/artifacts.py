"""``hwmatrix artifacts``: shards on their way between machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.host.artifacts import pack, unpack

Folder = Annotated[Path, typer.Argument(help="The folder of a run: it holds plan.json and shards/.", metavar="RUN")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    artifacts = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Pack the shards of a target, or check and unpack them.")
    artifacts.command("pack")(pack_command)
    artifacts.command("unpack")(unpack_command)
    app.add_typer(artifacts, name="artifacts")


def pack_command(
    folder: Folder,
    target: Annotated[str, typer.Argument(help="A target of the run.", metavar="TARGET")],
    archive: Annotated[Path, typer.Argument(help="The archive to write.", metavar="FILE")],
) -> None:
    """Pack a target's whole shards, the run's plan and the sums of all into one archive.

    An example of that:

        hwmatrix artifacts pack reports/latest/runs/20261120T072723Z-42934e cuda shards-cuda.tar
    """
    names = pack(folder, target, archive)
    typer.echo(f"wrote {archive} with {len(names)} files")


def unpack_command(
    folder: Folder,
    archives: Annotated[list[Path], typer.Argument(help="What artifacts pack wrote elsewhere.", metavar="FILE ...")],
) -> None:
    """Check archives, and put their shards into the run that they belong to. One that is not as it must be is refused whole.

    Checked are the kinds and names of files, sizes, sums, sidecars, and that the archive is of this run. An example of that:

        hwmatrix artifacts unpack reports/latest/runs/20261120T072723Z-42934e shards-cuda.tar shards-mps.tar
    """
    for archive in archives:
        shards = unpack(archive, folder)
        typer.echo(f"{archive}: {len(shards)} shards")
