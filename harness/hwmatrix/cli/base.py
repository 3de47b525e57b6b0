"""``hwmatrix base``: a base image without any registry."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hwmatrix.cli.options import Verbose, progress
from hwmatrix.host import base_image
from hwmatrix.host.engine import connect

if TYPE_CHECKING:
    import typer


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("base")(base_command)


def base_command(*, verbose: Verbose = False) -> None:
    """Make a base image from Debian's packages, without any image registry (for air-gapped runners)."""
    with progress(verbose=verbose) as view:
        engine = connect(os.environ, need_builder=False)
        base = base_image.make_base(engine, on_line=view.detail)
        view.say(f"made {base.reference} ({base.reason})")
